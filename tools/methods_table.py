"""Write what every method needs, costs and brings: results/methods.json and results/methods.md.

    python tools/auto_study.py        # measures every method on every network at hand
    python tools/methods_table.py     # sets it beside the catalogue, and measures the cost of a score

The cost is that of scoring activations that are there, as a ratio to the energy score on the same images in the same run:
CPU seconds of this process, the least of several turns, fitting not counted. The network's own forward pass, which all
methods share, is 100 to 10,000 times as much as the energy score.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from auto_images import Places
from auto_networks import NETS
from auto_study import REPOSITORY, RESULTS, SHARED, TURNED_BACK
from auto_worlds import World, open_world
from idness.core.errors import IdnessError, IdnessWarning
from idness.core.files import atomic_write
from idness.detectors.catalogue import Entry, catalogue
from idness.detectors.registry import rows

TIMED = ("base", "mobilenet+700")
"""Networks on which costs are measured: one small, one with many features and classes."""
TURNS, IMAGES = 5, 512


def costs(world: World) -> dict[str, float]:
    """Measure what a score costs with each row, as a ratio to the energy score."""
    acts, least = world.test[:IMAGES], dict[str, float]()
    fitted = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdnessWarning)
        for row, detector in rows().items():
            try:
                fitted[row] = detector.fit(world.head, world.train, val=world.val)
            except IdnessError:
                continue
        for turn in range(TURNS + 1):
            for row, detector in fitted.items():
                # The clock of a process is coarse beside the fastest rows.
                repeats, start = 0, time.process_time()
                while (spent := time.process_time() - start) < 0.005:
                    detector.score(acts)
                    repeats += 1
                if turn:  # the first warms up
                    least[row] = min(least.get(row, spent), spent / repeats)
    return {row: round(seconds / least["ebo"], 2) for row, seconds in least.items()}


def table(networks: Mapping[str, Any], entries: list[Entry], cost: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Set what was measured beside what the catalogue says, by row."""
    found: dict[str, Any] = {}
    for entry in entries:
        for row in entry.rows or [entry.name]:
            gains = {
                name: network["methods"][row]["difference to ebo"]
                for name, network in networks.items()
                if row in network["methods"]
            }
            values = [gain for gain, *_ in gains.values()]
            found[row] = {
                "learns from": _learns_from(entry),
                "assumes ReLU": entry.assumes_nonnegative,
                "passes": entry.passes,
                "paper": entry.paper,
                "mean": round(sum(values) / len(values), 5) if values else None,
                "worst": min(values, default=None),
                "cost": {name: ratios[row] for name, ratios in cost.items() if row in ratios},
                "difference to ebo": gains,
            }
    order = sorted(found, key=lambda row: -(found[row]["mean"] if found[row]["mean"] is not None else -1.0))
    return {row: found[row] for row in order}


def page(results: Mapping[str, Any]) -> str:
    """Write the two tables."""
    methods, networks = results["methods"], results["networks"]
    timed = list(results["timed"])
    sizes = "".join(f"; {name}: {size}" for name, size in results["timed"].items())
    lines = [
        "# Every method: what it needs, costs and brings",
        "",
        f"Made by `{results['command']}` from `auto.json`; every number is in `methods.json`. Methods at their defaults.",
        f"Mean and worst: points of AUROC (mean of near and far) above the energy score (EBO), over those of {len(networks)} networks",
        "that it was run on; the second table shows which.",
        "Cost: of scoring one image's activations, in units of EBO's, in the same run; fitting is not counted, and a pass of the network",
        f"is far more than all of them{sizes}. {results['load']}",
        "",
        f"| method | mean | worst | learns from | assumes ReLU | passes | {' | '.join(f'cost, {name}' for name in timed)} | paper |",
        f"|---|--:|--:|---|---|--:|{'--:|' * len(timed)}---|",
    ]
    for row, item in methods.items():
        cells = [
            row,
            *(_points(item[key]) for key in ("mean", "worst")),
            item["learns from"],
            "yes" if item["assumes ReLU"] else "no",
            item["passes"],
            *(f"{item['cost'][name]:.3g}" if name in item["cost"] else "" for name in timed),
            item["paper"].replace("|", "\\|"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## On each network",
        "",
        "Points of AUROC to EBO ± half of the 95 % interval (DeLong, paired); what the networks and sets are stands in `auto.md`.",
        "",
        f"| method | {' | '.join(networks)} |",
        f"|---|{'--:|' * len(networks)}",
    ]
    for row, item in methods.items():
        cells = [_gain(item["difference to ebo"].get(name)) for name in networks]
        lines.append(f"| {' | '.join([row, *cells])} |")
    return "\n".join(lines) + "\n"


def _learns_from(entry: Entry) -> str:
    if entry.needs_labels:
        return "train, labels" + (", val" if entry.needs_val else "")
    if entry.needs_train:
        return "train and val" if entry.name in ("fuse", "vim") else "val or train" if entry.needs_val else "train"
    return "val or train" if entry.needs_val else "nothing"


def _points(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f}"


def _gain(values: list[float] | None) -> str:
    return "" if values is None else f"{100 * values[0]:+.1f} ± {50 * (values[2] - values[1]):.1f}"


def _load() -> str:
    """Say how busy the machine was."""
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    state = "was loaded by other work, so small differences mean nothing" if busy > cores else "was free"
    return f"The machine {state} (load {busy:.0f} on {cores} cores)."


def main() -> int:
    """Measure the costs on what is there, and write both files."""
    parser = argparse.ArgumentParser(description="Write the table of methods.")
    parser.add_argument("--data", type=Path, default=REPOSITORY / ".data", help="folder of tools/fetch.py")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of real data beside the repository")
    parser.add_argument("--to", type=Path, default=RESULTS, help="folder of the results, and of auto.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    networks = json.loads((given.to / "auto.json").read_text(encoding="utf-8"))["networks"]
    cost, sizes = {}, {}
    for name in TIMED:
        try:
            world = open_world(name, Places(given.data, given.shared, NETS))
        except TURNED_BACK as error:
            print(f"{name}: passed over: {error}")
            continue
        cost[name] = costs(world)
        sizes[name] = (
            f"{world.head.width} features, {world.head.classes} classes, {len(world.train)} images to learn from"
        )
    results = {
        "command": "python tools/methods_table.py",
        "networks": list(networks),
        "timed": sizes,
        "load": _load(),
        "methods": table(networks, catalogue(), cost),
    }
    atomic_write(given.to / "methods.json", json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    atomic_write(given.to / "methods.md", page(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
