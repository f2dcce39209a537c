"""The style of all figures: colour-blind safe, distinguishable without colour, and byte-for-byte reproducible."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from idness.core.files import atomic_write

TEMPLATES = Path(__file__).parent / "templates"
INK = "#1b1f24"
"""Colour of text and axes; an inlined SVG uses the text colour of its page instead."""
MUTED = "#8a9099"
"""Colour of grid, reference lines and secondary text; readable on white and on near black."""
PAPER = "#ffffff"
ID_COLOUR = "#0072b2"
OOD_COLOUR = "#d55e00"

# The palette of Okabe and Ito without yellow (invisible on white) and black (invisible on black).
PALETTE = (ID_COLOUR, OOD_COLOUR, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", MUTED)
LIGHTENED = {colour: f"var(--{name}, {colour})" for name, colour in (("blue", ID_COLOUR), ("green", PALETTE[2]))}
"""The two darkest colours, which pages lighten in dark mode."""
FONTS = "'DejaVu Sans', Verdana, sans-serif"
LINES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.6)),
    (0, (1, 1.2)),
    (0, (5, 1.4, 1, 1.4)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (2, 2)),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_INKED = (
    "axes.labelcolor",
    "axes.titlecolor",
    "legend.labelcolor",
    "text.color",
    "xtick.labelcolor",
    "ytick.labelcolor",
)
_MUTED = ("axes.edgecolor", "grid.color", "xtick.color", "ytick.color")
_RC: dict[str, Any] = {
    **dict.fromkeys(_INKED, INK),
    **dict.fromkeys(_MUTED, MUTED),
    **dict.fromkeys(("axes.labelsize", "font.size"), 9),
    **dict.fromkeys(("legend.fontsize", "xtick.labelsize", "ytick.labelsize"), 8),
    **dict.fromkeys(("axes.axisbelow", "axes.grid", "figure.constrained_layout.use"), True),
    **dict.fromkeys(("axes.spines.right", "axes.spines.top", "legend.frameon"), False),
    **dict.fromkeys(("grid.linewidth", "hatch.linewidth"), 0.6),
    "axes.facecolor": "none",
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.facecolor": PAPER,
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so the layout is the same everywhere
    "grid.alpha": 0.28,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "patch.linewidth": 0.8,
    "savefig.dpi": 150,
    "svg.fonttype": "none",
    "svg.hashsalt": "idness",
}
_FONTS = re.compile(r"font-family: [^;\"]+")
_COORDINATES = re.compile(r'\b(?:d|x|y|transform)="[^"]+"')
_UNUSED = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)


class Mark(NamedTuple):
    """The appearance of one series: a colour and, so that it is distinguishable without it, a line style and a marker."""

    colour: str
    line: Any
    marker: str


def mark(index: int) -> Mark:
    """Return the mark of a series; colours repeat with other line styles and markers."""
    size = len(PALETTE)
    other = (index + index // size) % size
    return Mark(PALETTE[index % size], LINES[other], MARKERS[other])


def dash_array(line: Any, width: float) -> str:
    """Return a line style as an SVG stroke-dasharray for a line of this width."""
    return "" if isinstance(line, str) else " ".join(f"{width * part:g}" for part in line[1])


@cache
def templates() -> Environment:
    """Return the environment of the page templates, which escapes values by default."""
    blocks: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True}
    return Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, **blocks)


@contextmanager
def house_style() -> Iterator[None]:
    """Apply the style within the block; missing glyphs cause no warnings, since pages use other fonts."""
    with mpl.rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        yield


def new_figure(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (5.2, 3.2), layout: Any = None, **options: Any
) -> tuple[Any, Any]:
    """Return a new figure in the house style, outside pyplot, and its axes as `Figure.subplots` returns them."""
    with house_style():
        figure = Figure(figsize=size, layout=layout)
        return figure, figure.subplots(rows, columns, **options)


def axes_or_new(ax: Any = None, *, size: tuple[float, float] = (5.2, 3.2)) -> Any:
    """Return the given axes, or new ones in the house style."""
    return new_figure(size=size)[1] if ax is None else ax


def figure_of(ax: Any) -> Any:
    """Return the figure that axes belong to, or a figure itself."""
    return ax.get_figure(root=True)


def figure_svg(figure: Any, *, alt: str = "", prefix: str = "", adaptive: bool = True) -> str:
    """Return a figure, possibly given by its axes, as SVG text for a page; the bytes are reproducible.

    `prefix` starts every id, so that ids on a page are unique. An `adaptive` figure is transparent, with text in the page's colour.
    """
    stream = io.StringIO()
    with house_style():
        # A date or version in the file would make two equal runs differ.
        undated, ground = {"Date": None, "Creator": None}, "none" if adaptive else PAPER
        figure_of(figure).savefig(stream, format="svg", metadata=undated, facecolor=ground)
    text = _UNUSED.sub("", stream.getvalue())
    text = _FONTS.sub(f"font-family: {FONTS}", text[text.index("<svg") :])
    text = _COORDINATES.sub(lambda match: re.sub(r"(?<=\d\.\d)\d+", "", match[0]), text)  # a tenth of a point
    if adaptive:
        text = re.sub(r'<g id="[^"]*">', "<g>", text.replace(INK, "currentColor"))
    if prefix:
        text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    label = f' role="img" aria-label="{escape(alt, quote=True)}"' if alt else ' role="img"'
    text = text.replace("<svg", "<svg" + label, 1)
    return "\n".join(line.strip() for line in text.splitlines()) + "\n"


def save(figure: Any, path: str | Path, *, alt: str = "") -> list[Path]:
    """Write a figure, possibly given by its axes, as SVG and PNG, each atomically, and return both paths; `path` has no suffix."""
    files = figure_files(figure, Path(path).name, alt=alt)
    return [atomic_write(Path(path).with_name(name), content) for name, content in files.items()]


def figure_files(figure: Any, name: str, *, alt: str = "") -> dict[str, bytes]:
    """Return the contents of an SVG and a PNG file of a figure, by file name."""
    svg = '<?xml version="1.0" encoding="utf-8"?>\n' + figure_svg(figure, alt=alt, adaptive=False)
    png = io.BytesIO()
    with house_style():
        figure_of(figure).savefig(png, format="png", metadata={"Software": None}, facecolor=PAPER)
    return {f"{name}.svg": svg.encode(), f"{name}.png": png.getvalue()}


def draw_legend(ax: Any, *, outside: bool = False, **options: Any) -> Any:
    """Add a legend without a frame, next to the axes if `outside`."""
    beside = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0} if outside else {}
    with house_style():
        return ax.legend(**beside, **options)


def headline(ax: Any, title: str, *, x: str = "", y: str = "", at_top: bool = False) -> Any:
    """Set title and axis labels; `at_top` fixes the position of the title, which saves time."""
    with house_style():
        ax.set_title(title, y=1.0 if at_top else None)
        ax.set_xlabel(x)
        ax.set_ylabel(y)
    return ax


def shared_bins(sides: Sequence[NDArray[Any]], count: int) -> NDArray[Any]:
    """Return the edges of common bins; the outer percent on either side goes into the outermost bins, to not squeeze the rest."""
    lows, highs = zip(*(np.percentile(side, [1, 99]) for side in sides), strict=True)
    low, high = float(min(lows)), float(max(highs))
    alike = high - low <= 1e-12 * max(abs(low), abs(high))
    return np.linspace(low, low + max(1.0, 0.001 * abs(low)) if alike else high, count + 1)


def two_histograms(ax: Any, first: ArrayLike, second: ArrayLike, labels: tuple[str, str]) -> Any:
    """Draw ID and OOD values as histograms over common bins: ID plain and blue, OOD hatched and orange."""
    sides = [np.asarray(first, float), np.asarray(second, float)]
    edges = shared_bins(sides, int(np.clip(np.sqrt(min(map(len, sides))), 12, 50)))
    looks = ((ID_COLOUR, "", LINES[0]), (OOD_COLOUR, "////", LINES[1]))
    with house_style():
        for values, label, (colour, hatch, line) in zip(sides, labels, looks, strict=True):
            heights = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / (
                len(values) * (edges[1] - edges[0])
            )
            ax.stairs(heights, edges, fill=True, color=colour, alpha=0.22, linewidth=0)
            if hatch:
                # Drawn separately, because in SVG the hatch of a coloured patch has the colour of the patch.
                ax.stairs(heights, edges, fill=True, facecolor="none", edgecolor=colour, hatch=hatch, linewidth=0)
            ax.stairs(heights, edges, color=colour, linestyle=line, linewidth=1.6, label=label)
        ax.set_yticks([])
        ax.grid(False)
    return ax
