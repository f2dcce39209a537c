"""All analyses of the paper on a network and a benchmark: `idness analyze`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from idness.benchmark.protocol import Benchmark, Settings
from idness.core.errors import IdnessError, InputError
from idness.core.files import Content, OutputFolder
from idness.core.progress import Progress
from idness.core.text import sentence
from idness.core.types import is_signed
from idness.data import embedded
from idness.paper.studies import Study, StudyData, gaussian, load_study_data, scaling
from idness.report import style

STUDIES: dict[str, Callable[[StudyData], Study]] = {
    "Gaussianity": gaussian.gaussianity_study,
    "Mean and variance": gaussian.moments_study,
    "The proposition": gaussian.proposition_study,
    "Percentile": scaling.percentile_study,
    "Scale ratio": scaling.ratios,
    "Trade-off": scaling.tradeoff_study,
    "ISH": scaling.ish_study,
}
NUMBERS, PAGE = "analysis.json", "README.md"
OF_RELU, OF_SUMS = ("Gaussianity", "Mean and variance"), ("Percentile", "Scale ratio", "ISH")
"""Analyses of the inputs of the final ReLU, and analyses of sums of its outputs."""


@dataclass
class Analysis:
    """The results of all analyses; `save` writes figures, numbers and a Markdown page."""

    title: str
    about: dict[str, Any]
    studies: list[Study]

    def to_json(self) -> str:
        """Return all numbers as JSON."""
        values = {study.name: {"line": study.line} | study.numbers for study in self.studies}
        return json.dumps({"title": self.title} | self.about | {"analyses": values}, indent=1, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """Return a Markdown page with the figures."""
        counts = ", ".join(f"{name} {count:,}" for name, count in self.about["images"].items())
        made = f"Made by `{self.about['command']}`. " if self.about["command"] else ""
        few = f"; at most {self.about['limit']:,} of each set, evenly spaced" if self.about["limit"] else ""
        parts = [f"# {self.title}\n", f"{made}Images: {counts}{few}.\n"]
        for study in self.studies:
            pictures = "\n".join(f"![{alt}]({name}.svg)\n" for name, (_, alt) in study.figures.items())
            parts.append(f"## {study.name}\n\n{sentence(study.line)}.\n\n{pictures}")
        return "\n".join(part.rstrip() + "\n" for part in parts)

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write everything to a folder and return the paths."""
        contents: dict[str, Content] = {}
        for study in self.studies:
            for name, (figure, alt) in study.figures.items():
                contents |= style.figure_files(figure, name, alt=alt)
        return OutputFolder.of(folder).write({**contents, NUMBERS: self.to_json(), PAGE: self.to_markdown()})


def analyze(
    model: str | nn.Module | None = None,
    benchmark: Benchmark | str | Path = embedded.NAME,
    *,
    settings: Settings | None = None,
    limit: int | None = 1000,
    progress: Progress | None = None,
) -> Analysis:
    """Run every analysis of the paper on a network and a benchmark.

    Args:
        model: the network, or how to load it; by default the embedded one.
        benchmark: name, TOML file or object; missing sets are skipped.
        settings: weights, data folder and so on, as for a benchmark run.
        limit: maximum number of images per set, evenly spaced.
        progress: progress callback.
    """
    data = load_study_data(model, benchmark, settings, limit=limit, progress=progress)
    sizes = {name: len(acts) for name, acts in {"id": data.ids.acts, **data.oods}.items()}
    about: dict[str, Any] = {"images": sizes, "features": data.head.width, "classes": data.head.classes, "limit": limit}
    about |= {"command": settings.command if settings else "", "final_relu": data.ids.acts.rectifier or None}
    return Analysis(data.title, about, [_guarded(name, step, data) for name, step in STUDIES.items()])


def _guarded(name: str, step: Callable[[StudyData], Study], data: StudyData) -> Study:
    """Return the result of one analysis; if it does not apply, its line gives the reason."""
    try:
        if name in OF_RELU and data.ids.images is None:
            raise InputError("stored activations lack the inputs of the final ReLU; pass images and the network")
        if name in OF_RELU and not data.before_relu:
            raise InputError("the features are not the output of a single ReLU")
        if name in OF_SUMS and is_signed(data.ids.acts):
            raise InputError("some features are negative, so sums of them are meaningless")
        return replace(step(data), name=name)
    except IdnessError as error:
        return Study(f"does not apply: {error}", name=name)
