"""What the analyses look at: a network's activations on the sets of a benchmark, and what each analysis hands back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from idness.activations.extract import collect
from idness.benchmark.prepare import prepare
from idness.benchmark.protocol import GROUPS, Benchmark
from idness.benchmark.settings import Settings
from idness.core.progress import Listener
from idness.core.types import Head
from idness.data import ActivationsSet
from idness.metrics import Scores, auroc
from idness.report import style

COLUMNS = 4


@dataclass
class Study:
    """Reports what one analysis found: a line of words, numbers, and figures by file name with what they show."""

    line: str
    numbers: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, tuple[Any, str]] = field(default_factory=dict)
    name: str = ""


@dataclass
class Specimen:
    """Keeps all that the analyses look at: a network's head, and activations of ID and OOD sets; `ids` is the ID test set."""

    title: str
    head: Head
    ids: ActivationsSet
    near: dict[str, ActivationsSet] = field(default_factory=dict)
    far: dict[str, ActivationsSet] = field(default_factory=dict)
    train: ActivationsSet | None = None
    val: ActivationsSet | None = None
    ood_val: dict[str, ActivationsSet] = field(default_factory=dict)
    classes: Sequence[str] = ()

    @property
    def oods(self) -> dict[str, ActivationsSet]:
        """All OOD test sets, near ones first."""
        return self.near | self.far

    @property
    def signed(self) -> bool:
        """Whether features are below zero, so that sums of them mean nothing."""
        return float(self.ids.acts.features.min()) < -1e-6 * float(self.ids.acts.features.abs().max())

    @property
    def groups(self) -> dict[str, dict[str, ActivationsSet]]:
        """The OOD test sets by group; only groups that have any."""
        return {group: getattr(self, group) for group in GROUPS if getattr(self, group)}

    @property
    def before_relu(self) -> list[ActivationsSet]:
        """ID and all OOD sets with their pre-ReLU values; none where the network has no final ReLU."""
        found = [self.ids, *self.oods.values()]
        return found if all(part.acts.pre_relu is not None for part in found) else []


def take_specimen(
    model: str | nn.Module | None,
    benchmark: Benchmark | str | Path,
    *,
    settings: Settings | None = None,
    limit: int | None = None,
    listener: Listener | None = None,
) -> Specimen:
    """Load the network, open the sets that are there and run them through it."""
    asked, hear = settings or Settings(), listener or Listener()
    bench = benchmark if isinstance(benchmark, Benchmark) else Benchmark.load(benchmark)
    sets = bench.open(asked.data, partial=True)
    ready = prepare(bench, sets, model, asked, hear)
    found: dict[str, dict[str, ActivationsSet]] = {}
    for entry in sets:
        shown = "ID" if entry.role == "id_test" else entry.name
        part = collect(ready.network, entry.data, name=shown, limit=limit, pre_relu=True, listener=hear)
        found.setdefault(entry.role, {})[entry.name] = part
    one = {role: next(iter(parts.values())) for role, parts in found.items() if role.startswith("id_")}
    known = None if ready.network is None else ready.network.class_names
    names = known or bench.class_names or (one["id_test"].images.classes if one["id_test"].images is not None else ())
    return Specimen(
        f"{ready.info.spec} on {bench.title}",
        ready.head,
        one["id_test"],
        near=found.get("near", {}),
        far=found.get("far", {}),
        train=one.get("id_train"),
        val=one.get("id_val"),
        ood_val=found.get("ood_val", {}),
        classes=names,
    )


def plot_chances(ids: Scores, oods: Mapping[str, Scores], word: str, x: str) -> tuple[Any, dict[str, float]]:
    """Draw histograms of a number, ID against each OOD set, and give the chances that an ID image has the larger one."""
    chances = {name: auroc(ids, values) for name, values in oods.items()}
    columns = min(COLUMNS, len(oods))
    rows = -(-len(oods) // columns)
    figure, axes = style.new_figure(rows, columns, size=(2.9 * columns, 2.35 * rows), squeeze=False)
    for spare in axes.flat[len(oods) :]:
        spare.remove()
    for place, (ax, (name, values)) in enumerate(zip(axes.flat, oods.items(), strict=False)):
        style.two_histograms(ax, ids, values, ("ID", "OOD"))
        if place == 0:
            style.legend(ax, fontsize=7)
        style.headline(ax, f"{name}: ID {word} {100 * chances[name]:.0f} %", x=x)
    return figure, chances


def counted(chances: Mapping[str, float]) -> str:
    """Say on how many sets ID images are likelier to have the larger number, and how likely on each."""
    larger = sum(chance > 0.5 for chance in chances.values())
    listed = ", ".join(f"{name} {100 * chance:.0f} %" for name, chance in chances.items())
    return f"{larger} of {len(chances)} sets ({listed} of pairs)"
