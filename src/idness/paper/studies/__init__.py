"""The paper's analyses: their input and output types, and shared figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from idness.activations.extract import collect
from idness.benchmark.extraction import benchmark_network
from idness.benchmark.protocol import GROUPS, Benchmark, Settings
from idness.core.progress import Progress
from idness.core.types import Activations, Head
from idness.data.activations import ActivationsSet
from idness.metrics import Scores, auroc
from idness.report import style


@dataclass
class Study:
    """The result of one analysis: a line of text, numbers, and figures with descriptions, by file name."""

    line: str
    numbers: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, tuple[Any, str]] = field(default_factory=dict)
    name: str = ""


@dataclass
class StudyData:
    """A network's head and activations on the sets of a benchmark; `ids` is the ID test set, `groups` contains near and far OOD sets."""

    title: str
    head: Head
    ids: ActivationsSet
    groups: dict[str, dict[str, Activations]]
    train: ActivationsSet | None = None
    val: ActivationsSet | None = None
    ood_val: dict[str, Activations] = field(default_factory=dict)

    @property
    def oods(self) -> dict[str, Activations]:
        """All OOD test sets, near ones first."""
        return {name: acts for members in self.groups.values() for name, acts in members.items()}

    @property
    def before_relu(self) -> dict[str, Tensor]:
        """The pre-ReLU values (N, D) of the ID set, which comes first, and of all OOD sets; empty if there is no final ReLU."""
        found = {name: acts.pre_relu for name, acts in ({self.ids.name: self.ids.acts} | self.oods).items()}
        known = {name: values for name, values in found.items() if values is not None}
        return known if len(known) == len(found) else {}


def load_study_data(
    model: str | nn.Module | None,
    benchmark: Benchmark | str | Path,
    settings: Settings | None = None,
    *,
    limit: int | None = None,
    progress: Progress | None = None,
) -> StudyData:
    """Return the activations of a network on the available sets of a benchmark, for at most `limit` images of each."""
    asked, report = settings or Settings(), progress or Progress()
    bench = benchmark if isinstance(benchmark, Benchmark) else Benchmark.load(benchmark)
    sets = bench.open(asked.data, partial=True)
    head, network, info = benchmark_network(bench, sets, model, asked, report)
    known: dict[str, ActivationsSet] = {}
    others: dict[str, dict[str, Activations]] = {}
    for entry in sets:
        shown = "ID" if entry.role == "id_test" else entry.name
        part = collect(network, entry.data, name=shown, limit=limit, pre_relu=True, progress=report)
        if entry.role.startswith("id_"):
            known[entry.role] = part
        else:
            others.setdefault(entry.role, {})[entry.name] = part.acts
    ids, train, val = known["id_test"], known.get("id_train"), known.get("id_val")
    groups = {group: others[group] for group in GROUPS if group in others}
    return StudyData(f"{info.spec} on {bench.title}", head, ids, groups, train, val, others.get("ood_val", {}))


def panels(names: Sequence[str]) -> tuple[Any, list[Any]]:
    """Return a figure with one panel per name, at most four in a row, and the panels."""
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    figure, axes = style.new_figure(rows, columns, size=(2.9 * columns, 2.35 * rows), squeeze=False)
    for spare in axes.flat[len(names) :]:
        spare.remove()
    return figure, list(axes.flat[: len(names)])


def plot_chances(ids: Scores, oods: Mapping[str, Scores], word: str, x: str) -> tuple[Any, dict[str, float]]:
    """Draw histograms of a quantity, ID against each OOD set, and return the probability that an ID image has the larger value."""
    chances = {name: auroc(ids, values) for name, values in oods.items()}
    figure, axes = panels(list(oods))
    for place, (ax, (name, values)) in enumerate(zip(axes, oods.items(), strict=True)):
        style.two_histograms(ax, ids, values, ("ID", "OOD"))
        if place == 0:
            style.draw_legend(ax, fontsize=7)
        style.headline(ax, f"{name}: ID {word} {100 * chances[name]:.0f} %", x=x)
    return figure, chances


def count_larger(chances: Mapping[str, float]) -> str:
    """Return a text with the number of sets on which ID images are likelier to have the larger value, and the probabilities."""
    larger = sum(chance > 0.5 for chance in chances.values())
    listed = ", ".join(f"{name} {100 * chance:.0f} %" for name, chance in chances.items())
    return f"{larger} of {len(chances)} sets ({listed} of pairs)"
