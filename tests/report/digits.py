"""A whole benchmark in a second: a small network on handwritten digits, measured with the library's own methods."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import nn

from idness.benchmark.answer import conclude
from idness.benchmark.evaluate import group_metrics, set_metrics
from idness.benchmark.parts import BenchmarkInfo, MethodResult, ModelInfo, SetInfo, Sweep, Trial, Wrong
from idness.benchmark.results import Report
from idness.core.types import Activations
from idness.detectors.detector import Detector, Enhancer
from idness.detectors.registry import build
from idness.metrics import accuracy, auroc
from idness.networks.split import SplitModel, fingerprint

ROWS = ("msp", "ebo", "knn", "react", "ash-s", "ash-p", "scale")
PERCENTILES = [20.0, 40.0, 60.0, 80.0, 90.0]


@dataclass
class Images:
    pixels: np.ndarray
    labels: np.ndarray | None
    role: str


def image_sets(
    near: tuple[str, str] = ("six", "seven"), far: tuple[str, str] = ("china", "flower")
) -> dict[str, Images]:
    """Digits 0 to 5 are known; 6 and 7 near; pieces of two photographs far; 8 is for validation."""
    digits = load_digits()
    pixels, target = digits.images.astype(np.float32) / 16, digits.target
    known = np.flatnonzero(target < 6)
    sets = {
        name: Images(pixels[known[start::4]], target[known[start::4]], name)
        for start, name in ((0, "id_train"), (1, "id_val"), (2, "id_test"))
    }
    sets["eight"] = Images(pixels[target == 8], None, "ood_val")
    for name, digit in zip(near, (6, 7), strict=True):
        sets[name] = Images(pixels[target == digit][:120], None, "near")
    for name, photo in zip(far, load_sample_images().images, strict=True):
        grey = photo[: 8 * 30, : 8 * 40].mean(axis=2).reshape(30, 8, 40, 8).swapaxes(1, 2).reshape(-1, 8, 8)
        sets[name] = Images((grey[::8] / 255).astype(np.float32), None, "far")
    return sets


def network(seed: int = 0, steps: int = 120) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 6))
    train = image_sets()["id_train"]
    images, labels = torch.from_numpy(train.pixels), torch.from_numpy(train.labels).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval()


def bench(
    folder: Path,
    *,
    seed: int = 0,
    steps: int = 120,
    rows: tuple[str, ...] = ROWS,
    near: tuple[str, str] = ("six", "seven"),
    far: tuple[str, str] = ("china", "flower"),
    classes: list[str] | None = None,
    validation: bool = True,
) -> Report:
    """Measure a network trained with this seed, and write the folder that `idness bench` would."""
    model, sets = SplitModel(network(seed, steps), example=torch.zeros(2, 8, 8)), image_sets(near, far)
    acts = {name: _acts(model, images) for name, images in sets.items()}
    if not validation:
        del sets["eight"]
    groups = {"near": list(near), "far": list(far)}
    scores: dict[str, np.ndarray] = {}
    methods, wrong = {}, {}
    for row in rows:
        detector, trials = _searched(row, model, acts, validation)
        for name in sets:
            if name != "id_train":
                scores[f"scores/{row}/{name}"] = detector.score(acts[name]).numpy()
        methods[row] = _result(row, detector, trials, acts, groups, scores)
        wrong[row] = _wrong(row, groups, acts, scores)
    for name, images in sets.items():
        scores[f"index/{name}"] = np.arange(len(images.pixels))
        scores[f"predicted/{name}"] = acts[name].logits.argmax(dim=1).numpy()
        if images.labels is not None:
            scores[f"labels/{name}"] = images.labels.astype(np.int64)
    report = Report(
        benchmark=BenchmarkInfo(
            name="digits", title="Digits 0 to 5", classes=classes or [f"digit {n}" for n in range(6)], groups=groups
        ),
        model=ModelInfo(
            spec="digits.py:network", weights=None, weights_sha256=fingerprint(model.model), layer="3", features=48, classes=6,
            parameters=sum(p.numel() for p in model.model.parameters()),
        ),
        preprocessing={"resize": None, "crop": None, "mean": [0.0], "std": [1.0], "interpolation": "bilinear"},
        precision={"asked": "auto", "used": "fp32", "why": "The network is small."},
        sets={
            name: SetInfo(
                role=images.role, images=len(images.pixels), source=f"scikit-learn:{name}",
                sha256=hashlib.sha256(images.pixels.tobytes()).hexdigest(),
            )
            for name, images in sets.items()
        },
        id_accuracy=accuracy(acts["id_test"].logits, acts["id_test"].labels),
        methods=methods,
        sweep=_sweep(model, acts, groups),
        wrong=wrong,
        time={"extract": 0.2, "fit": 0.1, "search": 0.1, "score": 0.1, "total": 0.5, "images": 1500, "cached": 0},
        peak_memory=300_000_000,
        provenance={
            "command": "idness bench digits.toml", "seed": seed, "date": "2026-01-01T00:00:00Z",
            "versions": {"idness": "0.1.0"}, "machine": {"cpu": "x86_64", "threads": 1},
        },
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    report.attach(scores, _thumbs(report, sets))
    conclude(report)
    report.save(folder)
    return Report.load(folder)


def _acts(model: SplitModel, images: Images) -> Activations:
    found = model.split(torch.from_numpy(images.pixels))
    return Activations(
        found.features, found.logits, None if images.labels is None else torch.from_numpy(images.labels).long()
    )


def _searched(
    row: str, model: SplitModel, acts: dict[str, Activations], validation: bool
) -> tuple[Detector, list[Trial]]:
    variants = [build(row)] if not validation else build(row).variants({"k": (1, 5)} if row == "knn" else None)
    trials = []
    for variant in variants:
        variant.fit(model.head, acts["id_train"], val=acts["id_val"])
        found = auroc(variant.score(acts["id_val"]), variant.score(acts["eight"])) if validation else 0.0
        trials.append((found, variant))
    best = max(trials, key=lambda trial: trial[0])[1]
    return best, [
        Trial(options={key: variant.options()[key] for key in variant.grid}, auroc=found) for found, variant in trials
    ] if validation else []


def _result(
    row: str,
    detector: Detector,
    trials: list[Trial],
    acts: dict[str, Activations],
    groups: dict[str, list[str]],
    scores: dict[str, np.ndarray],
) -> MethodResult:
    ids = scores[f"scores/{row}/id_test"]
    found = {name: set_metrics(ids, scores[f"scores/{row}/{name}"]) for name in chain.from_iterable(groups.values())}
    means = {
        group: group_metrics(ids, [scores[f"scores/{row}/{name}"] for name in names], [found[name] for name in names])
        for group, names in groups.items()
    }
    test = acts["id_test"]
    logits = detector.shaped_logits(test) if isinstance(detector, Enhancer) else test.logits
    return MethodResult(
        method=detector.name, label=detector.label(), about=(type(detector).__doc__ or "").strip().splitlines()[0],
        options=detector.options(), chosen_by="validation" if len(trials) > 1 else "default",
        validation_auroc=max((trial.auroc for trial in trials), default=None), tried=trials,
        id_accuracy_shaped=accuracy(logits, test.labels), seconds={"fit": 0.01, "search": 0.02, "score": 0.01},
        sets=found, groups=means,
    )  # fmt: skip


def _wrong(
    row: str, groups: dict[str, list[str]], acts: dict[str, Activations], scores: dict[str, np.ndarray], count: int = 8
) -> dict[str, list[Wrong]]:
    def entry(name: str, index: int) -> Wrong:
        labels = acts[name].labels
        return Wrong(
            set=name, index=index, item=f"{name} {index}", score=float(scores[f"scores/{row}/{name}"][index]),
            label=None if labels is None else int(labels[index]), predicted=int(acts[name].logits[index].argmax()),
        )  # fmt: skip

    lowest = np.argsort(scores[f"scores/{row}/id_test"])[:count]
    found = {"id_test": [entry("id_test", int(index)) for index in lowest]}
    for group, names in groups.items():
        every = [entry(name, index) for name in names for index in range(len(scores[f"scores/{row}/{name}"]))]
        found[group] = sorted(every, key=lambda item: -item.score)[:count]
    return found


def _sweep(model: SplitModel, acts: dict[str, Activations], groups: dict[str, list[str]]) -> Sweep:
    def curve(detector: Detector, names: list[str]) -> float:
        detector.fit(model.head)
        ids = detector.score(acts["id_test"])
        return float(np.mean([auroc(ids, detector.score(acts[name])) for name in names]))

    return Sweep(
        percentiles=PERCENTILES,
        auroc={
            row: {
                group: [curve(build(row, percentile=value), names) for value in PERCENTILES]
                for group, names in groups.items()
            }
            for row in ("scale", "ash-s", "ash-p")
        },
        ebo={group: curve(build("ebo"), names) for group, names in groups.items()},
    )


def _thumbs(report: Report, sets: dict[str, Images]) -> dict[str, np.ndarray]:
    found = {}
    for groups in report.wrong.values():
        for entry in chain.from_iterable(groups.values()):
            pixels = (255 * sets[entry.set].pixels[entry.index]).clip(0, 255).astype(np.uint8)
            found[f"{entry.set}/{entry.index}"] = np.repeat(pixels.repeat(4, 0).repeat(4, 1)[..., None], 3, axis=2)
    return found
