"""Ray compared with one plain process: overhead, and two actors against one: python benchmarks/scale.py

Writes results/scale.json and results/scale.md. Options: --images N for the passes of ResNet-50 (with random weights, on which the cost of
a pass does not depend), --only overhead|actors for one part, which keeps the results of the other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torchvision
from PIL import Image
from safetensors.torch import save_file

RESULTS = Path(__file__).resolve().parents[1] / "results"
WANTED = 2000
SPAN = 32
"""Number of images in a span while measuring, instead of 1,024. Many small spans increase Ray's part of the work."""
RUN = """
import sys
from idness.activations import extract
extract.SHARD = int(sys.argv.pop(1))
from idness.cli import main
main()
"""


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """Wait for a process, and return the CPU seconds of the process and its children, as far as observed."""
    spent: dict[int, float] = {}
    while process.poll() is None:
        with suppress(psutil.Error):
            top = psutil.Process(process.pid)
            for each in [top, *top.children(recursive=True)]:
                with suppress(psutil.Error):
                    spent[each.pid] = sum(each.cpu_times()[:2])
        time.sleep(0.2)
    return sum(spent.values())


def extract(model: Sequence[str], images: Path, out: Path, *more: object) -> float:
    """Run `idness extract` in a separate process, and return its CPU seconds."""
    words = [sys.executable, "-c", RUN, str(SPAN), "extract", *model, str(images), "-o", str(out), *map(str, more)]
    process = subprocess.Popen(
        [*words, "--quiet"], env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL
    )
    spent = cpu_seconds(process)
    if process.returncode:
        raise SystemExit(f"{' '.join(words[3:])} ended with {process.returncode}")
    return spent


def steady(out: Path, at_once: int) -> float:
    """Return the spans per second between the first and the last shard, excluding the start."""
    times = sorted(path.stat().st_mtime for path in out.rglob("shards/*/*.safetensors"))
    # The first shards of parallel workers finish at the same time.
    return (len(times) - at_once) / max(times[-1] - times[at_once - 1], 1e-9)


def write(folder: Path, count: int, side: int) -> Path:
    """Write noise as JPEG files, whose content does not matter, and return the folder."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for number in range(count):
        pixels = random.integers(0, 255, (side // 8, side // 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((side, side)).save(folder / f"{number:06}.jpg", quality=90)
    return folder


def resnet(folder: Path) -> tuple[str, ...]:
    """Write random weights of a ResNet-50, the same for all processes, and return the network's arguments."""
    file = folder / "resnet50.safetensors"
    save_file(torchvision.models.resnet50().state_dict(), file)
    return ("torchvision:resnet50", "--weights", str(file))


def overhead(folder: Path, count: int) -> dict[str, Any]:
    """Return a comparison of the CPU seconds of one plain process and of Ray with one actor, including startup."""
    few, many, network = write(folder / "few", SPAN, 256), write(folder / "many", count, 256), resnet(folder)
    cpu: dict[str, float] = {}
    for name, images, more in (
        ("plain few", few, ("--engine", "eager")),
        ("plain", many, ("--engine", "eager")),
        ("ray", many, ("--engine", "ray:eager", "--actors", 1)),
    ):
        cpu[name] = extract(network, images, folder / f"out {name}", *more)
    each = (cpu["plain"] - cpu["plain few"]) / (count - SPAN)
    extra = cpu["ray"] - cpu["plain"]
    full = cpu["plain"] + (WANTED - count) * each
    return {
        "images": count,
        "plain CPU seconds": round(cpu["plain"], 1),
        "ray CPU seconds": round(cpu["ray"], 1),
        "CPU seconds per image": round(each, 4),
        "extra CPU seconds": round(extra, 1),
        f"overhead at {WANTED} images": round(extra / full, 3),
    }


def actors(folder: Path, count: int) -> dict[str, Any]:
    """Return a comparison of the spans per second of two actors and one, and of two parallel plain processes and one."""
    images, network = write(folder / "images", count, 256), resnet(folder)
    found: dict[str, float] = {}
    for turn in range(2):
        alone, one, two = (folder / f"{name} {turn}" for name in ("alone", "one", "two"))
        extract(network, images, alone, "--engine", "eager")
        pair = [folder / f"pair {turn} {place}" for place in range(2)]
        both = [threading.Thread(target=extract, args=(network, images, out, "--engine", "eager")) for out in pair]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        extract(network, images, one, "--engine", "ray:eager", "--actors", 1)
        extract(network, images, two, "--engine", "ray:eager", "--actors", 2)
        rates = {
            "one process": steady(alone, 1),
            "two processes": sum(steady(out, 1) for out in pair),
            "one actor": steady(one, 1),
            "two actors": steady(two, 2),
        }
        found = {name: max(rate, found.get(name, 0.0)) for name, rate in rates.items()}
    limit, reached = found["two processes"] / found["one process"], found["two actors"] / found["one actor"]
    return {
        "images": count,
        "spans per second": {name: round(rate, 3) for name, rate in found.items()},
        "two processes against one": round(limit, 3),
        "two actors against one": round(reached, 3),
        "share of the cores' own limit": round(reached / limit, 3),
    }


def told(found: dict[str, Any]) -> str:
    """Return the results as a Markdown page."""
    lines = [
        "# Scale: Ray beside one process",
        "",
        "Made by `python benchmarks/scale.py`; the numbers are in `results/scale.json`.",
        "",
    ]
    lines += ["| what | wanted | measured | how |", "|---|--:|--:|---|"]
    if "overhead" in found:
        part = found["overhead"]
        lines.append(
            f"| Ray's overhead at {WANTED:,} images of ResNet-50 | at most 10 % | {100 * part[f'overhead at {WANTED} images']:.1f} % |"
            f" CPU seconds of all processes, starting included, at {part['images']} images; {part['extra CPU seconds']} s more than"
            f" one plain process, whose image costs {part['CPU seconds per image']} s |"
        )
    if "actors" in found:
        part = found["actors"]
        share = part["share of the cores' own limit"]
        lines.append(
            f"| two actors against one, of two processes against one | at least 0.85 | {share:.2f} |"
            f" spans of {SPAN} images a second: actors {part['two actors against one']:.2f} times, plain processes"
            f" {part['two processes against one']:.2f} times; the better of two turns |"
        )
    lines += [""] + [f"- {name}: {said['machine']}" for name, said in found.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=WANTED)
    parser.add_argument("--only", choices=("overhead", "actors"))
    given = parser.parse_args()
    file = RESULTS / "scale.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    for name, measure, count in (
        ("overhead", overhead, given.images), ("actors", actors, given.images),
    ):  # fmt: skip
        if given.only in (None, name):
            before = os.getloadavg()[0]
            with tempfile.TemporaryDirectory(prefix="idness-scale-") as folder:
                part = measure(Path(folder), count)
            load = f"load of others {before:.1f} before it began, on {os.cpu_count()} cores"
            found[name] = part | {"machine": f"{load}; Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"}
            print(json.dumps({name: found[name]}, indent=1))
            file.write_text(json.dumps(found, indent=1) + "\n")
            (RESULTS / "scale.md").write_text(told(found))


if __name__ == "__main__":
    main()
