"""Writes a report as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from idness.benchmark.answer import best_first, conclude, setting
from idness.benchmark.ranking import contenders, ood_weights
from idness.benchmark.results import Report
from idness.core.files import atomic_write
from idness.core.wording import listed, percent, sentence, shown
from idness.metrics import WITH_INTERVAL, meaning
from idness.report import figures, sections, style, thumbnails
from idness.report.layout import quiet
from idness.report.ridges import picture, ridges_of

TEMPLATES = Path(__file__).parent / "templates"
PAGE = "report.html"
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


def write_html(folder: str | Path, report: Report | None = None) -> Path:
    """Write `report.html` into a folder: of a report, or of the results that the folder holds; return its path."""
    return atomic_write(Path(folder) / PAGE, render(report or Report.load(folder)))


def render(report: Report) -> str:
    """Turn a report into the text of a page."""
    found = conclude(report).answer
    assert found is not None
    order = best_first(report)
    first = [found.use, *(row for row in order if row != found.use)]
    urls = thumbnails.data_urls(thumbnails.needed(report, first))
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
            "badge": sections.BADGES[found.kind],
            "sentence": found.sentence,
            "cost": found.cost,
            "evidence": found.evidence,
        },
        facts=sections.facts(report),
        warnings=sections.warnings(report),
        ranking=_figure(figures.ranking(report), "rank", _ranking_alt(report, order)),
        groups_title=sentence(f"{listed([shown(group) for group in groups])} OOD"),
        meanings={name: meaning(name, report.recall) for name in WITH_INTERVAL},
        group_table=sections.group_table(report, found, order),
        set_tables=sections.set_tables(report, order),
        shown_first=[shown(row) for row in first],
        ridges=[_ridges(report, row, f"ridge{index}") for index, row in enumerate(first)],
        legend=[{"row": shown(row), "sample": _sample(mark)} for row, mark in figures.looks(report).items()],
        rocs=list(_rocs(report)),
        tradeoffs=[] if report.id_accuracy is None else list(_per_group(report, "tradeoff")),
        sweeps=[] if report.sweep is None else list(_per_group(report, "percentile_sweep")),
        thumbs=[(ids[name], Markup(url)) for name, url in urls.items()],
        mistakes=[thumbnails.strips(report, row, ids) for row in first] if report.wrong else [],
        cost=sections.cost_sentence(report),
        cost_table=sections.cost_table(report, order),
        provenance=sections.provenance(report),
        set_table=sections.set_table(report),
        skipped=sections.skipped(report),
        searches=sections.searches(report, order),
    )


def render_page(template: str, **values: Any) -> str:
    """Fill a template; every value is escaped unless it is markup of our own."""
    from idness import __version__

    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return (
        environment()
        .get_template(template)
        .render(
            version=__version__,
            script=Markup(script),
            script_hash=digest,
            css=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
            **values,
        )
    )


@cache
def environment() -> Environment:
    """Give the templates' environment, which escapes by default."""
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _figure(ax: Any, prefix: str, alt: str, caption: str = "") -> dict[str, Any]:
    with quiet():
        svg = compact(style.figure_svg(ax, alt=alt, prefix=prefix))
    for colour, lighter in style.LIGHTENED.items():
        svg = svg.replace(f": {colour}", f": {lighter}")
    # matplotlib escapes the names that it writes into a picture.
    return {"svg": Markup(svg), "caption": caption}


def _ridges(report: Report, row: str, prefix: str) -> dict[str, Any]:
    places = picture(ridges_of(report, row))
    svg = environment().get_template("ridges.svg").render(prefix=prefix, alt=_ridge_alt(report, row), **places)
    return {"svg": Markup(svg), "caption": ""}


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


def _ridge_alt(report: Report, row: str) -> str:
    parts = [
        f"{shown(name)} {percent(report.methods[row].sets[name].fpr_at_id_recall, 1)} %" for name in ood_weights(report)
    ]
    return f"Histograms of the scores of {shown(row)}. Share of each OOD set that passes: {', '.join(parts)}"


def _sample(mark: style.Mark) -> Markup:
    """Draw the line that a row has in the figures, for a legend in the page."""
    dashes = "" if isinstance(mark.line, str) else " ".join(f"{2 * part:g}" for part in mark.line[1])
    return Markup(
        '<svg width="34" height="8" aria-hidden="true"><line x1="0" x2="34" y1="4" y2="4" style="stroke: {}" stroke-width="2.4"'
        ' stroke-dasharray="{}"/></svg>'
    ).format(style.LIGHTENED.get(mark.colour, mark.colour), dashes)
