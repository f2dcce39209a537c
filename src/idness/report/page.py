"""A report as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from markupsafe import Markup
from PIL import Image

from idness.benchmark.answer import conclude, setting
from idness.benchmark.results import Report, best_first, describe_duplicates, ood_weights
from idness.core.options import plain
from idness.core.text import duration, listed, percentage, sentence, shorten, size
from idness.metrics import SELECTIVE, WITH_INTERVAL, id_threshold, meaning, title
from idness.report import figures, style
from idness.report.tables import Cell, Heading, Table, by_set, left_out, options, selective, summary

SECTIONS = ("answer", "groups", "sets", "scores", "roc", "tradeoff", "mistakes", "cost", "provenance")
NAV = [(name, {"roc": "ROC", "tradeoff": "Trade-off"}.get(name, name.capitalize())) for name in SECTIONS]
BADGES = {
    "clear": "clear lead",
    "tie": "ties with others",
    "behind": "not the best in hindsight",
    "only": "only method measured",
    "useless": "at chance level",
}
BUDGET = 1_200_000
"""Maximum total size of the thumbnails of a page, in bytes of text."""
QUALITY = 75
"""Quality of the thumbnails, which are WebP images."""
TINY = 64
"""Maximum number of pixels of images that are enlarged without smoothing."""


def render(report: Report) -> str:
    """Return the HTML page of a report."""
    found = conclude(report).answer
    assert found is not None
    order = best_first(report)
    first = [found.use, *(row for row in order if row != found.use)]
    urls = shown_images(report, first)
    ids = {name: f"t{index}" for index, name in enumerate(urls)}
    groups = report.benchmark.groups
    members = "; ".join(f"{shorten(group)}: {', '.join(map(shorten, names))}" for group, names in groups.items())
    means = f"Means over {len(ood_weights(report))} OOD sets, percent."
    labelled = report.id_accuracy is not None
    means += f" ID accuracy of the plain network: {percentage(report.id_accuracy)} %." if labelled else ""
    return render_page(
        "report.html",
        title=f"{shorten(report.benchmark.title)}: {shorten(report.model.spec)} – idness",
        nav=NAV,
        panels=max(len(order), len(WITH_INTERVAL) + len(SELECTIVE)),
        benchmark=shorten(report.benchmark.title, 120),
        model=shorten(report.model.spec, 120),
        recall=f"{100 * report.recall:g} %",
        answer=found,
        use=shorten(found.use),
        setting=shorten(setting(report, found.use), 80),
        badge=BADGES[found.kind],
        facts=facts(report),
        warnings=warnings(report),
        ranking=_svg(figures.ranking(report), "rank", "AUROC of each method; the next table has the numbers"),
        groups_title=sentence(f"{listed([shorten(group) for group in groups])} OOD"),
        meanings={name: meaning(name, report.recall) for name in WITH_INTERVAL},
        main_table=replace(summary(report), notes=[means]),
        set_tables=[
            replace(
                by_set(report, metric),
                title=title(metric, report.recall),
                notes=[f"Percent: {meaning(metric, report.recall)}. {sentence(members)}."],
            )
            for metric in (*WITH_INTERVAL, *selective(report))
        ],
        shown_first=[shorten(row) for row in first],
        ridges=[Markup(figures.score_ridges(report, row, f"ridge{index}")) for index, row in enumerate(first)],
        legend=[
            (shorten(row), style.LIGHTENED.get(mark.colour, mark.colour), style.dash_array(mark.line, 2))
            for row, mark in figures.looks(report).items()
        ],
        rocs=_svgs(report, figures.roc_curves, ood_weights(report), "ROC curves"),
        tradeoffs=_svgs(report, figures.tradeoff, groups if labelled else (), "ID accuracy against AUROC"),
        thumbs=[(ids[name], url, max(report.thumbs[name].shape) <= TINY) for name, url in urls.items()],
        mistakes=[mistakes(report, row, ids) for row in first] if report.wrong else [],
        cost=cost_sentence(report),
        cost_table=cost_table(report, order),
        provenance=provenance_section(report),
        set_table=set_table(report),
        skipped={
            shorten(name): [f"{shorten(bad['item'], 120)}: {shorten(bad['reason'], 200)}" for bad in item.skipped[:100]]
            for name, item in report.sets.items()
            if item.skipped
        },
        options_table=options(report),
    )


def render_page(template: str, **values: Any) -> str:
    """Return a filled template; values are escaped unless they are markup."""
    from idness import __version__

    script, css = ((style.TEMPLATES / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    known = {"version": __version__, "script": Markup(script), "script_hash": digest, "css": Markup(css)}
    return style.templates().get_template(template).render(**known, **values)


def _svg(ax: Any, prefix: str, alt: str) -> Markup:
    svg = style.figure_svg(ax, alt=alt, prefix=prefix)
    for colour, lighter in style.LIGHTENED.items():
        svg = svg.replace(f": {colour}", f": {lighter}")
    return Markup(svg)  # matplotlib escapes names


def _svgs(report: Report, draw: Callable[[Report, str], Any], names: Iterable[str], words: str) -> list[Markup]:
    return [
        _svg(draw(report, name), f"{draw.__name__}{index}", f"{words}, {shorten(name)}; the tables have the numbers")
        for index, name in enumerate(names)
    ]


def facts(report: Report) -> list[tuple[str, str]]:
    """Return the numbers at the top of the page."""
    oods = ood_weights(report)
    return [
        ("ID accuracy", "–" if report.id_accuracy is None else f"{percentage(report.id_accuracy, 1)} %"),
        ("ID test images", f"{report.sets['id_test'].images:,}"),
        (f"OOD images in {len(oods)} sets", f"{sum(report.sets[name].images for name in oods):,}"),
        ("methods", str(len(report.methods))),
        ("settings tried", f"{sum(_tried(report, row) for row in report.methods):,}"),
        ("total time", duration(report.time["total"])),
    ]


def warnings(report: Report) -> list[str]:
    """Return cautions that a reader must know before relying on the numbers."""
    found = [*report.warnings, *left_out(report.failed)]
    found += describe_duplicates(report.duplicates)  # results of 0.1 do not include these
    return [shorten(line, 300) for line in dict.fromkeys(found)]


def cost_table(report: Report, order: Sequence[str]) -> Table:
    """Return the table of the time that each method took."""
    use, names = report.answer.use if report.answer else None, ("fit", "search", "score")
    headings = [Heading("method", best="ascending", words=True), Heading("options tried")]
    rows = []
    for row in order:
        spent = report.methods[row].seconds
        times = [*(spent.get(what, 0.0) for what in names), sum(spent.values())]
        cells = [Cell(duration(value), sort=f"{value:.6f}") for value in times]
        rows.append([Cell(shorten(row, 60), "use" if row == use else ""), Cell(str(_tried(report, row))), *cells])
    headings += [Heading(what, best="ascending") for what in (*names, "total")]
    return Table("Time per method", headings, rows, ["Time per method, over all images and all options tried."])


def cost_sentence(report: Report) -> str:
    """Return a summary of time and memory."""
    images, cached, network = (report.time[name] for name in ("images", "cached", "extract"))
    parts = []
    if images:
        speed = f"{duration(network)}, {images / network:,.0f} per second"
        parts.append(f"The network ran once over {images:,.0f} images in {speed}.")
    if cached:
        parts.append(f"Activations of {cached:,.0f} images were cached.")
    tried = sum(_tried(report, row) for row in report.methods)
    spent = sum(sum(item.seconds.values()) for item in report.methods.values())
    parts.append(f"All {len(report.methods)} methods at {tried} settings took {duration(spent)}.")
    if report.peak_memory:
        parts.append(f"Peak memory was {size(report.peak_memory)}.")
    return " ".join(parts)


def provenance_section(report: Report) -> list[tuple[str, str]]:
    """Return the facts needed to repeat the measurement."""
    model, told, engine = report.model, report.provenance, report.engine
    sizes = f"{model.parameters:,} parameters, {model.features} features, final layer {model.layer}"
    found = {
        "Command": told.get("command", "–"),
        "Date": told.get("date", "–"),
        "Seed": told.get("seed", "–"),
        "Network": f"{model.spec}, {sizes}",
        "Weights": f"{model.weights or 'as built'}, SHA-256 {model.weights_sha256}",
        "Preprocessing": _pairs(report.preprocessing),
        "Precision": f"{report.precision['used']}: {report.precision['why']}",
        "Engine": "{used} {version}, batches of {batch}: {why}".format(**engine) if engine else "",
        "Versions": _pairs(told.get("versions", {})),
        "Machine": _pairs(told.get("machine", {})),
        "FPR": f"{meaning('fpr_at_id_recall', report.recall)}; the other convention is in the tables by set",
    }
    return [(name, shorten(value, 400)) for name, value in found.items() if value != ""]


def set_table(report: Report) -> Table:
    """Return the table that describes every data set."""
    order: dict[str, Literal["", "ascending"]] = {"set": "ascending", "role": "ascending", "source": "", "SHA-256": ""}
    headings = [Heading(name, best=best, words=True) for name, best in order.items()]
    headings[2:2] = [Heading("images"), Heading("skipped")]
    rows = [
        [
            Cell(shorten(name)),
            Cell(shorten(item.role.replace("_", " ").replace("id", "ID").replace("ood", "OOD"))),
            Cell(f"{item.images:,}", sort=str(item.images)),
            Cell(str(len(item.skipped))),
            Cell(shorten(item.source, 80)),
            Cell(item.sha256[:16]),
        ]
        for name, item in report.sets.items()
    ]
    return Table("Data sets", headings, rows, ["The hash covers the contents of all images in order."])


def _tried(report: Report, row: str) -> int:
    return max(len(report.methods[row].tried), 1)


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {'none' if value is None else plain(value)}" for key, value in values.items()) or "–"


def shown_images(report: Report, rows: Sequence[str], budget: int = BUDGET) -> dict[str, Markup]:
    """Return the thumbnails of the page as data URLs, beginning with those of the first methods, within the budget."""
    wanted = [f"{e.set}/{e.index}" for row in rows for part in report.wrong.get(row, {}).values() for e in part]
    urls: dict[str, Markup] = {}
    for name in dict.fromkeys(wanted):
        if name in report.thumbs:
            stream = io.BytesIO()
            Image.fromarray(report.thumbs[name]).save(stream, "WEBP", quality=QUALITY)
            url = "data:image/webp;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
            budget -= len(url)
            if budget < 0:
                break
            urls[name] = Markup(url)
    return urls


def mistakes(report: Report, row: str, ids: Mapping[str, str]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return, with a title per group, the images with the worst scores of a method and their captions."""
    threshold = id_threshold(report.scores.of(row, "id_test"), report.recall)
    classes = dict(enumerate(shorten(name, 24) for name in report.benchmark.classes))
    found = []
    for group, entries in report.wrong.get(row, {}).items():
        is_id, shown = group == "id_test", []
        for entry in entries:
            accepted, words = entry.score >= threshold, classes.get(entry.predicted, f"class {entry.predicted}")
            if not is_id:
                words = f"{shorten(entry.set, 24)}, predicted {words}"
            elif entry.label is not None and entry.label != entry.predicted:
                words = f"{classes.get(entry.label, f'class {entry.label}')}, predicted {words}"
            score, verdict = f"{entry.score:.4g}", "accepted" if accepted else "flagged"
            alt = f"{shorten(entry.item, 60)} of {shorten(entry.set, 24)}: {words}; score {score}, {verdict}"
            caption = {"score": score, "verdict": verdict, "wrong": accepted != is_id, "words": words}
            shown.append({"thumb": ids.get(f"{entry.set}/{entry.index}"), "alt": alt, **caption})
        title = f"{sentence(shorten(group))} OOD images with the highest scores"
        found.append(("ID images with the lowest scores" if is_id else title, shown))
    return found
