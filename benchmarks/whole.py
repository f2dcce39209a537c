"""A whole `idness bench`, all methods and options, against the ordinary pass over the same images: python benchmarks/whole.py [NAME ...]

Real networks on real images, which are looked for as in benchmarks/engines.py; what is missing is passed over. The command runs in a
process of its own, from its start to the last file written: decoding, engine, search of options, error bars and page included. The
ordinary pass is what anybody would write: eager, images as they come, ready as tensors, a batch of 128; it is timed on 256 images and
counted for all. CPU seconds, user and system, one thread.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from engines import FETCHED, ROOT, SHARED
from ratios import least, report

TIMED = 256
ORDINARY = """
import json, sys, time, torch
torch.set_num_threads(1)
from idness.networks.split import load_model
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
WITHOUT = ("weiper",)
"""Rows that are left out in a run of their own: with 1,000 classes this one alone makes 100,000 logits an image."""


def mobilenet(folder: Path) -> dict[str, Any] | None:
    place = SHARED / "imagenet-sample"
    if not place.is_dir() or not (FETCHED / "packages").is_dir():
        return None
    text = f"""
classes = "imagenet"
[id]
train = {{ path = "{place / "id_val"}", rows = [0, 300] }}
val = {{ path = "{place / "id_test"}", rows = [900, 1000] }}
test = {{ path = "{place / "id_test"}", rows = [0, 400] }}
[ood_val]
some = {{ path = "{place / "textures"}", rows = [900, 1000] }}
[far]
textures = {{ path = "{place / "textures"}", rows = [0, 400] }}
"""
    model = f"{ROOT / 'tools' / 'imagenet_networks.py'}:mobilenet"
    return {
        "toml": text,
        "model": model,
        "weights": None,
        "size": 224,
        "images": 1300,
        "wanted": {"eager": 0.25, "onnxruntime": 0.2},
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
        "wanted": {"eager": 0.6, "onnxruntime": 0.6},
    }  # fmt: skip


def bench(folder: Path, job: dict[str, Any], engine: str, methods: list[str]) -> tuple[float, dict[str, float]]:
    """Run the command, and give its CPU seconds and where it says that they went."""
    out = folder / f"{engine}-{len(methods)}"
    words = [
        "bench",
        str(folder / "whole.toml"),
        "--model",
        job["model"],
        "--engine",
        engine,
        "--out",
        str(out),
        "--workers",
        "1",
    ]
    words += ["--cache", str(out / "cache"), "--quiet", *(["--weights", job["weights"]] if job["weights"] else [])]
    words += ["--methods", ",".join(methods)] if methods else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", "from idness.cli import run; run()", *words], check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, json.loads(
        (out / "results.json").read_text()
    )["time"]


def rows_of(name: str, job: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    from idness.detectors.registry import rows

    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    (folder / "whole.toml").write_text(job["toml"])
    words = json.dumps([job["model"], job["weights"], job["size"], TIMED])
    done = subprocess.run(
        [sys.executable, "-c", ORDINARY, words], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    each = [float(line) for line in done.stdout.split()]
    ordinary = least({"ordinary": each})["ordinary"] * job["images"]
    found = [_row(name, "ordinary pass", job["images"], ordinary, ordinary, 1.0, 1.0)]
    some = [row for row in rows() if row not in WITHOUT]
    for engine in ("eager", "onnxruntime"):
        for methods, said in (([], "all methods and options"), (some, f"without {', '.join(WITHOUT)}")):
            seconds, spent = bench(folder, job, engine, methods)
            what = f"whole bench, {engine}, {said}"
            share = spent["extract"] / spent["total"]
            found.append(_row(name, what, job["images"], seconds, ordinary, job["wanted"][engine], share))
    return found


def _row(
    network: str, what: str, images: int, seconds: float, ordinary: float, wanted: float, share: float
) -> dict[str, Any]:
    return {
        "network": network,
        "what": what,
        "images": images,
        "cpu s": seconds,
        "ratio": seconds / ordinary,
        "at most": wanted,
        "network's share": share,
    }


def main() -> None:
    table: list[dict[str, Any]] = []
    for name, make in {"mobilenet": mobilenet, "densenet": densenet}.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            job = make(Path(folder))
            table += [] if job is None else rows_of(name, job, Path(folder))
    notes = [
        "The ordinary pass is the better of two turns; the command ran once.",
        "The network's share is that of decoding and the network, by the clock; the rest is methods, options, error bars and the page.",
    ]
    if table:
        report("whole", "A whole benchmark against the ordinary pass over its images", table, notes)


if __name__ == "__main__":
    main()
