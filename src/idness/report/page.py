"""Write a report as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from idness.benchmark.answer import best_first, conclude, setting
from idness.benchmark.parts import Answer, Metrics, Wrong
from idness.benchmark.provenance import told
from idness.benchmark.ranking import contenders, ood_weights
from idness.benchmark.results import PAGE, Report, results_folder
from idness.core.wording import duration, listed, percent, sentence, shown, size
from idness.metrics import FPRS, WITH_INTERVAL, id_threshold, meaning, title
from idness.report import figures, style
from idness.report.figures import quiet
from idness.report.ridges import score_ridges
from idness.report.tables import Cell, Column, Heading, Table, of_columns

NAV = (
    ("answer", "Answer"),
    ("groups", "Groups"),
    ("sets", "Sets"),
    ("scores", "Scores"),
    ("roc", "ROC"),
    ("tradeoff", "Trade-off"),
    ("percentiles", "Percentiles"),
    ("mistakes", "Mistakes"),
    ("cost", "Cost"),
    ("provenance", "Provenance"),
)


def write_html(folder: str | os.PathLike[str], report: Report | None = None) -> Path:
    """Write `report.html` into a folder: of a report, or of the results that the folder holds; return its path."""
    (path,) = results_folder(folder).write({PAGE: render(report or Report.load(os.fspath(folder)))})
    return path


def render(report: Report) -> str:
    """Turn a report into the text of a page."""
    found = conclude(report).answer
    assert found is not None
    order = best_first(report)
    first = [found.use, *(row for row in order if row != found.use)]
    urls = data_urls(needed(report, first))
    ids = {name: f"t{index}" for index, name in enumerate(urls)}
    groups = list(report.benchmark.groups)
    return render_page(
        "report.html",
        title=f"{shown(report.benchmark.title or report.benchmark.name)}: {shown(report.model.spec)} – idness",
        nav=NAV,
        panels=max(len(order), len(WITH_INTERVAL)),
        benchmark=shown(report.benchmark.title or report.benchmark.name, 120),
        model=shown(report.model.spec, 120),
        recall=f"{100 * report.recall:g} %",
        answer={
            "name": shown(found.use),
            "setting": shown(setting(report, found.use), 80),
            "kind": found.kind,
            "badge": BADGES[found.kind],
            "sentence": found.sentence,
            "cost": found.cost,
            "evidence": found.evidence,
        },
        facts=facts(report),
        warnings=warnings(report),
        ranking=_figure(figures.ranking(report), "rank", _ranking_alt(report, order)),
        groups_title=sentence(f"{listed([shown(group) for group in groups])} OOD"),
        meanings={name: meaning(name, report.recall) for name in WITH_INTERVAL},
        group_table=group_table(report, found, order),
        set_tables=set_tables(report, order),
        shown_first=[shown(row) for row in first],
        ridges=[
            {"svg": Markup(score_ridges(report, row, f"ridge{index}")), "caption": ""}
            for index, row in enumerate(first)
        ],
        legend=[{"row": shown(row), "sample": _sample(mark)} for row, mark in figures.looks(report).items()],
        rocs=list(_rocs(report)),
        tradeoffs=[] if report.id_accuracy is None else list(_per_group(report, "tradeoff")),
        sweeps=[] if report.sweep is None else list(_per_group(report, "percentile_sweep")),
        thumbs=[(ids[name], Markup(url)) for name, url in urls.items()],
        mistakes=[strips(report, row, ids) for row in first] if report.wrong else [],
        cost=cost_sentence(report),
        cost_table=cost_table(report, order),
        provenance=provenance(report),
        set_table=set_table(report),
        skipped=skipped(report),
        searches=searches(report, order),
    )


def render_page(template: str, **values: Any) -> str:
    """Fill a template; every value is escaped unless it is markup of our own."""
    from idness import __version__

    script = (style.TEMPLATES / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return (
        style.templates()
        .get_template(template)
        .render(
            version=__version__,
            script=Markup(script),
            script_hash=digest,
            css=Markup((style.TEMPLATES / "page.css").read_text(encoding="utf-8")),
            **values,
        )
    )


def _figure(ax: Any, prefix: str, alt: str, caption: str = "") -> dict[str, Any]:
    with quiet():
        svg = compact(style.figure_svg(ax, alt=alt, prefix=prefix))
    for colour, lighter in style.LIGHTENED.items():
        svg = svg.replace(f": {colour}", f": {lighter}")
    # matplotlib escapes the names that it writes into a picture.
    return {"svg": Markup(svg), "caption": caption}


def compact(svg: str) -> str:
    """Write a picture in half the bytes: steps as H and V, a tenth of a pixel, no metadata, no unused names."""
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    return re.sub(r'\bd="([^"]*)"', lambda match: f'd="{_compact_path(match[1])}"', svg)


def _compact_path(path: str) -> str:
    if re.search(r"[^MLz\d\s.eE-]", path):
        return " ".join(path.split())
    parts, here = [], ("", "")
    for command, x, y in re.findall(r"([MLz])\s*(?:(\S+)\s+(\S+))?", path):
        if command == "z":
            parts.append("z")
            continue
        there = (f"{float(x):.1f}".removesuffix(".0"), f"{float(y):.1f}".removesuffix(".0"))
        if command == "M" or (there[0] != here[0] and there[1] != here[1]):
            parts.append(f"{command}{there[0]} {there[1]}")
        elif there[0] != here[0]:
            parts.append(f"H{there[0]}")
        elif there[1] != here[1]:
            parts.append(f"V{there[1]}")
        here = there
    return "".join(parts)


def _rocs(report: Report) -> Iterator[dict[str, Any]]:
    ax: Any = None
    for index, name in enumerate(ood_weights(report)):
        best = max(contenders(report), key=lambda row: report.methods[row].sets[name].auroc)
        value = percent(report.methods[best].sets[name].auroc, 1)
        alt = f"ROC curves on {shown(name)}: {shown(best)} has the largest area, {value} %"
        # The same axes for all: their ticks take longer to make than the curves.
        for drawn in [*ax.lines, *ax.collections] if ax else ():
            drawn.remove()
        ax = figures.roc_curves(report, name, ax=ax)
        yield _figure(ax, f"roc{index}", alt)


def _per_group(report: Report, kind: str) -> Iterator[dict[str, Any]]:
    draw = {"tradeoff": figures.tradeoff, "percentile_sweep": figures.percentile_sweep}[kind]
    words = {"tradeoff": "ID accuracy against AUROC", "percentile_sweep": "AUROC against the percentile"}[kind]
    for index, group in enumerate(report.benchmark.groups):
        alt = f"{words}, {shown(group)} OOD sets; the numbers are in results.json beside this page"
        yield _figure(draw(report, group), f"{kind}{index}", alt)


def _ranking_alt(report: Report, order: list[str]) -> str:
    lines = [
        f"{shown(row)} "
        + ", ".join(f"{shown(group)} {percent(item.auroc, 1)} %" for group, item in report.methods[row].groups.items())
        for row in order
    ]
    return f"AUROC with 95 % intervals, best mean first: {'; '.join(lines)}"


def _sample(mark: style.Mark) -> Markup:
    """Draw the line that a row has in the figures, for a legend in the page."""
    dashes = "" if isinstance(mark.line, str) else " ".join(f"{2 * part:g}" for part in mark.line[1])
    return Markup(
        '<svg width="34" height="8" aria-hidden="true"><line x1="0" x2="34" y1="4" y2="4" style="stroke: {}" stroke-width="2.4"'
        ' stroke-dasharray="{}"/></svg>'
    ).format(style.LIGHTENED.get(mark.colour, mark.colour), dashes)


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


BUDGET = 900_000
"""Bytes that all thumbnails of a page may take, as text."""
QUALITIES = (90, 75, 55, 30)


@dataclass(frozen=True)
class Thumbnail:
    """Keeps one image of a strip, with all that is said about it."""

    thumb: str | None
    alt: str
    score: str
    verdict: str
    fooled: bool
    words: str


@dataclass(frozen=True)
class Strip:
    """Keeps a row of images under one heading."""

    title: str
    entries: list[Thumbnail]


def data_urls(images: Mapping[str, NDArray[np.uint8]], budget: int = BUDGET) -> dict[str, str]:
    """Encode images as WebP data URLs, as well as the budget allows; the last ones are left out when even that is too much."""
    urls: dict[str, str] = {}
    for quality in QUALITIES:
        urls = {name: _data_url(image, quality) for name, image in images.items()}
        if sum(map(len, urls.values())) <= budget:
            return urls
    kept: dict[str, str] = {}
    for name, url in urls.items():
        budget -= len(url)
        if budget < 0:
            break
        kept[name] = url
    return kept


def strips(report: Report, row: str, ids: Mapping[str, str]) -> list[Strip]:
    """Caption the images that one row gets most wrong; `ids` names the pictures that the page has."""
    threshold = id_threshold(report.scores.of(row, "id_test"), report.recall)
    found = []
    for group, entries in report.wrong.get(row, {}).items():
        is_id = group == "id_test"
        title = "ID images that it trusts least" if is_id else f"{shown(group)} OOD images that it trusts most"
        captioned = [_captioned(report, entry, threshold, is_id, ids) for entry in entries]
        found.append(Strip(sentence(title), captioned))
    return found


def needed(report: Report, rows: Sequence[str]) -> dict[str, NDArray[np.uint8]]:
    """List the small images that these rows' strips show, each once, those of the first rows first."""
    wanted = [f"{e.set}/{e.index}" for row in rows for part in report.wrong.get(row, {}).values() for e in part]
    return {name: report.thumbs[name] for name in dict.fromkeys(wanted) if name in report.thumbs}


def class_name(report: Report, label: int | None) -> str:
    """Name a class; its number where names are unknown."""
    if label is None:
        return "unknown"
    names = report.benchmark.classes
    return shown(names[label], 24) if 0 <= label < len(names) else f"class {label}"


def _captioned(report: Report, entry: Wrong, threshold: float, is_id: bool, ids: Mapping[str, str]) -> Thumbnail:
    accepted = entry.score >= threshold
    fooled = accepted != is_id
    verdict = ("kept" if accepted else "rejected") if is_id else ("passes" if accepted else "caught")
    predicted = class_name(report, entry.predicted)
    if is_id:
        truth = class_name(report, entry.label)
        words = f"{truth}, seen as {predicted}" if entry.label not in (None, entry.predicted) else predicted
    else:
        words = f"{shown(entry.set, 24)}, seen as {predicted}"
    alt = f"{shown(entry.item, 60)} of {shown(entry.set, 24)}: {words}; score {entry.score:.4g}, {verdict}"
    return Thumbnail(ids.get(f"{entry.set}/{entry.index}"), alt, f"{entry.score:.4g}", verdict, fooled, words)


def _data_url(image: NDArray[np.uint8], quality: int) -> str:
    stream = io.BytesIO()
    options: dict[str, Any] = {"quality": quality, "method": 4}
    Image.fromarray(np.ascontiguousarray(image)).save(stream, "WEBP", **options)
    return "data:image/webp;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
