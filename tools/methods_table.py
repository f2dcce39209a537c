"""Write what every method needs, costs and brings: results/methods.json and results/methods.md.

    python tools/auto_study.py        # measures every method on every network at hand
    python tools/methods_table.py     # sets it beside the catalogue, and measures the cost of a score
    python tools/methods_table.py --keep      # the same with the costs that were measured last

The cost is that of scoring activations that are there, as a ratio to the energy score on the same images in the same run:
CPU seconds of this process, the least of several turns, fitting not counted. The network's own forward pass, which all
methods share, is 100 to 10,000 times as much as the energy score.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
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
            found[row] = {
                "formula": entry.formula.split(r", \quad "),
                "learns from": _learns_from(entry),
                "assumes": entry.assumes,
                "passes": entry.passes,
                "paper": entry.paper,
                "mean": _mean(gain for gain, *_ in gains.values()),
                "near": _mean(_ahead(network, row, "near") for network in networks.values()),
                "far": _mean(_ahead(network, row, "far") for network in networks.values()),
                "cost": {name: ratios[row] for name, ratios in cost.items() if row in ratios},
                "difference to ebo": gains,
            }
    order = sorted(found, key=lambda row: -(found[row]["mean"] if found[row]["mean"] is not None else -1.0))
    return {row: found[row] for row in order}


LETTERS = """*a* are the features of an image, *z = Wa + b* its logits, *w*<sub>c</sub> the weights of class *c*, *ŷ* the predicted one
of *C* classes, *p* the softmax; *E* is the readout, log Σ<sub>c</sub> exp *z*<sub>c</sub> unless set otherwise. *ā* is *a* at length 1, *ã*
standardised. *P*<sub>p</sub> is a percentile over ID images; *top* and the mask *m* are the features above an image's own percentile,
*k* is their number, or that of neighbours, *r* the sum of all features over that of the top ones. *μ* and *Σ* are means and
covariances of training images, *P* and *P*<sup>⊥</sup> project into their principal space and out of it, *i* counts them. Options have
their own letters, and what else a formula names is on the method's page."""


def page(results: Mapping[str, Any]) -> str:
    """Write the two tables."""
    methods, networks = results["methods"], results["networks"]
    sizes = " ".join(f"On {name}: {size}." for name, size in results["timed"].items())
    lines = [
        "# Every method: what it needs, costs and brings",
        "",
        f"Made by `{results['command']}` from `auto.json`; every number is in `methods.json`. Methods at their defaults, the best first.",
        "",
        "- **mean**, **near**, **far**: points of AUROC above the energy score (`ebo`), the mean over those of",
        f"  {len(networks)} networks that it was run on.",
        "- **wins**, **loses**: on how many of them it is above or below `ebo` by more than chance (by the 95 % interval of the",
        "  paired difference, DeLong), and where most.",
        "- **cost**: of scoring one image's activations, in units of `ebo`'s, without fitting. A pass of the network, which all",
        f"  share, is far more than any. {sizes} {results['load']}",
        "- **formula**: the score, higher is more in-distribution; its letters are explained below the table.",
        "",
        "| method | formula | learns from | assumes | cost | mean | near | far | wins | loses | paper |",
        "|---|---|---|---|---|--:|--:|--:|---|---|---|",
    ]
    for row, item in methods.items():
        gains = item["difference to ebo"]
        cells = [
            row,
            "<br>".join(f"$`{part}`$" for part in item["formula"]),
            item["learns from"],
            item["assumes"],
            _cost(item),
            *(_points(item[key]) for key in ("mean", "near", "far")),
            _most({name: gain for name, (gain, low, _) in gains.items() if low > 0}, len(gains), max),
            _most({name: gain for name, (gain, _, high) in gains.items() if high < 0}, len(gains), min),
            short_paper(item["paper"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## Letters in the formulas",
        "",
        LETTERS,
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


def short_paper(paper: str) -> str:
    """Leave out a paper's title: authors, venue and year tell it from the others."""
    known = (paper.partition(" -- ")[2] or paper).rpartition("; ")[2]
    return re.sub(r' "[^"]*",?', "", known).rstrip(".").replace("|", "\\|")


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 5) if known else None


def _ahead(network: Mapping[str, Any], row: str, group: str) -> float | None:
    """Compute how far a row is ahead of the energy score on one group of sets."""
    measured = network["methods"]
    return measured[row][group]["auroc"][0] - measured["ebo"][group]["auroc"][0] if row in measured else None


def _cost(item: Mapping[str, Any]) -> str:
    """Write a row's costs, or the passes of the network beside which no other cost counts."""
    if item["passes"] != "1":
        forward, _, backward = item["passes"].partition(" + ")
        return f"{forward} passes" + (f", {backward} backward" if backward else "")
    return " / ".join(f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" for ratio in item["cost"].values())


def _most(gains: Mapping[str, float], of: int, extreme: Callable[..., str]) -> str:
    """Say on how many networks, and on which one most."""
    if not gains:
        return "–"
    name = extreme(gains, key=lambda each: gains[each])
    return f"{len(gains)} of {of}: {name} {_points(gains[name])}"


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
    parser.add_argument("--keep", action="store_true", help="keep the costs that were measured last")
    given = parser.parse_args()
    torch.set_num_threads(1)
    networks = json.loads((given.to / "auto.json").read_text(encoding="utf-8"))["networks"]
    timed = kept_costs(given.to) if given.keep else measured_costs(Places(given.data, given.shared, NETS))
    results = {
        "command": "python tools/methods_table.py",
        "networks": list(networks),
        "timed": timed["timed"],
        "load": timed["load"],
        "methods": table(networks, catalogue(), timed["cost"]),
    }
    atomic_write(given.to / "methods.json", json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    atomic_write(given.to / "methods.md", page(results))
    return 0


def measured_costs(places: Places) -> dict[str, Any]:
    """Measure the costs on those networks that are there."""
    cost, sizes = {}, {}
    for name in TIMED:
        try:
            world = open_world(name, places)
        except TURNED_BACK as error:
            print(f"{name}: passed over: {error}")
            continue
        cost[name] = costs(world)
        sizes[name] = (
            f"{world.head.width} features, {world.head.classes} classes, {len(world.train)} images to learn from"
        )
    return {"cost": cost, "timed": sizes, "load": _load()}


def kept_costs(folder: Path) -> dict[str, Any]:
    """Read the costs that were measured last."""
    last = json.loads((folder / "methods.json").read_text(encoding="utf-8"))
    by_row = {row: item["cost"] for row, item in last["methods"].items()}
    cost = {name: {row: ratios[name] for row, ratios in by_row.items() if name in ratios} for name in last["timed"]}
    return {"cost": cost, "timed": last["timed"], "load": last["load"]}


if __name__ == "__main__":
    raise SystemExit(main())
