"""A complete `idness bench`, all methods and options, compared with an ordinary forward pass: python benchmarks/whole.py [NAME ...]

Real networks on real images are searched for in `.data` (python tools/fetch.py mobilenet-v2 cifar10) and `../shared/data`; missing ones
are skipped. The command runs in a separate process, from its start to the last file written, including decoding, engine, search of
options, intervals and page. The ordinary pass is typical eager code, on images that are already tensors, in batches of 128; it is timed
on 256 images and extrapolated to all. CPU seconds, user and system, one thread, in turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ratios import FETCHED, ONE_THREAD, ROOT, SHARED, cpu_of, least, report

TIMED = 256
TURNS = 2
PAPER = (
    "msp", "mls", "ebo", "tempscale", "gen", "mds", "rmds", "knn", "react", "dice", "chain", "ash-s", "ash-p", "ash-b", "scale",
)  # fmt: skip
"""The methods of the paper's tables, which are all that 0.1.0 had."""
SAID = {"all": "all methods and options", "paper": f"the {len(PAPER)} rows of the paper, all options"}
ORDINARY = """
import json, sys, time, torch
torch.set_num_threads(1)
from idness.networks.load import load_model
model, weights, size, count = json.loads(sys.argv[1])
network = load_model(model, weights).eval()
images = torch.rand(count, 3, size, size)
with torch.no_grad():
    network(images[:2])
    for _ in range(2):
        start = time.process_time()
        for batch in images.split(128):
            network(batch)
        print((time.process_time() - start) / count)
"""


def mobilenet(folder: Path) -> dict[str, Any] | None:
    place = SHARED / "imagenet-sample"
    if not place.is_dir() or not (FETCHED / "packages").is_dir():
        return None
    text = f"""
classes = "imagenet"
[id]
train = {{ path = "{place / "id_val"}", rows = [0, 900] }}
val = {{ path = "{place / "id_val"}", rows = [900, 1000] }}
test = "{place / "id_test"}"
[ood_val]
some = {{ path = "{place / "textures"}", rows = [0, 100] }}
[far]
textures = {{ path = "{place / "textures"}", rows = [100, 1000] }}
"""
    model = f"{ROOT / 'tools' / 'imagenet_networks.py'}:mobilenet"
    return {
        "toml": text,
        "model": model,
        "weights": None,
        "size": 224,
        "images": 3000,
        "turns": TURNS,
        "which": SAID,
    }


def densenet(folder: Path) -> dict[str, Any] | None:
    cifar, weights = FETCHED / "cifar10.npz", SHARED / "densenet101_cifar10.pth.tar"
    if not cifar.exists() or not weights.exists():
        return None
    with np.load(cifar) as arrays:
        images, labels = arrays["test_images"], arrays["test_labels"].astype(np.int64)
        np.savez(
            folder / "train.npz",
            images=arrays["train_images"][:1000],
            labels=arrays["train_labels"][:1000].astype(np.int64),
        )
    for name, rows in (("val", slice(0, 500)), ("test", slice(1000, 2500))):
        np.savez(folder / f"{name}.npz", images=images[rows], labels=labels[rows])
    text = f"""
classes = 10
[preprocessing]
mean = [0.4914, 0.4822, 0.4465]
std = [0.2023, 0.1994, 0.2010]
[id]
train = "train.npz"
val = "val.npz"
test = "test.npz"
[ood_val]
some = {{ path = "{SHARED / "isun.npz"}", rows = [8000, 8500] }}
[far]
isun = {{ path = "{SHARED / "isun.npz"}", rows = [0, 1500] }}
"""
    model = f"{ROOT / 'examples' / 'densenet.py'}:densenet101"
    return {
        "toml": text, "model": model, "weights": str(weights), "size": 32, "images": 5000,
        "turns": 1, "which": ("all",),
    }  # fmt: skip


def bench(folder: Path, job: dict[str, Any], engine: str, which: str) -> tuple[float, dict[str, float]]:
    """Run the command, and return its CPU seconds and the times that it reports."""
    with tempfile.TemporaryDirectory() as place:
        words = ["bench", str(folder / "whole.toml"), "--model", job["model"], "--engine", engine, "--workers", "1"]
        words += ["--out", f"{place}/out", "--cache", f"{place}/cache", "--quiet"]
        words += ["--weights", job["weights"]] if job["weights"] else []
        words += ["--methods", ",".join(PAPER)] if which == "paper" else []
        seconds = cpu_of("-m", "idness", *words)
        spent = json.loads((Path(place) / "out" / "results.json").read_text())["time"]
    return seconds, spent


def ordinary(job: dict[str, Any]) -> list[float]:
    """Return the times of the ordinary pass, extrapolated to all images."""
    words = json.dumps([job["model"], job["weights"], job["size"], TIMED])
    done = subprocess.run(
        [sys.executable, "-c", ORDINARY, words], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    return [float(line) * job["images"] for line in done.stdout.split()]


def rows_of(name: str, job: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    os.environ |= ONE_THREAD
    (folder / "whole.toml").write_text(job["toml"])
    runs = [(engine, which) for engine in ("eager", "onnxruntime") for which in job["which"]]
    plain = ("ordinary", "")
    times: dict[tuple[str, str], list[float]] = {way: [] for way in (plain, *runs)}
    shares = {plain: 1.0}
    for _ in range(job["turns"]):
        times[plain] += ordinary(job)
        for run in runs:
            seconds, spent = bench(folder, job, *run)
            times[run].append(seconds)
            shares[run] = spent["extract"] / spent["total"]
    fastest = least(times)
    return [
        {
            "network": name,
            "images": job["images"],
            "what": "ordinary pass" if way == plain else f"whole bench, {way[0]}, {SAID[way[1]]}",
            "cpu s": seconds,
            "ratio": seconds / fastest[plain],
            "network's share": shares[way],
        }
        for way, seconds in fastest.items()
    ]


def main() -> None:
    table: list[dict[str, Any]] = []
    jobs = {"mobilenet": mobilenet, "densenet": densenet}
    for name, make in jobs.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            job = make(Path(folder))
            table += [] if job is None else rows_of(name, job, Path(folder))
    notes = [
        f"MobileNetV2 on 3,000 images: the least of {TURNS} turns of the command and {2 * TURNS} of the ordinary pass.",
        "The others: of one turn of the command and two of the ordinary pass.",
        "The network's share is that of decoding and the network, by the clock; the rest is methods, options, error bars and the page.",
    ]
    if table:
        report("whole", "A whole benchmark against the ordinary pass over its images", table, notes)


if __name__ == "__main__":
    main()
