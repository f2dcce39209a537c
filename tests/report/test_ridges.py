from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from idness.benchmark.ranking import ood_weights
from idness.benchmark.results import Report, Scores
from idness.core.wording import percent
from idness.metrics import id_threshold
from idness.report import style
from idness.report.ridges import outline, picture, ridges_of, score_ridges, tenth

SVG = "{http://www.w3.org/2000/svg}"


def with_scores(report: Report, ids: Any, **sets: Any) -> Report:
    """The report with other OOD sets, and the scores of `scale` alone."""
    other = copy.deepcopy(report)
    one = next(iter(other.methods["scale"].sets.values()))
    other.benchmark.groups = {"near": list(sets)}
    other.methods["scale"].sets = dict.fromkeys(sets, one)
    arrays = {"id_test": ids} | sets
    other.__dict__["scores"] = Scores({f"scores/scale/{name}": np.asarray(array) for name, array in arrays.items()})
    return other


def drawn_svg(report: Report, row: str = "scale", prefix: str = "p") -> tuple[str, ElementTree.Element]:
    text = score_ridges(report, row, prefix)
    assert not re.search(r"\b(nan|inf)\b", text)
    return text, ElementTree.fromstring(text)


def texts(root: ElementTree.Element) -> list[str]:
    return ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]


def points(path: str) -> list[tuple[float, float]]:
    """The corners of a path of steps."""
    x, y, found = 0.0, 0.0, []
    for command, value in re.findall(r"([MHV])([-\d. ]+)", path):
        numbers = [float(part) for part in value.split()]
        x, y = numbers if command == "M" else (numbers[0], y) if command == "H" else (x, numbers[0])
        found.append((x, y))
    return found


def tallest(path: str) -> tuple[float, float]:
    """Where the highest step of a ridge begins and ends."""
    found = points(path)
    top = min(y for _, y in found)
    return min(x for x, y in found if y == top), max(x for x, y in found if y == top)


def test_there_is_one_ridge_for_each_set_and_the_outline_of_id_behind_it(report: Report) -> None:
    text, root = drawn_svg(report)
    names = list(ood_weights(report))
    ood = next(each for each in root.iter(f"{SVG}g") if each.get("id") == "p-ood")
    assert len(list(ood)) == len(names)
    assert text.count('<use href="#p-id" y=') == len(names)
    labels = texts(root)
    assert ["ID test", *names] == [label for label in labels if label in {"ID test", *names}]
    for name in names:
        assert f"{percent(report.methods['scale'].sets[name].fpr_at_id_recall, 1)} %" in labels
    assert root.get("role") == "img"
    assert (root.get("aria-label") or "").startswith("Histograms of the scores of scale")


def test_a_ridge_is_highest_where_its_scores_are(report: Report) -> None:
    rng = np.random.default_rng(0)
    sets = {"left": rng.normal(-4, 0.3, 900), "right": rng.normal(4, 0.3, 900)}
    other = with_scores(report, rng.normal(0, 1, 900), **sets)
    found = ridges_of(other, "scale")
    places = picture(found)
    low, high = found.limits
    left, right = float(places["left"]), float(places["right"])
    for path, centre in zip([places["ids"], *places["oods"]], [0.0, -4.0, 4.0], strict=True):
        begin, end = (low + (high - low) * (x - left) / (right - left) for x in tallest(path))
        assert begin - 0.6 < centre < end + 0.6
    expected = left + (right - left) * (id_threshold(other.scores.of("scale", "id_test")) - low) / (high - low)
    assert float(places["threshold"]) == pytest.approx(expected, abs=0.06)
    feet = [max(y for _, y in points(path)) for path in [places["ids"], *places["oods"]]]
    assert np.diff(feet) == pytest.approx(np.diff(feet)[0], abs=0.11)
    assert [float(down) for down in places["downs"]] == pytest.approx(np.array(feet[1:]) - feet[0], abs=0.11)


def test_scores_are_counted_as_a_histogram_counts_them(report: Report) -> None:
    found = ridges_of(report, "scale")
    for name, heights in zip(["id_test", *ood_weights(report)], found.heights, strict=True):
        counts = np.histogram(report.scores.of("scale", name).astype(float), found.edges)[0]
        assert heights == pytest.approx(0.88 * counts / counts.max())


@pytest.mark.parametrize("value", [0.0, -7.5, 1e30, 1e-30])
def test_scores_that_are_all_equal_have_a_picture(report: Report, value: float) -> None:
    alike = np.full(50, value, np.float32)
    _, root = drawn_svg(with_scores(report, alike, same=alike))
    assert len(list(root.iter(f"{SVG}path"))) >= 4


def test_scores_that_differ_little_have_ticks_that_differ(report: Report) -> None:
    rng = np.random.default_rng(1)
    ids = 1 - 1e-6 * rng.random(200)
    places = picture(ridges_of(with_scores(report, ids, other=ids - 1e-6), "scale"))
    words = [word for _, word in places["ticks"]]
    assert len(set(words)) == len(words) >= 3
    assert places["factor"]
    assert places["factor"] in texts(drawn_svg(with_scores(report, ids, other=ids - 1e-6))[1])


def test_a_threshold_beyond_the_axis_is_not_drawn(report: Report) -> None:
    ids = np.concatenate([[-1e6], np.linspace(0, 1, 400)])
    other = with_scores(report, ids, far=np.linspace(0, 1, 400))
    other.recall = 0.999
    assert picture(ridges_of(other, "scale"))["threshold"] == ""
    assert "stroke-dasharray" not in drawn_svg(other)[0]
    assert "stroke-dasharray" in drawn_svg(report)[0]


def test_names_stay_text_and_as_they_are(report: Report) -> None:
    names = ["<a&b>", "\"quoted'", "$x$ \\y", "z" * 60]
    values = np.linspace(0, 1, 40)
    text, root = drawn_svg(with_scores(report, values, **dict.fromkeys(names, values)))
    assert [label for label in texts(root) if label in names[:3]] == names[:3]
    assert "z" * 23 + "…" in texts(root)
    assert "<a&b>" not in text
    assert '"<a&b>' in f'"{root.get("aria-label")}'.replace("passes: ", '"')


def test_ids_begin_with_the_prefix_and_every_one_that_is_used_is_there(report: Report) -> None:
    for prefix in ("ridge0", "ridge1"):
        text, _ = drawn_svg(report, prefix=prefix)
        made, used = re.findall(r'id="([^"]+)"', text), re.findall(r'(?:href="|url\()#([^")]+)', text)
        assert set(made) == set(used)
        assert len(made) == len(set(made))
        assert all(name.startswith(f"{prefix}-") for name in made)


def test_one_image_makes_a_picture(report: Report) -> None:
    text, _ = drawn_svg(with_scores(report, [0.5], one=[0.25]))
    assert text.count("<path") == 5  # ID, OOD, hatch, threshold and axis


def test_colours_are_those_of_the_page_in_light_and_in_dark(report: Report) -> None:
    text, _ = drawn_svg(report)
    assert style.INK not in text
    assert "currentColor" in text
    assert text.count(style.ID_COLOUR) == text.count(f"var(--blue, {style.ID_COLOUR})") > 0


@pytest.mark.parametrize(
    ("heights", "path"),
    [([0, 0, 0], "M0 10H3"), ([1, 1, 0], "M0 10V0H2V10H3"), ([0, 0.5, 1], "M0 10H1V5H2V0H3V10"), ([1], "M0 10V0H1V10")],
)
def test_an_outline_has_no_corner_that_is_none(heights: Sequence[float], path: str) -> None:
    assert outline([str(edge) for edge in range(len(heights) + 1)], heights, 10.0, 10.0) == path


def test_places_are_written_to_a_tenth() -> None:
    assert [tenth(value) for value in (3.0, 3.14, -0.25, 100.96)] == ["3", "3.1", "-0.2", "101"]


def test_the_share_of_scores_outside_the_axis_is_stated(report: Report) -> None:
    stated = re.search(r"; ([\d.]+) % beyond$", ridges_of(report, "scale").words)
    assert stated is not None
    assert 0 < float(stated[1]) <= 2
