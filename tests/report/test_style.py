from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest

from idness.report import style

DRAW = """
import numpy as np
from idness.report import style
figure, (left, right) = style.new_figure(1, 2)
rng = np.random.default_rng(0)
style.two_histograms(left, rng.normal(2, 1, 400), rng.normal(0, 1, 300), ("ID", "OOD"))
right.plot([1, 2, 3], label="a"); style.legend(right); style.headline(right, "title", x="x", y="y")
"""


def drawing() -> object:
    space: dict[str, object] = {}
    exec(DRAW, space)
    return space["figure"]


def test_the_same_figure_gives_the_same_bytes_in_another_process() -> None:
    here = style.figure_svg(drawing(), alt="a", prefix="p")
    code = DRAW + "import sys; sys.stdout.write(style.figure_svg(figure, alt='a', prefix='p'))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert here == there


def test_an_inlined_svg_is_xml_takes_the_pages_colour_and_escapes_its_alt_text() -> None:
    svg = style.figure_svg(drawing(), alt='a "quoted" <b>', prefix="one")
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == 'a "quoted" <b>'
    assert root.get("role") == "img"
    assert "currentColor" in svg
    assert style.INK not in svg
    ids = re.findall(r'\bid="([^"]+)"', svg)
    assert all(name.startswith("one-") for name in ids)
    assert len(ids) == len(set(ids))
    for target in re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", svg):
        assert (target[0] or target[1]) in ids


def test_save_writes_svg_and_png_on_white_and_leaves_nothing_else(tmp_path: Path) -> None:
    paths = style.save(drawing(), tmp_path / "a.b")
    assert [path.name for path in paths] == ["a.b.svg", "a.b.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.b.png", "a.b.svg"]
    assert paths[0].read_text().startswith("<?xml")
    assert style.PAPER in paths[0].read_text()
    assert paths[1].read_bytes()[:4] == b"\x89PNG"
    again = style.save(drawing(), tmp_path / "again")
    assert [a.read_bytes() for a in again] == [b.read_bytes() for b in paths]


def test_the_style_does_not_leak() -> None:
    before = dict(mpl.rcParams)
    drawing()
    assert dict(mpl.rcParams) == before


def test_marks_differ_in_more_than_colour() -> None:
    first = [style.mark(index) for index in range(2 * len(style.PALETTE))]
    assert len({(m.line, m.marker, m.hatch, m.colour) for m in first}) == len(first)
    assert len({m.marker for m in first[: len(style.PALETTE)]}) == len(style.PALETTE)


@pytest.mark.parametrize("second", [np.zeros(5), np.array([1.0])])
def test_constant_values_still_draw(second: np.ndarray) -> None:
    ax = style.two_histograms(style.axes_or_new(), np.zeros(5), second, ("a", "b"))
    assert "<svg" in style.figure_svg(ax)
