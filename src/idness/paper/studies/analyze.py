"""Runs every analysis on a network and a benchmark: `idness analyze`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from idness.benchmark.protocol import Benchmark
from idness.benchmark.settings import Settings
from idness.core.errors import IdnessError
from idness.core.files import Content, OutputFolder
from idness.core.progress import Listener
from idness.data import embedded
from idness.paper.studies import gaussianity, ish_weights, moments, percentiles, proposition, ratios, tradeoff
from idness.paper.studies.specimen import Specimen, Study, take_specimen
from idness.report import style

STUDIES: dict[str, Callable[[Specimen], Study]] = {
    "Gaussianity": gaussianity.study,
    "Mean and variance": moments.study,
    "The proposition": proposition.study,
    "Percentile": percentiles.study,
    "Scale ratio": ratios.study,
    "Trade-off": tradeoff.study,
    "ISH": ish_weights.study,
}
NUMBERS, PAGE = "analysis.json", "README.md"
OF_RELU, OF_SUMS = ("Gaussianity", "Mean and variance"), ("Percentile", "Scale ratio", "ISH")
"""The analyses of what enters the final ReLU, and those of sums of what leaves it."""


@dataclass
class Analysis:
    """Collects what all analyses found; `save` writes figures, numbers and a page of Markdown."""

    title: str
    about: dict[str, Any]
    studies: list[Study]

    def to_json(self) -> str:
        """Write all numbers as JSON."""
        values = {study.name: {"line": study.line} | study.numbers for study in self.studies}
        return json.dumps({"title": self.title} | self.about | {"analyses": values}, indent=1, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """Write what was found, with the figures."""
        parts = [f"# {self.title}\n", self._source()]
        for study in self.studies:
            pictures = "\n".join(f"![{alt}]({name}.svg)\n" for name, (_, alt) in study.figures.items())
            parts.append(f"## {study.name}\n\n{study.line[:1].upper()}{study.line[1:]}.\n\n{pictures}")
        return "\n".join(part.rstrip() + "\n" for part in parts)

    def _source(self) -> str:
        """Say what made the numbers, of how many images, and why others may differ."""
        counts = ", ".join(f"{name} {count:,}" for name, count in self.about["images"].items())
        made = f"Made by `{self.about['command']}`. " if self.about.get("command") else ""
        limit = self.about.get("limit") or max(self.about["images"].values()) + 1
        if max(self.about["images"].values()) < limit:
            few = "; all of each set, as `idness bench` takes them, so that plain AUROCs agree with its own"
        else:
            few = f"; at most {limit:,} of a set, evenly picked, so that numbers differ from those of all images"
        return f"{made}Images: {counts}{few}.\n"

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write everything into a folder and give the paths."""
        contents: dict[str, Content] = {}
        for study in self.studies:
            for name, (figure, alt) in study.figures.items():
                contents |= style.figure_files(figure, name, alt=alt)
        return analysis_folder(folder).write({**contents, NUMBERS: self.to_json(), PAGE: self.to_markdown()})


def analysis_folder(path: str | os.PathLike[str], *, force: bool = False) -> OutputFolder:
    """Return the output folder of an analysis."""
    return OutputFolder.of(path, _written, force=force)


def _written(folder: Path) -> list[str]:
    """Return the names of the files that an analysis of 0.1.0 consists of; empty if the folder has none."""
    try:
        if "analyses" not in json.loads((folder / NUMBERS).read_bytes()):
            return []
        shown = re.findall(r"^!\[.*\]\((.+)\.svg\)$", (folder / PAGE).read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, ValueError, TypeError):
        return []
    return [NUMBERS, PAGE, *(f"{name}.{kind}" for name in shown for kind in ("svg", "png"))]


def analyze(
    model: str | nn.Module | None = None,
    benchmark: Benchmark | str | Path = embedded.NAME,
    *,
    settings: Settings | None = None,
    limit: int | None = 1000,
    listener: Listener | None = None,
) -> Analysis:
    """Run every analysis of the paper on a network and a benchmark.

    Args:
        model: the network, or how to load it; the embedded one if not given.
        benchmark: by name, TOML file or object; sets that are not there are left out.
        settings: weights, data folder and the like, as for the benchmark.
        limit: the most images used of each set, evenly picked.
        listener: hears of progress.
    """
    specimen = take_specimen(model, benchmark, settings=settings, limit=limit, listener=listener)
    sizes = {name: len(found.acts) for name, found in {"id": specimen.ids, **specimen.oods}.items()}
    about: dict[str, Any] = {"images": sizes, "features": specimen.head.width, "classes": specimen.head.classes}
    about |= {"limit": limit, "command": settings.command if settings else ""}
    about["final_relu"] = specimen.ids.acts.rectifier or None
    return Analysis(specimen.title, about, [_guarded(name, step, specimen) for name, step in STUDIES.items()])


def _guarded(name: str, step: Callable[[Specimen], Study], specimen: Specimen) -> Study:
    """Let one analysis that does not apply say so, and the others go on."""
    try:
        found = Study(reason) if (reason := _inapplicable(name, specimen)) else step(specimen)
    except IdnessError as error:
        found = Study(f"not done: {error}")
    return replace(found, name=name)


def _inapplicable(name: str, specimen: Specimen) -> str:
    if name in OF_RELU and specimen.ids.images is None:
        return "does not apply: activations do not hold what entered the final ReLU; give images and the network"
    if name in OF_RELU and not specimen.before_relu:
        return "does not apply: the features do not come out of a single ReLU"
    if name in OF_SUMS and specimen.signed:
        return "does not apply: features are negative in part, so sums of them mean nothing"
    return ""
