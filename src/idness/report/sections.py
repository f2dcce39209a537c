"""What the page shows, as tables and plain values for its template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from idness.benchmark.answer import setting
from idness.benchmark.parts import Answer, Metrics
from idness.benchmark.provenance import told
from idness.benchmark.ranking import ood_weights
from idness.benchmark.results import Report
from idness.core.wording import duration, percent, shown, size
from idness.metrics import FPRS, WITH_INTERVAL, meaning, title
from idness.report.table import Cell, Column, Heading, Table, of_columns

BADGES = {
    "clear": "clear lead",
    "tie": "level with others",
    "behind": "not the best in hindsight",
    "only": "the only one measured",
    "useless": "at chance",
}
SPENT = ("fit", "search", "score")


def group_table(report: Report, found: Answer, order: Sequence[str]) -> Table:
    """Make the table of group means, with ID accuracy."""
    groups, columns = report.benchmark.groups, []
    if len(groups) > 1:
        marks = {**dict.fromkeys(found.ties, "tie"), found.best: "best"}
        heading = Heading("mean AUROC", " + ".join(map(shown, groups)), sorted=True)
        columns.append(
            (heading, _numbers([(found.auroc[r], found.intervals[r], marks.get(r, "")) for r in order], True))
        )
    for metric, what in (("auroc", "AUROC"), ("fpr_at_id_recall", "FPR")):
        for group in groups:
            means = [report.methods[row].groups[group] for row in order]
            columns.append(_metric_column(report, f"{shown(group)} {what}", metric, means, metric == "auroc"))
    words = ""
    if report.id_accuracy is not None:
        words = f" The plain network's ID accuracy is {percent(report.id_accuracy)} %."
        shaped = _numbers([(report.methods[row].id_accuracy_shaped, None, "") for row in order])
        columns.append((Heading("ID accuracy", "of the edited network"), shaped))
    caption = f"Group means over {len(ood_weights(report))} OOD sets, percent.{words}"
    return of_columns("Group means", _names(report, order), columns, [caption])


def set_tables(report: Report, order: Sequence[str]) -> list[Table]:
    """Make one table per metric with a column for every OOD set."""
    tables = []
    for metric in WITH_INTERVAL:
        columns = []
        for group, names in report.benchmark.groups.items():
            for name in names:
                found = [report.methods[row].sets[name] for row in order]
                columns.append(_metric_column(report, shown(name), metric, found, note=shown(group)))
        caption = f"Percent: {meaning(metric, report.recall)}."
        tables.append(of_columns(title(metric, report.recall), _names(report, order), columns, [caption]))
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
        ("settings tried", f"{sum(_tried(report, row) for row in report.methods):,}"),
    ]
    if "total" in report.time:
        found.append(("in all", duration(report.time["total"])))
    return found


def cost_table(report: Report, order: Sequence[str]) -> Table:
    """Make the table of the time that each row took."""
    spent = {row: report.methods[row].seconds for row in order}
    totals = {row: sum(spent[row].values()) for row in order}
    most = max([*totals.values(), 1e-9])
    columns: list[Column] = [(Heading("options tried"), [Cell(str(_tried(report, row))) for row in order])]
    for what in (*SPENT, "total"):
        seconds = [totals[row] if what == "total" else spent[row].get(what, 0.0) for row in order]
        cells = [Cell(duration(value), sort=f"{value:.6f}") for value in seconds]
        columns.append((Heading(what, best="ascending"), cells))
    meter = Markup('<span class="meter" style="width:{}rem"></span>')
    bars = [Cell("", drawing=meter.format(f"{6 * totals[row] / most:.2f}")) for row in order]
    columns.append((Heading("share", best="", words=True), bars))
    names = [replace(cell, note="") for cell in _names(report, order)]
    caption = "Seconds per method, over all images and all options tried."
    return of_columns("Time spent per method", names, columns, [caption])


def cost_sentence(report: Report) -> str:
    """Say what time and memory were spent on."""
    time = report.time
    images, cached, network = int(time.get("images", 0)), int(time.get("cached", 0)), time.get("extract", 0.0)
    parts = []
    if images:
        rate = f", {images / network:,.0f} a second" if network > 0 else ""
        parts.append(f"The network ran once over {images:,} images in {duration(network)}{rate}.")
    if cached:
        parts.append(f"Activations of {cached:,} images were taken from the store.")
    tried = sum(_tried(report, row) for row in report.methods)
    spent = sum(sum(item.seconds.values()) for item in report.methods.values())
    parts.append(f"All {len(report.methods)} methods at {tried} settings then took {duration(spent)}.")
    if report.peak_memory:
        parts.append(f"Peak memory was {size(report.peak_memory)}.")
    return " ".join(parts)


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
        *([("Engine", _engine(report.engine))] if report.engine else []),
        ("Versions", _pairs(told.get("versions", {}))),
        ("Machine", _pairs(told.get("machine", {}))),
        ("FPR", f"{meaning('fpr_at_id_recall', report.recall)}; the other convention is in the per-set tables"),
    ]
    return [(name, shown(value, 400)) for name, value in found]


def _engine(engine: Mapping[str, Any]) -> str:
    return f"{engine.get('used')} {engine.get('version')}, batches of {engine.get('batch')}: {engine.get('why')}"


def set_table(report: Report) -> Table:
    """Make the table that describes every set."""
    headings = [
        Heading("set", best="ascending", words=True),
        Heading("role", best="ascending", words=True),
        Heading("images"),
        Heading("skipped"),
        Heading("source", best="", words=True),
        Heading("SHA-256", best="", words=True),
    ]
    rows = [
        [
            Cell(shown(name)),
            Cell(shown(item.role.replace("_", " ").replace("id", "ID").replace("ood", "OOD"))),
            Cell(f"{item.images:,}", sort=str(item.images)),
            Cell(str(len(item.skipped))),
            Cell(shown(item.source, 80)),
            Cell("", drawing=Markup('<code class="hash">{}</code>').format(item.sha256[:16])),
        ]
        for name, item in report.sets.items()
    ]
    return Table("Image sets", headings, rows, ["The hash is of all image contents in order."])


def skipped(report: Report) -> dict[str, list[str]]:
    """Say of the sets that lack images which these are and why."""
    return {
        shown(name): [f"{shown(bad.item, 120)}: {shown(bad.reason, 200)}" for bad in item.skipped[:100]]
        for name, item in report.sets.items()
        if item.skipped
    }


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
        found.append(told(pair))
    for name, item in report.sets.items():
        if item.skipped:
            found.append(f"{len(item.skipped)} images of {name} were skipped; the reasons are under Provenance")
    # A run warns of copies itself; results that were put together otherwise may not.
    return [shown(line, 300) for line in dict.fromkeys(found)]


def _tried(report: Report, row: str) -> int:
    return max(len(report.methods[row].tried), 1)


def _names(report: Report, order: Sequence[str]) -> list[Cell]:
    """Name the rows with their settings; the one to use is marked."""
    use = report.answer.use if report.answer else None
    return [
        Cell(
            shown(row),
            "use" if row == use else "",
            note=shown(setting(report, row), 80),
            hint=shown(report.methods[row].about, 200),
        )
        for row in order
    ]


def _metric_column(
    report: Report, heading: str, metric: str, found: Sequence[Metrics], drawn: bool = False, note: str = ""
) -> Column:
    if metric in FPRS and not note:
        note = f"at {title(metric, report.recall).partition(' at ')[2]}"
    values = [(getattr(item, metric), item.intervals.get(metric), item.marks.get(metric, "")) for item in found]
    return Heading(heading, note, "ascending" if metric in FPRS else "descending"), _numbers(values, drawn)


def _numbers(values: Sequence[tuple[float | None, tuple[float, float] | None, str]], drawn: bool = False) -> list[Cell]:
    """Write a column of values, each with its interval and mark; the intervals may be drawn too."""
    known = [end for _, end, _ in values if end]
    scale = _scale(known) if known else (0.0, 1.0)
    return [
        Cell(
            percent(value),
            mark,
            note=f"{percent(end[0], 1)} – {percent(end[1], 1)}" if end else "",
            sort="" if value is None else f"{value:.6f}",
            drawing=_whisker(value, end, scale) if drawn and end and value is not None else Markup(),
        )
        for value, end, mark in values
    ]


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


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {_plain(value)}" for key, value in values.items()) or "–"


def _plain(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(_plain, value)) if isinstance(value, list | tuple) else str(value)
