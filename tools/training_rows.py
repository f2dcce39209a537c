"""Measure the short training runs on the embedded benchmark: python tools/training_rows.py

Writes results/training/rows.md and rows.json from the runs NAME-short-SEED of tools/train_networks.py that are done. Each network is
read with the detectors of the papers: LogitNorm with MSP, CIDER with KNN, ConfBranch with its own confidence; options at defaults.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from idness.core.files import atomic_write, sha256
from idness.core.types import Activations
from idness.data import embedded
from idness.detectors.registry import build
from idness.metrics import accuracy, all_metrics
from idness.networks.load import load_model
from idness.networks.split import SplitModel
from ish_table import METRICS, REPOSITORY, batches, spread

OUT = REPOSITORY / "results" / "training"
ROWS = {
    "plain": "plain",
    "logitnorm": "LogitNorm",
    "confbranch": "ConfBranch",
    "cider": "CIDER",
    "augmix": "AugMix",
    "regmixup": "RegMixup",
}
READ = ("msp", "ebo", "knn")
GROUPS = ("near", "far")


def measure(folder: Path) -> dict[str, Any]:
    """Run one network over the sets and score it with every detector."""
    split = SplitModel(load_model(str(folder)))
    found: dict[str, Activations] = {}
    for name in ("id_train", "id_test", *embedded.sets("near"), *embedded.sets("far")):
        data = embedded.load(name)
        acts = split.extract(batches(torch.from_numpy(data.images)))
        labels = None if data.labels is None else torch.from_numpy(data.labels)
        found[name] = Activations(acts.features, acts.logits, labels)
    test = found["id_test"]
    assert test.labels is not None
    result: dict[str, Any] = {"accuracy": accuracy(test.logits, test.labels), "methods": {}}
    own = ["confbranch"] if folder.name.startswith("confbranch") else []
    for method in (*READ, *own):
        options = {"run": str(folder)} if method == "confbranch" else {}
        detector = build(method, **options).fit(split.head, found["id_train"])
        ids = detector.score(test)
        sets = {g: {n: all_metrics(ids, detector.score(found[n])) for n in embedded.sets(g)} for g in GROUPS}
        means = {g: {m: statistics.fmean(v[m] for v in sets[g].values()) for m in METRICS} for g in GROUPS}
        result["methods"][method] = {**means, "sets": sets}
    return result


def table(results: dict[str, Any]) -> list[str]:
    """Write one line for each training method and detector."""
    lines = ["| network | seeds | ID accuracy | detector | near AUROC | near FPR | far AUROC | far FPR |"]
    lines.append("|---|--:|--:|---|--:|--:|--:|--:|")
    for row, shown in ROWS.items():
        seeds = [found for run, found in sorted(results.items()) if run.startswith(f"{row}-short-")]
        if not seeds:
            lines.append(f"| {shown} | not measured | | | | | | |")
        for number, method in enumerate(seeds[0]["methods"] if seeds else ()):
            values = [spread([s["methods"][method][g][m] for s in seeds]) for g in GROUPS for m in METRICS[:2]]
            first = [shown, str(len(seeds)), spread([s["accuracy"] for s in seeds])] if number == 0 else [""] * 3
            lines.append(f"| {' | '.join([*first, method, *values])} |")
    return lines


def main() -> None:
    """Measure every run that is done, and write the table."""
    parser = argparse.ArgumentParser(description="Measure the short training runs on the embedded benchmark.")
    parser.add_argument("--runs", type=Path, default=REPOSITORY / "runs", help="folder of the training runs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    place = OUT / "rows.json"
    results: dict[str, Any] = json.loads(place.read_text()) if place.is_file() else {}
    for folder in sorted(given.runs.glob("*-short-*")):
        weights = folder / "weights.safetensors"
        if weights.is_file() and results.get(folder.name, {}).get("sha256") != sha256(weights):
            results[folder.name] = {"sha256": sha256(weights), **measure(folder)}
            print(f"{folder.name}: accuracy {results[folder.name]['accuracy']:.2%}", flush=True)
            atomic_write(place, json.dumps(results, indent=1) + "\n")
    text = [
        "# The training rows, one epoch each",
        "",
        "Made by `python tools/training_rows.py` from the runs `NAME-short-SEED` of `python tools/train_networks.py`;",
        "every number is in `rows.json`. All start from the same base network and are trained **one epoch** with ISH's recipe",
        "(SGD, Nesterov, cosine from 0.003 to 0, weight decay 5e-6): far less than their papers do, so that a row shows the",
        "direction of a method, not its worth. `plain` is the control of the same length. Plain means over the sets, percent;",
        "FPR: share of OOD images accepted at 95 % ID recall; mean ± standard deviation where there are several seeds.",
        "Longer runs of some rows: `ish.md`.",
        "",
        *table(results),
        "",
    ]
    atomic_write(OUT / "rows.md", "\n".join(text))
    print("\n".join(text))


if __name__ == "__main__":
    main()
