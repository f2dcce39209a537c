"""What the page's tables say, as plain values for its template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from markupsafe import Markup

from idness.benchmark.answer import Answer, ood_weights, row_ranks, setting
from idness.benchmark.marks import Marks
from idness.benchmark.results import Metrics, Report
from idness.core.wording import duration, percent, shown, size
from idness.intervals import mean_auroc_interval
from idness.metrics import FPRS, WITH_INTERVAL, Convention, meaning, title

BADGES = {"clear": "clear lead", "tie": "level with others", "only": "the only one measured", "useless": "at chance"}


@dataclass(frozen=True)
class Cell:
    """Is one number of a table: as text, to sort by, with its interval and mark."""

    text: str
    sort: str
    range: str = ""
    mark: str = ""
    whisker: Markup = field(default_factory=Markup)


@dataclass(frozen=True)
class Heading:
    """Is a column's heading; `best` is the direction that puts the best row on top."""

    title: str
    note: str
    best: str
    sorted: bool = False


@dataclass(frozen=True)
class Line:
    """Is one row of a table."""

    row: str
    setting: str
    about: str
    cells: list[Cell]


@dataclass(frozen=True)
class Table:
    """Is a table of all rows."""

    name: str
    caption: str
    heads: list[Heading]
    lines: list[Line]


Column = tuple[Heading, dict[str, Cell]]


def group_table(report: Report, found: Answer, order: list[str], marks: Marks) -> Table:
    """Make the table of group means, with ID accuracy."""
    columns: list[Column] = []
    mean_marks = marks.auroc(ood_weights(report))
    groups = report.benchmark.groups
    if len(groups) > 1:
        ends = {row: mean_auroc_interval(row_ranks(report, row)) for row in order}
        scale = _scale(list(ends.values()))
        cells = {
            row: _number(value, mean_marks[row], ends[row], _whisker(value, ends[row], scale))
            for row, value in found.auroc.items()
        }
        columns.append((Heading("mean AUROC", " + ".join(map(shown, groups)), "descending", True), cells))
    for group, names in groups.items():
        marked = marks.auroc(dict.fromkeys(names, 1.0))
        columns.append(_metric_column(report, order, f"{shown(group)} AUROC", "auroc", _group(group), marked, True))
    for group, names in groups.items():
        marked = marks.fpr("fpr_at_id_recall", names)
        title = f"{shown(group)} FPR"
        columns.append(_metric_column(report, order, title, "fpr_at_id_recall", _group(group), marked, False))
    if report.id_accuracy is not None:
        cells = {row: _number(report.methods[row].id_accuracy_shaped) for row in order}
        columns.append((Heading("ID accuracy", "of the edited network", "descending"), cells))
    words = (
        "" if report.id_accuracy is None else f" The plain network's ID accuracy is {percent(report.id_accuracy)} %."
    )
    caption = f"Group means over {len(marks.sets)} OOD sets, percent.{words}"
    return _table(report, order, "Group means", caption, columns)


def set_tables(report: Report, order: list[str], marks: Marks) -> list[Table]:
    """Make one table per metric with a column for every OOD set."""
    tables = []
    for metric in WITH_INTERVAL:
        columns = []
        for group, names in report.benchmark.groups.items():
            for name in names:
                marked = marks.auroc({name: 1.0}) if metric == "auroc" else marks.fpr(cast(Convention, metric), [name])
                heading, cells = _metric_column(report, order, shown(name), metric, _set(name), marked, False)
                columns.append((Heading(heading.title, shown(group), heading.best), cells))
        caption = f"Percent: {meaning(metric, report.recall)}."
        tables.append(_table(report, order, title(metric, report.recall), caption, columns))
    return tables


def facts(report: Report) -> list[tuple[str, str]]:
    """Give the few numbers that a reader wants first."""
    oods = ood_weights(report)
    images = sum(report.sets[name].images for name in oods if name in report.sets)
    found = [
        ("ID accuracy", "–" if report.id_accuracy is None else f"{percent(report.id_accuracy, 1)} %"),
        ("ID test images", f"{report.sets['id_test'].images:,}" if "id_test" in report.sets else "–"),
        (f"OOD images in {len(oods)} sets", f"{images:,}"),
        ("methods", str(len(report.methods))),
        ("settings tried", f"{sum(max(len(item.tried), 1) for item in report.methods.values()):,}"),
    ]
    if "total" in report.time:
        found.append(("in all", duration(report.time["total"])))
    return found


def cost(report: Report, order: list[str]) -> dict[str, Any]:
    """Say what time and memory were spent on."""
    time = report.time
    totals = {row: sum(report.methods[row].seconds.values()) for row in order}
    most = max([*totals.values(), 1e-9])
    lines = [
        {
            "row": shown(row),
            "tried": max(len(report.methods[row].tried), 1),
            "width": f"{6 * totals[row] / most:.2f}",
            "cells": [
                {"text": duration(value), "sort": f"{value:.6f}"}
                for value in (
                    *(report.methods[row].seconds.get(key, 0.0) for key in ("fit", "search", "score")),
                    totals[row],
                )
            ],
        }
        for row in order
    ]
    return {"lines": lines, "sentence": _cost_sentence(report, time, sum(totals.values()))}


def provenance(report: Report) -> list[tuple[str, str]]:
    """List what is needed to measure the same again."""
    model, told = report.model, report.provenance
    found = [
        ("Command", told.get("command", "–")),
        ("Date", told.get("date", "–")),
        ("Seed", told.get("seed", "–")),
        (
            "Network",
            f"{model.spec}, {model.parameters:,} parameters, {model.features} features into layer {model.layer}",
        ),
        ("Weights", f"{model.weights or 'as built'}, SHA-256 {model.weights_sha256}"),
        ("Preprocessing", _pairs(report.preprocessing)),
        ("Precision", f"{report.precision.get('used', '–')}: {report.precision.get('why', '')}"),
        ("Versions", _pairs(told.get("versions", {}))),
        ("Machine", _pairs(told.get("machine", {}))),
        ("FPR", f"{meaning('fpr_at_id_recall', report.recall)}; the other convention is in the per-set tables"),
    ]
    return [(name, shown(value, 400)) for name, value in found]


def image_sets(report: Report) -> list[dict[str, Any]]:
    """Describe every set."""
    return [
        {
            "name": shown(name),
            "role": shown(item.role.replace("_", " ").replace("id", "ID").replace("ood", "OOD")),
            "images": item.images,
            "count": f"{item.images:,}",
            "source": shown(item.source, 80),
            "sha256": item.sha256[:16],
            "skipped": [f"{shown(bad.item, 120)}: {shown(bad.reason, 200)}" for bad in item.skipped[:100]],
        }
        for name, item in report.sets.items()
    ]


def searches(report: Report, order: list[str]) -> list[dict[str, Any]]:
    """List the settings that validation data was asked about, the best first."""
    found = []
    for row in order:
        item = report.methods[row]
        if len(item.tried) > 1:
            ranked = sorted(item.tried, key=lambda trial: -trial.auroc)
            lines = [f"{percent(trial.auroc)} %  {shown(_pairs(trial.options), 120)}" for trial in ranked]
            lines += [f"left out: {shown(line, 200)}" for line in item.dropped]
            found.append(
                {"row": shown(row), "chosen": shown(setting(report, row), 80), "count": len(ranked), "lines": lines}
            )
    return found


def warnings(report: Report) -> list[str]:
    """Collect all that a reader must know before believing the numbers."""
    found = [*report.warnings]
    found += [f"{row} could not run: {reason}" for row, reason in report.failed.items()]
    for pair in report.duplicates:
        found.append(f"{pair.get('images')} images are in both {' and '.join(map(str, pair.get('sets', [])))}")
    for name, item in report.sets.items():
        if item.skipped:
            found.append(f"{len(item.skipped)} images of {name} were skipped; the reasons are under Provenance")
    return [shown(line, 300) for line in found]


def _group(name: str) -> Callable[[Report, str], Metrics]:
    return lambda report, row: report.methods[row].groups[name]


def _set(name: str) -> Callable[[Report, str], Metrics]:
    return lambda report, row: report.methods[row].sets[name]


def _metric_column(
    report: Report,
    order: list[str],
    title: str,
    metric: str,
    read: Callable[[Report, str], Metrics],
    marked: dict[str, str],
    whiskers: bool,
) -> Column:
    found = {row: read(report, row) for row in order}
    ends = {row: item.intervals.get(metric) for row, item in found.items()}
    known = [end for end in ends.values() if end]
    scale = _scale(known) if known else (0.0, 1.0)
    cells = {}
    for row, item in found.items():
        value, end = getattr(item, metric), ends[row]
        drawn = _whisker(value, end, scale) if whiskers and end else Markup()
        cells[row] = _number(value, marked[row], end, drawn)
    best = "ascending" if metric in FPRS else "descending"
    note = (
        ""
        if metric == "auroc"
        else f"at {100 * report.recall:g} % {'ID' if metric == 'fpr_at_id_recall' else 'OOD'} recall"
    )
    return Heading(title, note, best), cells


def _number(
    value: float | None, mark: str = "", end: tuple[float, float] | None = None, whisker: Markup | None = None
) -> Cell:
    interval = f"{percent(end[0], 1)} – {percent(end[1], 1)}" if end else ""
    sort = "" if value is None else f"{value:.6f}"
    return Cell(percent(value), sort, interval, mark, whisker or Markup())


def _scale(ends: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Find the scale of a column's whiskers; one row far below all others does not squeeze the rest."""
    lows, high = sorted(end[0] for end in ends), max(end[1] for end in ends)
    quarter = lows[len(lows) // 4]
    return max(lows[0], quarter - 2 * (high - quarter)), high


def _whisker(value: float, end: tuple[float, float], scale: tuple[float, float]) -> Markup:
    """Draw a value and its interval in the scale of its column; an arrow says that it lies left of it."""
    low, high = scale
    span = (high - low) or 1.0
    left, middle, right = (max(round(3 + 68 * (point - low) / span, 1), 3.0) for point in (end[0], value, end[1]))
    if value < low:
        return Markup('<svg class="whisker" viewBox="0 0 74 9" aria-hidden="true"><path d="M8 1L2 4.5L8 8z"/></svg>')
    return Markup(
        '<svg class="whisker" viewBox="0 0 74 9" aria-hidden="true"><line x1="{}" x2="{}" y1="4.5" y2="4.5"/>'
        '<circle cx="{}" cy="4.5" r="2.8"/></svg>'
    ).format(left, right, middle)


def _table(report: Report, order: list[str], name: str, caption: str, columns: list[Column]) -> Table:
    lines = [
        Line(
            shown(row),
            shown(setting(report, row), 80),
            shown(report.methods[row].about, 200),
            [cells[row] for _, cells in columns],
        )
        for row in order
    ]
    return Table(name, caption, [heading for heading, _ in columns], lines)


def _cost_sentence(report: Report, time: dict[str, float], methods: float) -> str:
    images, cached, network = int(time.get("images", 0)), int(time.get("cached", 0)), time.get("extract", 0.0)
    parts = []
    if images:
        rate = f", {images / network:,.0f} a second" if network > 0 else ""
        parts.append(f"The network ran once over {images:,} images in {duration(network)}{rate}.")
    if cached:
        parts.append(f"Activations of {cached:,} images were taken from the store.")
    tried = sum(max(len(item.tried), 1) for item in report.methods.values())
    parts.append(f"All {len(report.methods)} methods at {tried} settings then took {duration(methods)}.")
    if report.peak_memory:
        parts.append(f"Peak memory was {size(report.peak_memory)}.")
    return " ".join(parts)


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {_plain(value)}" for key, value in values.items()) or "–"


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(_plain, value)) if isinstance(value, list | tuple) else str(value)
