"""A researcher's session: measure methods on a network, try a new one, and draw figures for a paper.

    python examples/researcher.py [FOLDER]

Network and images ship with idness; a thousand of them are enough for a session that takes seconds.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from idness import Activations, Benchmark, SplitModel, build, intervals, load_model, metrics
from idness.benchmark import Settings, run
from idness.core.types import Head
from idness.data import embedded
from idness.detectors.detector import Detector
from idness.report import figures, style, write_html

MEAN, STD = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])


@dataclass(kw_only=True)
class Cosine(Detector):
    """Take the largest cosine between an image's features and a class's mean features.

    Args:
        centre: whether to subtract the mean of all training images first.
    """

    needs_train = True
    needs_labels = True
    grid = {"centre": (False, True)}

    centre: bool = False

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        assert train.labels is not None
        self.origin_ = train.features.mean(dim=0) * float(self.centre)
        means = [train.features[train.labels == label].mean(dim=0) for label in range(head.classes)]
        self.means_ = torch.nn.functional.normalize(torch.stack(means) - self.origin_)

    def rate(self, acts: Activations) -> Tensor:
        return (torch.nn.functional.normalize(acts.features - self.origin_) @ self.means_.T).max(dim=1).values


def main(folder: Path) -> None:
    """Run a small benchmark, then a method of our own on the same network."""
    # 1. A benchmark is data. Options are chosen on ood_val, never on what is tested.
    few = {name: f"embedded:{name}" for name in ("groceries", "cat", "frog", "mnist", "textures")}
    sampled = {name: {"path": path, "sample": 150} for name, path in few.items()}
    bench = Benchmark(
        name="session",
        title="A few images of cifar6",
        id={part: {"path": f"embedded:id_{part}", "sample": 300} for part in ("train", "val", "test")},
        ood_val={"groceries": sampled["groceries"]},
        near={name: sampled[name] for name in ("cat", "frog")},
        far={name: sampled[name] for name in ("mnist", "textures")},
        classes=("airplane", "automobile", "bird", "deer", "dog", "truck"),
        preprocessing={"mean": MEAN.tolist(), "std": STD.tolist()},
    )
    rows = ("msp", "ebo", "knn", "ash-s", "ash-p", "scale")
    report = run(bench, "cifar6:base", Settings(methods=rows, cache=folder.with_name(f"{folder.name}-cache")))
    report.save(folder)
    print(report.answer.sentence)

    # 2. Numbers as a table, scores as arrays, figures as matplotlib axes to restyle.
    frame = report.to_dataframe()
    print(frame[frame.kind == "group"].pivot(index="method", columns="name", values="auroc").round(4))
    ax = figures.roc_curves(report, "cat", ["msp", "scale", "knn"])
    ax.set_title("Cats among six other classes")
    style.draw_legend(ax)
    for path in (*style.save(ax, folder / "roc"), write_html(folder, report)):
        print("wrote", path.name)

    # 3. A new method needs a network's activations, its head, and nothing else.
    split = SplitModel(load_model("cifar6:base"))
    train, known, unknown = (activations(split, name) for name in ("id_train", "id_test", "cat"))
    ours = Cosine(centre=True).fit(split.head, train)
    theirs = build("ebo").fit(split.head)
    pairs = [(one.score(known), one.score(unknown)) for one in (ours, theirs)]
    for detector, (ids, oods) in zip((ours, theirs), pairs, strict=True):
        low, high = intervals.auroc_interval(ids, oods)
        print(f"{detector.label():<20} AUROC {metrics.auroc(ids, oods):.3f} [{low:.3f}, {high:.3f}]")
    gap = intervals.compare_auroc(*pairs[0], *pairs[1])
    print(f"difference {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}], p = {gap.p_value:.2g}")


def activations(split: SplitModel, name: str, count: int = 300) -> Activations:
    """Run images that are spread over an embedded set through the network."""
    chosen = embedded.load(name)
    rows = torch.linspace(0, len(chosen) - 1, min(count, len(chosen))).long()
    images = ((torch.from_numpy(chosen.images)[rows] / 255 - MEAN) / STD).permute(0, 3, 1, 2)
    acts = split.split(images)
    return Activations(
        acts.features, acts.logits, torch.from_numpy(chosen.labels)[rows] if name.startswith("id_") else None
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as place:
            main(Path(place))
