"""Measure the networks of tools/train_networks.py on the embedded benchmark: results/training/{ish,rows}.{json,md}

    python tools/train_networks.py       # trains the networks
    python tools/training_results.py     # measures the new ones, and writes both tables

`ish` compares fine-tuned networks (10 epochs): EBO has no options; the percentiles of ASH-S and SCALE are chosen for each network by AUROC
of ID validation against OOD validation (horse, groceries), never on a test set. `rows` compares all training methods after one epoch,
each network with the detectors of the papers at their defaults: LogitNorm with MSP, CIDER with KNN, ConfBranch with its own confidence.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idness.core.files import atomic_write, sha256
from idness.core.types import Activations
from idness.data import embedded
from idness.detectors.detector import Detector, fit_many, score_many
from idness.detectors.registry import build, rows
from idness.metrics import accuracy, all_metrics, auroc
from idness.networks.load import load_model
from idness.networks.split import SplitModel
from idness.training.objective import CIFAR_MEAN, CIFAR_STD

REPOSITORY = Path(__file__).resolve().parents[1]
OUT = REPOSITORY / "results" / "training"
METRICS = ("auroc", "fpr_at_id_recall", "fpr_at_ood_recall")
GROUPS = ("near", "far")
SEARCHED, PLAIN = ("ebo", "ash-s", "scale"), ("msp", "ebo", "knn")
"""The detectors of `ish` and of `rows`."""
TUNED = {
    "base": ["base"],
    "plain extended": ["plain-0", "plain-1", "plain-2"],
    "ISH": ["ish-0", "ish-1", "ish-2"],
    "ISH, pruned": ["ish-prune-0"],
    "LogitNorm": ["logitnorm-0"],
    "RegMixup": ["regmixup-0"],
}
SHORT = {
    shown: [f"{name}-short-{seed}" for seed in range(3)]
    for name, shown in {
        "plain": "plain",
        "logitnorm": "LogitNorm",
        "confbranch": "ConfBranch",
        "cider": "CIDER",
        "augmix": "AugMix",
        "regmixup": "RegMixup",
    }.items()
}
Sets = dict[str, dict[str, Activations]]
Results = Mapping[str, Mapping[str, Any]]


def batches(images: Tensor) -> Iterator[Tensor]:
    """Yield images normalised as in training."""
    mean, std = torch.tensor(CIFAR_MEAN).view(-1, 1, 1), torch.tensor(CIFAR_STD).view(-1, 1, 1)
    for part in images.split(250):
        yield (part.permute(0, 3, 1, 2).float() / 255 - mean) / std


def extract(split: SplitModel) -> Sets:
    """Return the activations of a network on every set, by role and name."""
    found: Sets = {}
    for name in embedded.sets():
        data = embedded.load(name)
        acts = split.extract(batches(torch.from_numpy(data.images)))
        labels = None if data.labels is None else torch.from_numpy(data.labels)
        found.setdefault(data.role, {})[name] = Activations(acts.features, acts.logits, labels)
    return found


def choose(detector: Detector, split: SplitModel, sets: Sets) -> Detector:
    """Return a method fitted with its best option by the mean AUROC over the OOD validation sets."""
    train, val = (next(iter(sets[role].values())) for role in ("id_train", "id_val"))
    variants = detector.variants()
    fit_many(variants, split.head, train, val=val)
    ids, oods = score_many(variants, val), [score_many(variants, acts) for acts in sets["ood_val"].values()]
    means = [statistics.fmean(auroc(ids[i], ood[i]) for ood in oods) for i in range(len(variants))]
    return variants[means.index(max(means))]


def measure(folder: Path, *, search: bool) -> dict[str, Any]:
    """Return the metrics of one network with every detector: near and far means and each set."""
    split = SplitModel(load_model("small_resnet", folder / "weights.safetensors"))
    sets = extract(split)
    train, test = (next(iter(sets[role].values())) for role in ("id_train", "id_test"))
    assert test.labels is not None
    found: dict[str, Any] = {"accuracy": accuracy(test.logits, test.labels), "methods": {}}
    own = ("confbranch",) if folder.name.startswith("confbranch") else ()
    for name in SEARCHED if search else (*PLAIN, *own):
        options = {"run": str(folder)} if name == "confbranch" else {}
        detector = choose(rows()[name], split, sets) if search else build(name, **options).fit(split.head, train)
        ids = detector.score(test)
        each = {g: {key: all_metrics(ids, detector.score(acts)) for key, acts in sets[g].items()} for g in GROUPS}
        means = {g: {m: statistics.fmean(v[m] for v in each[g].values()) for m in METRICS} for g in GROUPS}
        chosen = {"options": detector.options()} if search else {}
        found["methods"][name] = {**chosen, "sets": each, **means}
    return found


def spread(values: Sequence[float]) -> str:
    """Return a percentage: one value, or mean and standard deviation over seeds."""
    percents = [100 * value for value in values]
    mean = f"{statistics.fmean(percents):.2f}"
    return f"{mean} ± {statistics.stdev(percents):.2f}" if len(percents) > 1 else mean


def table(results: Results, networks: Mapping[str, Sequence[str]], *, search: bool) -> list[str]:
    """Return the table, one row for each network and detector; with `search`, the chosen percentiles too."""
    columns = ["network", "seeds", "ID accuracy", "detector", *(["percentile"] if search else [])]
    columns += [f"{group} {metric}" for group in GROUPS for metric in ("AUROC", "FPR")]
    lines = [f"| {' | '.join(columns)} |", "|---|--:|--:|---|" + ("---|" if search else "") + "--:|" * 4]
    for shown, runs in networks.items():
        seeds = [results[run] for run in runs if run in results]
        if not seeds:
            lines.append(f"| {shown} | not trained |{' |' * (len(columns) - 2)}")
        for number, method in enumerate(seeds[0]["methods"] if seeds else ()):
            cells = [seed["methods"][method] for seed in seeds]
            first = [shown, str(len(seeds)), spread([seed["accuracy"] for seed in seeds])] if number == 0 else [""] * 3
            values = [spread([cell[g][m] for cell in cells]) for g in GROUPS for m in METRICS[:2]]
            if search:
                chosen = [cell["options"].get("percentile") for cell in cells]
                values = [", ".join(f"{p:g}" for p in chosen if p is not None) or "none", *values]
            lines.append(f"| {' | '.join([*first, method, *values])} |")
    return lines


def differences(results: Results) -> list[str]:
    """Return, per method, the differences between ISH and the plain fine-tuned network of the same seed."""
    pairs = [(f"ish-{s}", f"plain-{s}") for s in range(3) if f"ish-{s}" in results and f"plain-{s}" in results]
    lines = ["| method | group | AUROC | each seed | FPR | each seed |", "|---|---|--:|---|--:|---|"]
    for method in SEARCHED:
        for group in GROUPS:
            cells = []
            for metric in METRICS[:2]:
                ours, plain = (
                    [results[run]["methods"][method][group][metric] for run in side]
                    for side in zip(*pairs, strict=True)
                )
                gaps = [100 * (x - y) for x, y in zip(ours, plain, strict=True)]
                cells += [f"{statistics.fmean(gaps):+.2f}", ", ".join(f"{gap:+.2f}" for gap in gaps)]
            lines.append(f"| {method} | {group} | {' | '.join(cells)} |")
    return lines if pairs else ["Not trained yet."]


def ish_page(results: Results) -> str:
    """Return results/training/ish.md."""
    near, far = (", ".join(embedded.sets(role)) for role in GROUPS)
    return f"""# ISH and other training methods on the embedded benchmark

Made by `python tools/training_results.py` from the networks of `python tools/train_networks.py`; every number is in `ish.json`.

Near: {near}. Far: {far}. Plain means over the sets, percent.
FPR: share of OOD images accepted at 95 % ID recall (the other convention is in `ish.json`). Mean ± standard deviation over seeds.
Percentiles are chosen on validation data per network (id_val against horse and groceries), one for each seed. All networks start from
the same base network and are trained 10 epochs with ISH's recipe (SGD, Nesterov, cosine from 0.003 to 0, weight decay 5e-6); a seed
sees the same images and crops in the same order with every method. Seeds 0 and 1 are also those of the base network's two stages, so
these runs see crops again that the base network has learned from; seed 2 does not. That is likely why seed 1 has the highest training
accuracy.

{chr(10).join(table(results, TUNED, search=True))}

## Differences of ISH to the plain fine-tune of the same seed

Points of percent; higher AUROC and lower FPR are better.

{chr(10).join(differences(results))}
"""


def rows_page(results: Results) -> str:
    """Return results/training/rows.md."""
    return f"""# All training methods, one epoch each

Made by `python tools/training_results.py` from the runs `NAME-short-SEED` of `python tools/train_networks.py`; every number is in
`rows.json`. All start from the same base network and are trained **one epoch** with ISH's recipe (SGD, Nesterov, cosine from 0.003 to 0,
weight decay 5e-6): far less than in their papers, so the table shows the direction of a method, not its worth. `plain` is the
control of the same length. Plain means over the sets, percent; FPR: share of OOD images accepted at 95 % ID recall; mean ± standard
deviation over seeds. Longer runs of some methods: `ish.md`.

{chr(10).join(table(results, SHORT, search=False))}
"""


def main() -> int:
    """Measure every network that is new, and write both tables."""
    parser = argparse.ArgumentParser(description="Measure the fine-tuned networks on the embedded benchmark.")
    parser.add_argument("--runs", type=Path, default=REPOSITORY / "runs", help="folder of the training runs")
    parser.add_argument("--again", action="store_true", help="also measure networks whose weights have not changed")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name, networks, page in (("ish", TUNED, ish_page), ("rows", SHORT, rows_page)):
        place = OUT / f"{name}.json"
        results: dict[str, Any] = json.loads(place.read_text()) if place.is_file() else {}
        for run in [run for runs in networks.values() for run in runs]:
            weights = given.runs / run / "weights.safetensors"
            if weights.is_file() and (given.again or results.get(run, {}).get("sha256") != sha256(weights)):
                results[run] = {"sha256": sha256(weights), **measure(weights.parent, search=name == "ish")}
                print(f"{run}: accuracy {results[run]['accuracy']:.2%}", flush=True)
                atomic_write(place, json.dumps(results, indent=1) + "\n")
        atomic_write(OUT / f"{name}.md", page(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
