"""Cost of all post-hoc rows together against one forward pass of ResNet-50: python benchmarks/rows_cost.py"""

from __future__ import annotations

import as_command  # noqa: F401

# isort: split
from typing import Any

import torch

from idness.core.types import Activations
from idness.detectors.detector import fit_many, score_many
from idness.detectors.registry import rows
from idness.networks.load import load_model
from idness.networks.split import SplitModel
from ratios import interleaved, report

IMAGES, TRAIN = 128, 12_800


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    split = SplitModel(load_model("torchvision:resnet50", weights="none"))
    images = torch.randn(IMAGES, 3, 224, 224)
    acts = split.extract(images.split(32))
    head = split.head
    # Training activations of the right size and sign; what they are does not change the time of scoring.
    features = acts.features[torch.randint(IMAGES, (TRAIN,))] * (0.5 + torch.rand(TRAIN, head.width))
    train = Activations(features, head(features), torch.arange(TRAIN) % head.classes)
    detectors = list(rows().values())
    fit_many(detectors, head, train, val=train[:1000])
    ways: dict[str, Any] = {f"{d.label()}": (lambda d=d: score_many([d], acts)) for d in detectors}
    times = interleaved({**ways, "all": lambda: score_many(detectors, acts)}, 3)
    forward = interleaved({"forward": lambda: split.extract(images.split(32))}, 2)["forward"]
    table = [
        {"row": name, "ms per image": seconds * 1e3 / IMAGES, "percent of the forward pass": 100 * seconds / forward}
        for name, seconds in {**times, "forward pass": forward}.items()
    ]
    note = (
        f"All {len(detectors)} rows together take {100 * times['all'] / forward:.2f} % of the forward pass (wanted: at most 2);"
        f" {IMAGES} images, one thread, {TRAIN:,} training images in KNN's bank; fitting, done once, is not counted."
    )
    report("rows_cost", "All post-hoc rows against the forward pass of ResNet-50 (224 x 224, float32)", table, [note])


if __name__ == "__main__":
    main()
