"""Cost of a whole benchmark against bare forward passes, and against one pass per method and option.

python benchmarks/bench_cost.py

The network is the DenseNet-101 of the paper's CIFAR tables, with random weights: they do not change the time. The images are those
of the embedded benchmark.
"""

from __future__ import annotations

import as_command  # noqa: F401

# isort: split
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idness.benchmark import Benchmark, Settings, run
from idness.core.errors import IdnessError
from idness.data import Preprocessing, embedded
from idness.detectors.detector import Detector
from idness.detectors.registry import rows
from idness.metrics import all_metrics, auroc
from idness.networks.load import load_model
from idness.networks.split import SplitModel
from ratios import least, report

NETWORK = f"{Path(__file__).resolve().parents[1] / 'examples' / 'densenet.py'}:densenet101"
SIZES = {"id_train": 150, "id_val": 24, "id_test": 150, "groceries": 24, "cat": 130, "textures": 130}
PARTS = {"id_train": "train", "id_val": "val", "id_test": "test"}
SMALL = 5
"""By what the number of images is divided for the loop over methods and options, which is slow."""
MEAN, STD = embedded.normalisation()
BATCH = 64
ROUNDS = 4


def write_sets(folder: Path, divisor: int) -> tuple[Benchmark, dict[str, tuple[Tensor, Tensor]]]:
    """Write some of the embedded images, and give them as tensors too."""
    prepare = Preprocessing(mean=MEAN, std=STD)
    tensors = {}
    for name, count in SIZES.items():
        found = embedded.load(name)
        places = np.linspace(0, len(found) - 1, count // divisor).astype(int)
        images, labels = (
            found.images[places],
            (found.labels[places] if found.labels is not None else np.zeros(len(places), np.int64)),
        )
        np.savez(folder / f"{name}.npz", images=images, labels=labels)
        pixels = prepare.normalize(images).contiguous(memory_format=torch.channels_last)
        tensors[name] = (pixels, torch.from_numpy(labels))
    known = {part: f"{name}.npz" for name, part in PARTS.items()}
    others = {name: {name: f"{name}.npz"} for name in ("groceries", "cat", "textures")}
    bench = Benchmark(
        name="cost",
        title="cost",
        id=known,
        ood_val=others["groceries"],
        near=others["cat"],
        far=others["textures"],
        preprocessing={"mean": MEAN, "std": STD},
        base=folder,
    )
    return bench, tensors


def whole_bench(bench: Benchmark, model: torch.nn.Module) -> None:
    """Run everything that `idness bench` runs, into an empty store."""
    with tempfile.TemporaryDirectory() as cache:
        run(bench, model, Settings(cache=cache, batch_size=BATCH, device="cpu", any_accuracy=True))


def bare_passes(model: torch.nn.Module, sets: Mapping[str, tuple[Tensor, Tensor]]) -> None:
    """Run the network over the same images and do nothing else."""
    with torch.inference_mode():
        for images, _ in sets.values():
            for batch in images.split(BATCH):
                model(batch)


def public_loop(split: SplitModel, sets: Mapping[str, tuple[Tensor, Tensor]]) -> int:
    """Evaluate as the public evaluators do: each method, and each value of its grid, runs the network over what it needs."""
    passed = 0

    def extracted(name: str) -> Any:
        nonlocal passed
        images, labels = sets[name]
        passed += len(images)
        return split.extract(zip(images.split(BATCH), labels.split(BATCH), strict=True))

    for detector in rows().values():
        train = extracted("id_train") if detector.needs_train else None
        val = extracted("id_val") if detector.needs_val else None
        best: tuple[float, Detector | None] = (-1.0, None)
        for variant in detector.variants():
            try:
                variant.fit(split.head, train, val=val)
            except IdnessError:
                continue
            value = auroc(variant.score(extracted("id_val")), variant.score(extracted("groceries")))
            best = max(best, (value, variant), key=lambda found: found[0])
        chosen = best[1]
        assert chosen is not None
        for name in ("cat", "textures"):
            # The ID test set is run again for each group of OOD sets.
            all_metrics(chosen.score(extracted("id_test")), chosen.score(extracted(name)))
    return passed


def timed(way: Callable[[], Any]) -> float:
    start = time.process_time()
    way()
    return time.process_time() - start


def measured() -> Iterator[dict[str, Any]]:
    model = load_model(NETWORK, "none").to(memory_format=torch.channels_last)
    split = SplitModel(model)
    with tempfile.TemporaryDirectory() as large, tempfile.TemporaryDirectory() as small:
        bench, sets = write_sets(Path(large), 1)
        bench_small, sets_small = write_sets(Path(small), SMALL)
        whole_bench(bench_small, model)  # warms up
        times = {"bare": [], "bench": [], "small": []}
        for _ in range(ROUNDS):
            times["bare"].append(timed(lambda: bare_passes(model, sets)))
            times["bench"].append(timed(lambda: whole_bench(bench, model)))
            times["small"].append(timed(lambda: whole_bench(bench_small, model)))
        images, few = (sum(len(pixels) for pixels, _ in found.values()) for found in (sets, sets_small))
        passed = 0

        def loop() -> None:
            nonlocal passed
            passed = public_loop(split, sets_small)

        seconds = timed(loop)
    bare, whole, part = least(times).values()
    yield {"what": "bare forward passes", "images": images, "through the network": images, "cpu s": bare, "ratio": 1.0}
    yield {
        "what": "whole bench: all methods, all options, error bars",
        "images": images,
        "through the network": images,
        "cpu s": whole,
        "ratio": whole / bare,
    }
    yield {"what": "whole bench, fewer images", "images": few, "through the network": few, "cpu s": part, "ratio": 1.0}
    yield {
        "what": "a pass per method and option",
        "images": few,
        "through the network": passed,
        "cpu s": seconds,
        "ratio": seconds / part,
    }


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    table = list(measured())
    notes = [
        f"The whole bench takes {table[1]['ratio']:.3f} times the bare forward passes (wanted: at most 1.10).",
        f"One pass per method and option takes {table[3]['ratio']:.1f} times the whole bench (wanted: at least 8).",
        "Seconds of one process on one core; DenseNet-101 at 32 x 32, float32.",
    ]
    report("bench_cost", "A whole benchmark against bare forward passes", table, notes)


if __name__ == "__main__":
    main()
