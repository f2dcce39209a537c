"""Finds the data and weights of the paper's tables on disk, and says how to get what is not there."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from idness.activations.store import FeatureStore
from idness.benchmark.protocol import GROUPS, Benchmark
from idness.core.errors import IdnessError
from idness.data import ActivationsFile, ImageSet, open_set

TRAIN_SAMPLE, PER_CLASS = 2000, 50
"""Training images that rows learn from, at least and for each class: enough for the covariance of 2,048 features of ImageNet's
1,000 classes to have full rank, and quick on a CPU for CIFAR."""
BORROWED = {"cifar100": "cifar10"}
"""Benchmarks that share OOD sets with another."""


@dataclass(frozen=True)
class Missing:
    """Names a set, or `weights`, that a table needs and that is not on disk, how large it is, and the command that brings it."""

    name: str
    size: str
    command: str

    def __str__(self) -> str:
        return f"{self.name} ({self.size}): {self.command}"


@dataclass(frozen=True)
class Located:
    """Says what of a benchmark is there.

    The benchmark has the sets that are there; it is none where the ID test set or all OOD sets are missing. `images` has of each
    set how many are there, and how many the paper's protocol has; `identity` their hashes, from which a second run knows that
    nothing has changed. `root` is the folder that torchvision's data sets were found in.
    """

    benchmark: Benchmark | None
    weights: Path | None
    images: dict[str, tuple[int, int]] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    root: Path | None = None
    identity: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all is there."""
        return not self.missing


def locate(name: str, roots: Sequence[Path], weights: Path | None = None, *, thinned: bool = True) -> Located:
    """Look for the sets of a benchmark, under their usual names, and its weights unless they are known, below some folders.

    Training images are `thinned` to as many as the rows learn from.
    """
    known = sources(name)
    whole = Benchmark.load(name)
    found: dict[str, dict[str, Any]] = {"id": {}, **{group: {} for group in GROUPS}}
    images: dict[str, tuple[int, int]] = {}
    identity: dict[str, str] = {}
    missing: list[Missing] = []
    data = None
    for role, part, shown, spec in _listed(whole, thinned):
        about = known["sets"].get(shown, {})
        hit = _first(spec, about.get("places", []), roots, whole.class_names if role == "id" else ())
        if hit is None:
            missing.append(_missing(shown, about, roots))
            continue
        settled, root, opened = hit
        data = data or (root if "dataset" in settled else None)
        found[role][part] = settled
        images[shown] = (len(opened), int(about.get("images", len(opened))))
        identity[shown] = (
            opened.fingerprint(FeatureStore().stamps) if isinstance(opened, ImageSet) else opened.fingerprint()
        )
    chosen = weights if weights is not None or "weights" not in known else _weights(known["weights"], roots)
    if chosen is None and "weights" in known:
        missing.append(_missing("weights", known["weights"], roots))
    usable = "test" in found["id"] and any(found[group] for group in GROUPS)
    # The paper's options are given, so nothing is chosen on validation sets.
    bench = (
        dataclasses.replace(whole, id=found["id"], near=found["near"], far=found["far"], ood_val={}) if usable else None
    )
    return Located(bench, chosen, images, _merged(missing), data, identity)


def _merged(gaps: Sequence[Missing]) -> list[Missing]:
    """Join what one command brings."""
    by_command: dict[str, list[Missing]] = {}
    for gap in gaps:
        by_command.setdefault(gap.command, []).append(gap)
    return [
        Missing(", ".join(gap.name for gap in same), "; ".join(dict.fromkeys(gap.size for gap in same)), command)
        for command, same in by_command.items()
    ]


def sources(name: str) -> dict[str, Any]:
    """Read where the sets and weights of a benchmark come from."""
    table = tomllib.loads((files("idness.paper") / "sources.toml").read_text(encoding="utf-8"))
    entry: dict[str, Any] = table[name]
    if name in BORROWED:
        entry["sets"] = table[BORROWED[name]]["sets"] | entry["sets"]
    return entry


def _listed(bench: Benchmark, thinned: bool) -> Iterator[tuple[str, str, str, Any]]:
    """Yield role, name in its table, name as shown, and specification of each set that a table needs."""
    for part, spec in bench.id.items():
        if part == "train":
            few = max(TRAIN_SAMPLE, PER_CLASS * len(bench.class_names))
            table = {key: value for key, value in _table(spec).items() if key != "sample"}
            yield "id", part, f"id_{part}", {**table, "sample": few} if thinned else table
        else:
            yield "id", part, f"id_{part}", spec
    for group in GROUPS:
        for name, spec in getattr(bench, group).items():
            yield group, name, name, spec


def _table(spec: Any) -> dict[str, Any]:
    return {"path": spec} if isinstance(spec, str) else dict(spec)


def _first(
    spec: Any, places: Sequence[Mapping[str, Any]], roots: Sequence[Path], classes: Sequence[str]
) -> tuple[dict[str, Any], Path, ImageSet | ActivationsFile] | None:
    """Open a set in the first folder that has it; nothing is downloaded."""
    plain = _table(spec) | {"download": False}
    cut = {key: plain[key] for key in ("rows", "sample") if key in plain}
    for root in roots:
        for candidate in (plain, *({**place, **cut} for place in places)):
            settled = _absolute(candidate, root)
            try:
                opened = open_set(settled, root, classes)
            except (IdnessError, OSError):
                continue
            if len(opened):
                return settled, root, opened
    return None


def _absolute(spec: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Make paths absolute, so that sets may lie in several folders."""
    settled = dict(spec)
    if "path" in settled:
        listed = [settled["path"]] if isinstance(settled["path"], str) else list(settled["path"])
        settled["path"] = [place if ":" in place else str((root / place).absolute()) for place in listed]
    if "root" in settled:
        settled["root"] = str((root / settled["root"]).absolute())
    return settled


def _weights(about: Mapping[str, Any], roots: Sequence[Path]) -> Path | None:
    from torch.hub import get_dir

    folders = [*roots, Path(get_dir()) / "checkpoints"]
    return next((folder / file for folder in folders for file in about["files"] if (folder / file).is_file()), None)


def _missing(name: str, about: Mapping[str, Any], roots: Sequence[Path]) -> Missing:
    root = roots[0] if roots else Path("data")
    command = str(about.get("command", f"put it below {root}"))
    return Missing(name, str(about.get("size", "size unknown")), command.replace("{root}", str(root)))
