"""Comparison with pytorch-ood, in values and in speed, on the same features: python benchmarks/peer.py

Uses a head of a size common in small networks, and that of a ResNet-50 for ImageNet, the paper's main network.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from pytorch_ood import detector as peer
from pytorch_ood.metrics import OODMetrics
from torch import Tensor

from idness import metrics
from idness.core.types import Activations, Head
from idness.detectors.registry import build
from ratios import interleaved, report

IMAGES, TRAIN = 256, 5000
SIZES = {(512, 100): (20, 10), (2048, 1000): (7, 3)}
"""Numbers of features and classes, and numbers of timed turns and of calls per turn."""
WANTED = {"ASH-S, 90": 3.0, "ReAct, 90": 1.5}
SLOW = "DICE, 70"
"""A method that creates a tensor of images x classes x features, which takes gigabytes at the larger size."""


def main() -> None:
    torch.set_num_threads(1)
    notes = [f"pytorch-ood {version('pytorch-ood')}. Its scores are outlier scores: compared with ours negated."]
    rows: list[dict[str, Any]] = []
    for (width, classes), turns in SIZES.items():
        rng = torch.Generator().manual_seed(0)
        head = Head(torch.randn(classes, width, generator=rng) / 8, torch.randn(classes, generator=rng))
        train, known, unknown = (
            features(rng, count, gap, head) for count, gap in ((TRAIN, 1.0), (IMAGES, 1.0), (IMAGES, 0.6))
        )
        size = f"D={width}, C={classes:,}"
        for name, ours, theirs in pairs(head, train):
            if name == SLOW and classes > 100:
                continue
            mine, other = ours(known), theirs(known.features)
            times = timed(lambda f=theirs, x=known: f(x.features), lambda f=ours, x=known: f(x), turns)
            rows.append(row(name, size, times, float((mine + other.float()).abs().max() / mine.std())))
        if not any("AUROC" in made["work"] for made in rows):
            rows += metric_rows(build("scale", percentile=95).fit(head), known, unknown, size, notes, turns)
    report("peer", f"Beside pytorch-ood, one thread, {IMAGES} images", rows, notes)


def features(rng: torch.Generator, count: int, strength: float, head: Head) -> Activations:
    labels = torch.arange(count) % head.classes
    values = (strength * head.weight[labels] * 4 + torch.randn(count, head.width, generator=rng)).clamp(min=0)
    return Activations(values, head(values), labels)


def pairs(
    head: Head, train: Activations
) -> list[tuple[str, Callable[[Activations], Tensor], Callable[[Tensor], Tensor]]]:
    """Return both implementations of each method: ours on activations, theirs on features (as 1 x 1 maps if required)."""

    def flat(maps: Tensor) -> Tensor:
        return head(maps.flatten(1))

    def maps(detector: Any) -> Callable[[Tensor], Tensor]:
        return lambda x: detector.predict_feature_maps(x[:, :, None, None])

    nothing: Any = torch.nn.Identity()
    react = build("react", percentile=90).fit(head, train)
    clip = float(react.state()["clip_"])
    dice = peer.DICE(None, head.weight, head.offset, p=0.7).fit_features(train.features, train.labels)
    knn = peer.KNN(None, k=50).fit_features(train.features, train.labels)

    def squared(x: Tensor) -> Tensor:
        return knn.predict_features(x).square()  # theirs is the distance, ours its square

    return [
        ("SCALE, 85", build("scale", percentile=85).fit(head).score, maps(peer.SCALE(nothing, flat, percentile=0.85))),
        (
            "ASH-S, 90",
            build("ash-s", percentile=90).fit(head).score,
            maps(peer.ASH(nothing, flat, "ash-s", percentile=0.9)),
        ),
        ("ReAct, 90", react.score, maps(peer.ReAct(nothing, flat, threshold=clip))),
        ("DICE, 70", build("dice", percentile=70).fit(head, train).score, dice.predict_features),
        ("KNN, k=50", build("knn", k=50).fit(head, train).score, squared),
    ]


def metric_rows(
    scale: Any, known: Activations, unknown: Activations, size: str, notes: list[str], turns: tuple[int, int]
) -> list[dict[str, Any]]:
    """Return a comparison of AUROC and AUPR on SCALE's energies, which are in the hundreds or higher."""
    inside, outside = scale.score(known), scale.score(unknown)
    labels = torch.cat([torch.zeros(len(inside)), -torch.ones(len(outside))]).long()
    scores = -torch.cat([inside, outside])

    def theirs() -> dict[str, float]:
        judge = OODMetrics()
        judge.update(scores, labels)
        return {key: float(value) for key, value in judge.compute().items()}

    ours, other = metrics.all_metrics(inside, outside), theirs()
    times = timed(theirs, lambda: metrics.all_metrics(inside, outside), turns)
    rows = []
    for mine, name in (
        ("auroc", "AUROC"),
        ("aupr_in", "AUPR-IN"),
        ("aupr_out", "AUPR-OUT"),
        ("fpr_at_ood_recall", "FPR95TPR"),
    ):
        difference = abs(ours[mine] - other[name])
        rows.append(row(f"{name} of SCALE energies", size, times, difference))
        notes.append(f"{name}: ours ({mine}) {ours[mine]:.4f}, theirs {other[name]:.4f}.")
    return rows


def timed(theirs: Callable[[], Any], ours: Callable[[], Any], turns: tuple[int, int]) -> dict[str, float]:
    """Return the seconds of one call of each, timed in turns of several calls, since one may take less than a millisecond."""
    repeats, calls = turns
    ways = {"peer": lambda: [theirs() for _ in range(calls)], "ours": lambda: [ours() for _ in range(calls)]}
    return {name: seconds / calls for name, seconds in interleaved(ways, repeats).items()}


def row(work: str, size: str, times: dict[str, float], difference: float) -> dict[str, Any]:
    speed = {"peer ms": times["peer"] * 1e3, "ours ms": times["ours"] * 1e3, "ratio": times["peer"] / times["ours"]}
    judged = {"wanted": WANTED.get(work, "–"), "largest difference": difference, "note": verdict(difference)}
    return {"work": work, "size": size, **speed, **judged}


def verdict(difference: float) -> str:
    return "same" if difference < 1e-3 else "theirs differs"


if __name__ == "__main__":
    main()
