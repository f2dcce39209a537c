from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest

from idness.benchmark.results import Report, ScoreArrays, best_first, ood_weights
from idness.core.text import percentage
from idness.metrics import auroc, id_threshold
from idness.report import figures, style, tables
from idness.report.figures import score_ridges

SVG = "{http://www.w3.org/2000/svg}"
DRAWINGS: dict[str, Callable[..., Any]] = {
    "roc": lambda report, ax=None: figures.roc_curves(report, "pale", ax=ax),
    "some rocs": lambda report, ax=None: figures.roc_curves(report, "pale", ["ash-p", "knn"], ax=ax),
    "trade-off": lambda report, ax=None: figures.tradeoff(report, "near", ax=ax),
    "ranking": lambda report, ax=None: figures.ranking(report, ax=ax),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_each_figure_draws_on_given_axes_and_is_reproducible(name: str, report: Report) -> None:
    _, ax = style.new_figure()
    assert DRAWINGS[name](report, ax=ax) is ax
    texts = [style.figure_svg(DRAWINGS[name](report), alt="a", prefix="p") for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(texts[0]) < 60_000


def test_a_roc_curve_has_the_area_of_its_auroc(report: Report) -> None:
    accepted, kept = figures._roc(report, "ebo", "mixed")
    order = np.lexsort((kept, accepted))
    area = np.trapezoid(kept[order], accepted[order])
    expected = auroc(report.scores.of("ebo", "id_test"), report.scores.of("ebo", "mixed"))
    assert area == pytest.approx(expected, abs=2e-3)


def test_the_recommended_the_best_and_well_known_methods_are_highlighted(report: Report) -> None:
    looks = figures.looks(report)
    chosen = list(looks)
    assert report.answer is not None
    assert chosen[0] == report.answer.use
    assert best_first(report)[0] in chosen
    for group in ("near", "far"):
        assert max(report.methods, key=lambda row: report.methods[row].groups[group].auroc) in chosen
    assert len(chosen) == figures.HIGHLIGHTED
    assert len({look.colour for look in looks.values()}) == len({look.marker for look in looks.values()}) == len(chosen)
    ranking = figures.ranking(report)
    assert ranking.get_xlim()[1] <= 100
    labels = ranking.get_yticklabels()
    assert [label.get_text() for label in labels if label.get_fontweight() == "bold"] == [report.answer.use]


def test_a_degenerate_method_is_last_whatever_its_mean(report: Report) -> None:
    first = best_first(report)[0]
    methods = report.methods | {first: dataclasses.replace(report.methods[first], degenerate=True)}
    spoilt = dataclasses.replace(report, methods=methods)
    assert figures.ranking(spoilt).get_yticklabels()[0].get_text() == first  # the lowest line
    assert [row[0].text for row in tables.summary(spoilt).rows][-1] == first


def test_values_outside_a_histogram_are_in_its_outermost_bins() -> None:
    inside = np.linspace(0, 1, 995)
    ax = style.two_histograms(style.axes_or_new(), inside, np.concatenate([inside, [50.0] * 5]), ("ID", "OOD"))
    assert ax.get_xlim()[1] < 50
    heights, edges, _ = ax.patches[2].get_data()
    assert (heights * np.diff(edges)).sum() == pytest.approx(1)


def with_scores(report: Report, ids: Any, **sets: Any) -> Report:
    """The report with other OOD sets, and the scores of `scale` alone."""
    other = copy.deepcopy(report)
    one = next(iter(other.methods["scale"].sets.values()))
    other.benchmark.groups = {"near": list(sets)}
    other.methods["scale"].sets = dict.fromkeys(sets, one)
    arrays = {"id_test": ids} | sets
    scores = {f"scores/scale/{name}": np.asarray(array) for name, array in arrays.items()}
    other.__dict__["scores"] = ScoreArrays(scores)
    return other


def ridges(report: Report, prefix: str = "p") -> ElementTree.Element:
    text = score_ridges(report, "scale", prefix)
    assert not re.search(r"\b(nan|inf)\b", text)
    assert style.INK not in text
    assert text.count(style.ID_COLOUR) == text.count(f"var(--blue, {style.ID_COLOUR})") > 0
    made, used = re.findall(r'id="([^"]+)"', text), re.findall(r'(?:href="|url\()#([^")]+)', text)
    assert set(made) == set(used)
    assert len(made) == len(set(made))
    assert all(name.startswith(f"{prefix}-") for name in made)
    return ElementTree.fromstring(text)


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]


def corners(path: str) -> list[tuple[float, float]]:
    x, y, found = 0.0, 0.0, []
    for command, value in re.findall(r"([MHV])([-\d. ]+)", path):
        numbers = [float(part) for part in value.split()]
        x, y = numbers if command == "M" else (numbers[0], y) if command == "H" else (x, numbers[0])
        found.append((x, y))
    return found


def test_ridges_have_one_histogram_per_set_over_the_id_outline(report: Report) -> None:
    root = ridges(report)
    names = list(ood_weights(report))
    ood = next(each for each in root.iter(f"{SVG}g") if each.get("id") == "p-ood")
    assert len(list(ood)) == len(names)
    labels = texts(root)
    assert ["ID test", *names] == [label for label in labels if label in {"ID test", *names}]
    for name in names:
        assert f"{percentage(report.methods['scale'].sets[name].fpr_at_id_recall, 1)} %" in labels
    assert (root.get("aria-label") or "").startswith("Histograms of the scores of scale")


def test_ridges_are_highest_where_the_scores_are(report: Report) -> None:
    rng = np.random.default_rng(0)
    sets = {"left": rng.normal(-4, 0.3, 900), "right": rng.normal(4, 0.3, 900)}
    other = with_scores(report, rng.normal(0, 1, 900), **sets)
    root = ridges(other)
    paths = [path.get("d") or "" for path in root.iter(f"{SVG}path")]
    ticks = {float(text.get("x", 0)): float((text.text or "").replace("−", "-")) for text in root.iter(f"{SVG}text")
             if re.fullmatch(r"[−\d.]+", text.text or "")}  # fmt: skip
    slope, start = np.polyfit(list(ticks), list(ticks.values()), 1)
    for path, centre in zip(paths[:3], [0.0, -4.0, 4.0], strict=True):
        top = min(y for _, y in corners(path))
        assert any(abs(slope * x + start - centre) < 0.6 for x, y in corners(path) if y == top)
    [threshold] = [path for path in root.iter(f"{SVG}path") if "dasharray" in path.get("style", "")]
    x = corners(threshold.get("d") or "")[0][0]
    assert slope * x + start == pytest.approx(id_threshold(other.scores.of("scale", "id_test")), abs=0.05)


def test_ridges_of_unusual_scores_and_names(report: Report) -> None:
    for value in (0.0, -7.5, 1e30, 1e-30):
        alike = np.full(50, value, np.float32)
        assert len(list(ridges(with_scores(report, alike, same=alike)).iter(f"{SVG}path"))) >= 4
    ridges(with_scores(report, [0.5], one=[0.25]))
    close = 1 - 1e-6 * np.random.default_rng(1).random(200)
    labels = texts(ridges(with_scores(report, close, other=close - 1e-6)))
    assert len(labels) - len(set(labels)) <= 1  # ticks differ
    assert any("e" in label and label[0] in "+−1" for label in labels)  # the common offset
    far = with_scores(report, np.concatenate([[-1e6], np.linspace(0, 1, 400)]), far=np.linspace(0, 1, 400))
    far.recall = 0.999
    assert not [path for path in ridges(far).iter() if "dasharray" in path.get("style", "")]
    names = ["<a&b>", "\"quoted'", "$x$ \\y", "z" * 60]
    labels = texts(ridges(with_scores(report, close, **dict.fromkeys(names, close))))
    assert [label for label in labels if label in names[:3]] == names[:3]
    assert "z" * 15 + "…" in labels


def test_an_inlined_svg_uses_the_pages_colour_and_escapes(report: Report) -> None:
    before = dict(mpl.rcParams)
    svg = style.figure_svg(DRAWINGS["roc"](report), alt='a "quoted" <b>', prefix="one")
    assert dict(mpl.rcParams) == before
    assert ElementTree.fromstring(svg).get("aria-label") == 'a "quoted" <b>'
    assert "currentColor" in svg
    assert style.INK not in svg
    ids = re.findall(r'\bid="([^"]+)"', svg)
    assert all(name.startswith("one-") for name in ids)
    assert len(ids) == len(set(ids))
    for target in re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", svg):
        assert (target[0] or target[1]) in ids


def test_save_writes_svg_and_png_on_white_and_nothing_else(report: Report, tmp_path: Path) -> None:
    paths = style.save(DRAWINGS["roc"](report), tmp_path / "a.b")
    assert sorted(tmp_path.iterdir()) == sorted(paths) == [tmp_path / "a.b.png", tmp_path / "a.b.svg"]
    assert paths[0].read_text().startswith("<?xml")
    assert style.PAPER in paths[0].read_text()
    assert paths[1].read_bytes()[:4] == b"\x89PNG"


def test_marks_differ_in_more_than_colour() -> None:
    first = [style.mark(index) for index in range(2 * len(style.PALETTE))]
    assert len(set(first)) == len(first)
