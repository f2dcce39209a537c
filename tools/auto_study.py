"""Prove `fuse` and `auto` on every network at hand: results/auto.json and results/auto.md.

    python tools/fetch.py all && python tools/fetch.py networks     # pictures and ImageNet networks
    python tools/auto_networks.py                                   # small networks of other families, trained here
    python tools/auto_study.py                                      # runs and measures whatever of it all is there

Every network runs once over its pictures (kept in .data/auto), then every method of the registry at its defaults, `fuse`,
`auto` and SCALE with the percentile that stand-ins choose are fitted on ID training and validation images and measured on
test images that nothing else has seen. Networks or pictures that are missing are passed over with a line.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

import auto_tables
from auto_images import Places
from auto_left_out import Case, left_out
from auto_networks import NETS
from auto_worlds import PLANS, World, open_world
from fetch import FetchError
from idness.core.errors import IdnessError, IdnessWarning
from idness.core.files import atomic_write
from idness.core.types import Activations
from idness.detectors.detector import Detector, fit_many, score_many
from idness.detectors.registry import build, parse, rows
from idness.intervals import Ranks, mean_auroc_difference, mean_auroc_interval, mean_fpr_interval, ranks
from idness.metrics import accuracy, auroc, fpr_at_id_recall
from idness.selection.recommend import PERCENTILES, mean_logit, recommend, scale_gains, scale_percentile

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared" / "data"
RESULTS = REPOSITORY / "results"
FUSED = ("fuse", "auto", "scale(auto)")
"""Rows that are no single method at its defaults."""
SETTINGS = 12
"""The most settings of a method's search grid that are tried, evenly picked."""
SLOW = ("weiper",)
"""Methods that are tried at their defaults only: with 700 classes each setting takes minutes."""
VERDICTS = {True: "helps", False: "harms", None: "makes little difference"}
TURNED_BACK = (FileNotFoundError, FetchError, IdnessError, ImportError)
"""What says that a network or a set is not here."""


@dataclass
class Scored:
    """Holds the scores of every row on every set of one network, and what could not be scored.

    Args:
        scores: by row and set; the sets are val, test, the OOD sets, and `stand-in` and its kind, also of kinds that idness
            does not make.
        labels: by row, the detector as the command line takes it.
        seen: by row, what it was scored on, where that is not all images.
        failed: by row, why it could not be fitted.
    """

    scores: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    seen: dict[str, World] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, row: str, detector: Detector, world: World) -> None:
        """Fit and score one row."""
        try:
            detector.fit(world.head, world.train, val=world.val)
            self.scores[row] = {name: detector.score(acts) for name, acts in sets_of(world).items()}
            self.labels[row] = detector.label()
            if detector.needs_val and detector.remembers:  # what it knows by heart says nothing; so `auto` sees it too
                blind = detector.variants({})[0].fit(world.head, world.train)
                seen = ("val", *(name for name in self.scores[row] if name.startswith("stand-in ")))
                self.scores[row] |= {name: blind.score(sets_of(world)[name]) for name in seen}
        except IdnessError as error:
            self.failed[row] = str(error)


def sets_of(world: World) -> dict[str, Activations]:
    """List all sets but the one that methods learn from."""
    stand_ins = {f"stand-in {kind}": acts for kind, acts in (world.pseudo | dict(world.rivals)).items()}
    return {"val": world.val, "test": world.test, **world.near, **world.far, **stand_ins}


def score_all(world: World) -> tuple[Scored, dict[str, Any]]:
    """Score every row, `auto` and SCALE at a chosen percentile; with what was advised."""
    found = Scored()
    for row, detector in rows(costly=True).items():
        if (editor := detector.input_edit) is None:
            found.add(row, detector, world)
        elif world.edited is None:
            found.failed[row] = "runs the network again on changed pictures, and there are none here"
        else:
            found.seen[row] = world.edited(editor)
            found.add(row, detector, found.seen[row])
    advice = recommend(world.head, world.train, world.val, pseudo=world.pseudo)
    found.add("auto", advice.detector, world)
    gains = scale_gains(world.head, world.val, world.pseudo)
    percentile = scale_percentile(gains)
    found.add("scale(auto)", build("ebo") if percentile is None else build("scale", percentile=percentile), world)
    scaling = next(finding for finding in advice.findings if finding.name == "scaling")
    return found, {
        "auto": {"method": advice.detector.label(), "why": advice.why, "risk": advice.risk},
        "doctor": {"method": advice.method, "scale": VERDICTS[scaling.good], "text": scaling.text},
        "scale gains on stand-ins, logits": {f"{p:g}": round(gain, 3) for p, gain in gains.items()},
    }


def scores_of_scale(world: World) -> dict[float, dict[str, Tensor]]:
    """Score every set by SCALE at each percentile that it may choose."""
    detectors = [build("scale", percentile=p).fit(world.head) for p in PERCENTILES]
    found = {name: score_many(detectors, acts) for name, acts in sets_of(world).items()}
    return {p: {name: values[place] for name, values in found.items()} for place, p in enumerate(PERCENTILES)}


def best_setting(world: World, plain: Ranks) -> dict[str, Any]:
    """Find the single method that is best on the test sets at any setting of its search grid: what no choice can promise."""
    best = ("ebo", plain.auroc)
    tested = {name: acts for name, acts in sets_of(world).items() if name != "val" and not name.startswith("stand-in ")}
    for detector in rows().values():
        if detector.name == "fuse":
            continue
        others = detector.variants() if detector.grid and detector.name not in SLOW else []
        settings = _fitted([detector, *others[:: -(-len(others) // SETTINGS) or 1]], world)
        scores = {name: score_many(settings, acts) for name, acts in tested.items()}
        for place, setting in enumerate(settings):
            value = ranks_of({name: values[place] for name, values in scores.items()}, world).auroc
            best = max(best, (setting.label(), value), key=lambda item: item[1])
    return {"label": best[0], "auroc": round(best[1], 5), "difference to ebo": round(best[1] - plain.auroc, 5)}


def _fitted(settings: list[Detector], world: World) -> list[Detector]:
    """Fit settings together, or one by one where one of them spoils the common fit."""
    try:
        fit_many(settings, world.head, world.train, val=world.val)
        return settings
    except IdnessError:
        return [] if len(settings) == 1 else [one for setting in settings for one in _fitted([setting], world)]


def ranks_of(scores: Mapping[str, Tensor], world: World) -> Ranks:
    """Rank test images among all OOD sets; the near ones together weigh as much as the far ones."""
    weights = [1 / len(group) for group in (world.near, world.far) for _ in group]
    return ranks(scores["test"], [scores[name] for name in (*world.near, *world.far)], weights)


def measure(scores: Mapping[str, Tensor], world: World, plain: Ranks) -> dict[str, Any]:
    """Measure one row: near, far and the mean of both, with 95 % intervals, and the difference to the energy score."""
    both = ranks_of(scores, world)
    found: dict[str, Any] = {
        "mean": {"auroc": _rounded(both.auroc, *mean_auroc_interval(both))},
        "difference to ebo": _rounded(*mean_auroc_difference(both, plain)[:3]),
    }
    kinds = {kind: scores[f"stand-in {kind}"] for kind in world.pseudo if f"stand-in {kind}" in scores}
    if kinds:  # methods of two looks are not run on stand-ins: `auto` never takes them
        found["stand-ins"] = round(mean_logit(scores["val"], kinds), 4)
    for group, names in (("near", world.near), ("far", world.far)):
        oods = [scores[name] for name in names]
        part = ranks(scores["test"], oods)
        fpr = float(np.mean([fpr_at_id_recall(scores["test"], ood) for ood in oods]))
        found[group] = {
            "auroc": _rounded(part.auroc, *mean_auroc_interval(part)),
            "fpr_at_id_recall": _rounded(fpr, *(mean_fpr_interval("fpr_at_id_recall", scores["test"], oods) or ())),
            "sets": {name: round(auroc(scores["test"], scores[name]), 5) for name in names},
        }
    return found


def study(world: World, *, settings: bool = True) -> tuple[dict[str, Any], Scored]:
    """Measure everything on one network; the best of all settings in hindsight only if wanted, as that takes longest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdnessWarning)  # that a method does not suit shows in its figures
        scored, advised = score_all(world)
        plain = ranks_of(scored.scores["ebo"], world)
        tuned = best_setting(world, plain) if settings else None
        beside = {row: _beside(seen, advised["auto"]["method"]) for row, seen in scored.seen.items()}
    methods = {
        row: {"label": scored.labels[row]} | measure(s, world, beside[row][0] if row in beside else plain)
        for row, s in scored.scores.items()
    }
    # By what they gain on their own images, which for methods of two looks may be fewer.
    singles = {row: item["difference to ebo"][0] for row, item in methods.items() if row not in FUSED}
    best = max(singles, key=lambda row: singles[row])
    order = [(methods[row]["stand-ins"], value) for row, value in singles.items() if "stand-ins" in methods[row]]
    rival = ranks_of(scored.scores[best], world)
    ours = beside[best][1] if best in beside else ranks_of(scored.scores["auto"], world)
    assert world.test.labels is not None
    found = {
        "about": world.plan.about,
        "chosen on": world.plan.chosen_on,
        "features": world.head.width,
        "classes": world.head.classes,
        "accuracy": round(accuracy(world.test.logits, world.test.labels), 4),
        "images": {"train": len(world.train)} | {name: len(acts) for name, acts in sets_of(world).items()},
        "one in so many for two looks": world.plan.twice_every,
        "near": list(world.near),
        "far": list(world.far),
        "best single": best,
        "best at any option": tuned,
        "regret": _rounded(*mean_auroc_difference(rival, ours)[:3]),
        "spearman": round(float(spearmanr(*zip(*order, strict=True)).statistic), 3),
        **advised,
        "methods": methods,
        "left out": scored.failed,
    }
    return found, scored


def _beside(world: World, auto: str) -> tuple[Ranks, Ranks]:
    """Rank the images that a method of two looks has seen by the energy score and by `auto`."""
    energy, ours = (parse(text).fit(world.head, world.train, val=world.val) for text in ("ebo", auto))
    found = [{name: row.score(acts) for name, acts in sets_of(world).items()} for row in (energy, ours)]
    return ranks_of(found[0], world), ranks_of(found[1], world)


def _with_former(networks: Mapping[str, Any], former: Mapping[str, Any]) -> dict[str, Any]:
    """Add the networks of an earlier run that this one has not measured, each with the command it was measured by."""
    kept = {name: {"kept from": former["command"], **found} for name, found in former["networks"].items()}
    return {name: (kept | dict(networks))[name] for name in PLANS if name in kept or name in networks}


def _rounded(*values: float) -> list[float]:
    return [round(float(value), 5) for value in values]


def main() -> int:
    """Study what is there."""
    parser = argparse.ArgumentParser(description="Prove fuse and auto on every network at hand.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PLANS)}; all if not given")
    parser.add_argument("--data", type=Path, default=REPOSITORY / ".data", help="folder of tools/fetch.py")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder of real data beside the repository")
    parser.add_argument("--nets", type=Path, default=NETS, help="folder of tools/auto_networks.py")
    parser.add_argument(
        "--settings", action="store_true", help="look for the best setting of any method in hindsight too"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the figures of networks that are not at hand now from the last run"
    )
    parser.add_argument("--to", type=Path, default=RESULTS, help="folder of the results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    places = Places(given.data, given.shared, given.nets)
    networks, cases = {}, {}
    for name in given.names or PLANS:
        try:
            world = open_world(name, places)
        except TURNED_BACK as error:
            print(f"{name}: passed over: {error}", flush=True)
            continue
        networks[name], found = study(world, settings=given.settings)
        cases[name] = Case(
            found.scores, tuple(world.near), tuple(world.far), world.plan.family or name, scores_of_scale(world)
        )
        item = networks[name]
        print(
            f"{name}: auto {item['methods']['auto']['mean']['auroc'][0]:.4f}, regret {item['regret'][0]:+.4f}",
            flush=True,
        )
    if given.keep and (given.to / "auto.json").is_file():
        networks = _with_former(networks, json.loads((given.to / "auto.json").read_text(encoding="utf-8")))
    missing = {name: plan.about for name, plan in PLANS.items() if name not in networks}
    asked = " ".join(
        [
            "python tools/auto_study.py",
            *given.names,
            *(["--settings"] if given.settings else []),
            *(["--keep"] if given.keep else []),
        ]
    )
    results = {"command": asked, "networks": networks, "passed over": missing}
    results["left out"] = left_out(cases) if len(cases) > 2 else {}
    atomic_write(given.to / "auto.json", json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    atomic_write(given.to / "auto.md", auto_tables.page(results))
    print(auto_tables.summary(results["networks"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
