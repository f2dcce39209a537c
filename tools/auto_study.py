"""Measure `fuse`, `auto` and every method on all available networks: results/auto.{json,md} and results/methods.{json,md}.

    python tools/fetch.py all && python tools/fetch.py networks     # images and ImageNet networks
    python tools/auto_networks.py                                   # small networks of other families, trained here
    python tools/auto_study.py                                      # runs and measures those that are available
    python tools/auto_study.py --tables                             # writes the tables again from auto.json

Every network runs once over its images. Then every method at its defaults, `fuse`, `auto` and SCALE at the percentile that pseudo-OOD
images choose are fitted on ID training and validation images and measured on other images. Missing networks or images are skipped.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import auto_tables
from auto_networks import NETS
from auto_setups import PLANS, Places, Setup, open_setup
from fetch import FetchError
from idness.core.errors import IdnessError, IdnessWarning
from idness.core.files import atomic_write
from idness.core.types import Activations, is_signed
from idness.detectors.detector import Detector
from idness.detectors.registry import build, parse, rows
from idness.intervals import Ranks, fpr_intervals, mean_auroc_difference, mean_auroc_interval, ranks
from idness.methods.fuse import FOR_FEW, FOR_SIGNED, RECIPES
from idness.metrics import accuracy, auroc, fpr_at_id_recall
from idness.selection.recommend import mean_logit, recommend, scale_gains, scale_percentile

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared" / "data"
RESULTS = REPOSITORY / "results"
FUSED = ("fuse", "auto", "scale(auto)")
"""Entries that are not a single method at its defaults."""
VERDICTS = {True: "helps", False: "harms", None: "makes little difference"}
WEIGHTS, CAPS = (0.0, 0.25, 0.5), (inf, -0.5, -0.75, -1.0, -1.25, -1.5)
"""The weights of RAS and the limits of distances that are compared."""
TURNED_BACK = (FileNotFoundError, FetchError, IdnessError, ImportError)
"""Errors of a network or a set that is not available."""


@dataclass
class Scored:
    """The scores of every method on every set of one network, and what could not be scored.

    `labels` has the detector as the command line takes it, `seen` the images of methods that were not scored on all of them.
    """

    scores: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    seen: dict[str, Setup] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, row: str, detector: Detector, setup: Setup) -> None:
        """Fit and score one method."""
        try:
            detector.fit(setup.head, setup.train, val=setup.val)
            self.scores[row] = {name: detector.score(acts) for name, acts in sets_of(setup).items()}
            self.labels[row] = detector.label()
            if detector.needs_val and detector.remembers:  # as `auto` does: images that it remembers say nothing
                blind = detector.variants({})[0].fit(setup.head, setup.train)
                seen = ("val", *(name for name in self.scores[row] if name.startswith("pseudo ")))
                self.scores[row] |= {name: blind.score(sets_of(setup)[name]) for name in seen}
        except IdnessError as error:
            self.failed[row] = str(error)


def sets_of(setup: Setup) -> dict[str, Activations]:
    """Return all sets but the one that methods learn from."""
    pseudo = {f"pseudo {kind}": acts for kind, acts in setup.pseudo.items()}
    return {"val": setup.val, "test": setup.test, **setup.near, **setup.far, **pseudo}


def score_all(setup: Setup) -> tuple[Scored, dict[str, Any]]:
    """Score every method, `auto` and SCALE at a chosen percentile; return the scores and the recommendation."""
    found = Scored()
    for row, detector in rows(costly=True).items():
        if (editor := detector.input_edit) is None:
            found.add(row, detector, setup)
        elif setup.edited is None:
            found.failed[row] = "runs the network again on changed images, which are not available"
        else:
            found.seen[row] = setup.edited(editor)
            found.add(row, detector, found.seen[row])
    advice = recommend(setup.head, setup.train, setup.val, pseudo=setup.pseudo)
    found.add("auto", advice.detector, setup)
    gains = scale_gains(setup.head, setup.val, setup.pseudo)
    percentile = scale_percentile(gains)
    found.add("scale(auto)", build("ebo") if percentile is None else build("scale", percentile=percentile), setup)
    scaling = next(finding for finding in advice.findings if finding.name == "scaling")
    return found, {
        "auto": {"method": advice.detector.label(), "why": advice.why, "risk": advice.risk},
        "doctor": {"method": advice.method, "scale": VERDICTS[scaling.good], "text": scaling.text},
        "scale gains on pseudo-OOD images, logits": {f"{p:g}": round(gain, 3) for p, gain in gains.items()},
    }


def ranks_of(scores: Mapping[str, Tensor], setup: Setup) -> Ranks:
    """Rank test images among all OOD sets; the near ones together weigh as much as the far ones."""
    weights = [1 / len(group) for group in (setup.near, setup.far) for _ in group]
    return ranks(scores["test"], [scores[name] for name in (*setup.near, *setup.far)], weights)


def measure(scores: Mapping[str, Tensor], setup: Setup, plain: Ranks) -> dict[str, Any]:
    """Measure one method: near, far and the mean of both, with 95 % intervals, and the difference to the energy score."""
    both = ranks_of(scores, setup)
    found: dict[str, Any] = {
        "mean": {"auroc": _rounded(both.auroc, *mean_auroc_interval(both))},
        "difference to ebo": _rounded(*mean_auroc_difference(both, plain)[:3]),
    }
    kinds = {kind: scores[f"pseudo {kind}"] for kind in setup.pseudo if f"pseudo {kind}" in scores}
    if kinds:  # methods of two passes are not run on pseudo-OOD images: `auto` never uses them
        found["pseudo-OOD images"] = round(mean_logit(scores["val"], kinds), 4)
    for group, names in (("near", setup.near), ("far", setup.far)):
        oods = [scores[name] for name in names]
        part = ranks(scores["test"], oods)
        fpr = float(np.mean([fpr_at_id_recall(scores["test"], ood) for ood in oods]))
        found[group] = {
            "auroc": _rounded(part.auroc, *mean_auroc_interval(part)),
            "fpr_at_id_recall": _rounded(fpr, *(fpr_intervals("fpr_at_id_recall", scores["test"], oods)[-1] or ())),
            "sets": {name: round(auroc(scores["test"], scores[name]), 5) for name in names},
        }
    return found


def study(setup: Setup) -> tuple[dict[str, Any], Scored]:
    """Measure everything on one network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdnessWarning)  # that a method does not suit shows in its figures
        scored, advised = score_all(setup)
        plain = ranks_of(scored.scores["ebo"], setup)
        beside = {row: _beside(seen, advised["auto"]["method"]) for row, seen in scored.seen.items()}
    methods = {
        row: {"label": scored.labels[row]} | measure(s, setup, beside[row][0] if row in beside else plain)
        for row, s in scored.scores.items()
    }
    # By their gain on their own images, which are fewer for some methods of two passes.
    singles = {row: item["difference to ebo"][0] for row, item in methods.items() if row not in FUSED}
    best = max(singles, key=lambda row: singles[row])
    rival = ranks_of(scored.scores[best], setup)
    ours = beside[best][1] if best in beside else ranks_of(scored.scores["auto"], setup)
    found = {
        "about": setup.plan.about,
        "chosen on": setup.plan.chosen_on,
        "family": setup.plan.family,
        "features": setup.head.width,
        "classes": setup.head.classes,
        "signed": is_signed(setup.train),
        "accuracy": round(accuracy(setup.test.logits, setup.test.labels), 4),
        "images": {"train": len(setup.train)} | {name: len(acts) for name, acts in sets_of(setup).items()},
        "one in so many for two passes": setup.plan.twice_every,
        "near": list(setup.near),
        "far": list(setup.far),
        "best single": best,
        "regret": _rounded(*mean_auroc_difference(rival, ours)[:3]),
        "sums": sums_of(scored.scores, setup, plain),
        **advised,
        "methods": methods,
        "left out": scored.failed,
    }
    return found, scored


def sums_of(scores: Mapping[str, Mapping[str, Tensor]], setup: Setup, plain: Ranks) -> dict[str, list[float]]:
    """Return the gains over EBO, near and mean, of the parts of `fuse` for few classes, by the weight of RAS and the limit."""
    names = ("test", *setup.near, *setup.far)

    def standardized(row: str) -> Tensor:
        mean, spread = scores[row]["val"].mean(), scores[row]["val"].std().clamp(min=1e-9)
        return (torch.cat([scores[row][name] for name in names]) - mean) / spread

    recipe = RECIPES[FOR_SIGNED if is_signed(setup.train) else FOR_FEW]
    first, ras, *limited = (standardized(parse(text).name) for text in recipe)
    near, found = ranks(scores["ebo"]["test"], [scores["ebo"][name] for name in setup.near]), {}
    for weight, cap in product(WEIGHTS, CAPS):
        total = first + weight * ras + sum(part.clamp(max=cap) for part in limited)
        split = dict(zip(names, total.split([len(scores["ebo"][name]) for name in names]), strict=True))
        gain = ranks(split["test"], [split[name] for name in setup.near]).auroc - near.auroc
        found[f"{weight:g} ras, {cap:g}"] = _rounded(gain, ranks_of(split, setup).auroc - plain.auroc)
    return found


def _beside(setup: Setup, auto: str) -> tuple[Ranks, Ranks]:
    """Rank the images that a method of two passes has seen by the energy score and by `auto`."""
    energy, ours = (parse(text).fit(setup.head, setup.train, val=setup.val) for text in ("ebo", auto))
    found = [{name: row.score(acts) for name, acts in sets_of(setup).items()} for row in (energy, ours)]
    return ranks_of(found[0], setup), ranks_of(found[1], setup)


def _rounded(*values: float) -> list[float]:
    return [round(float(value), 5) for value in values]


def main() -> int:
    """Measure the available networks and write the tables."""
    parser = argparse.ArgumentParser(description="Measure fuse, auto and every method on all available networks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PLANS)}; all if not given")
    parser.add_argument("--tables", action="store_true", help="only write the tables again from auto.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.tables:
        write(json.loads((RESULTS / "auto.json").read_text(encoding="utf-8")), RESULTS)
        return 0
    networks = {}
    for name in given.names or PLANS:
        try:
            setup = open_setup(name, Places(REPOSITORY / ".data", SHARED, NETS))
        except TURNED_BACK as error:
            print(f"{name}: skipped: {error}", flush=True)
            continue
        networks[name], _ = study(setup)
        print(f"{name}: regret {networks[name]['regret'][0]:+.4f}", flush=True)
    missing = {name: plan.about for name, plan in PLANS.items() if name not in networks}
    command = " ".join(["python tools/auto_study.py", *given.names])
    write({"command": command, "networks": networks, "passed over": missing}, RESULTS)
    return 0


def write(results: Mapping[str, Any], to: Path) -> None:
    """Write the figures and both tables."""
    families = {name: network["family"] for name, network in results["networks"].items()}
    methods = {"networks": families, "methods": auto_tables.methods_table(results["networks"])}
    for name, content, page in (
        ("auto", results, auto_tables.auto_page(results)),
        ("methods", methods, auto_tables.methods_page(**methods)),
    ):
        atomic_write(to / f"{name}.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        atomic_write(to / f"{name}.md", page)
    print(auto_tables.summary(results["networks"]))


if __name__ == "__main__":
    raise SystemExit(main())
