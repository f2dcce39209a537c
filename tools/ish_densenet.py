"""Fine-tune the paper's CIFAR-10 DenseNet-101 with ISH and with the plain loss, and compare the results.

    python tools/fetch.py cifar10
    python ../shared/data/cifar-tables/unpack.py .data/tables
    python tools/ish_densenet.py train ish      # resumes after an interruption
    python tools/ish_densenet.py train plain
    python tools/ish_densenet.py measure        # writes results/training/ish-densenet.md and .json

Both runs follow the paper's recipe (SGD with Nesterov momentum, cosine from 0.003 to 0, weight decay 5e-6), start from the
weights in `../shared/data` and see the same images in the same order; they differ only in the final layer's weight gradient.
Each network then runs once over CIFAR-10 test, near OOD (CIFAR-100 test) and far OOD (SVHN, iSUN, Textures, Mini-Places).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from idness import Activations, Detector, SplitModel, build, intervals, load_model, metrics
from idness.networks import densenet
from idness.networks.engines import EngineRunner
from idness.training import TrainingSet, finetune

REPOSITORY = Path(__file__).resolve().parents[1]
WEIGHTS = REPOSITORY.parent / "shared" / "data" / "densenet101_cifar10.pth.tar"
PAGE = REPOSITORY / "results" / "training" / "ish-densenet.md"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
SETS = {
    "near": {"cifar100": "cifar100_test"},
    "far": {"svhn": "svhn", "isun": "isun_libjpeg9d", "textures": "textures", "places": "places_mini"},
}
METHODS = {
    "ebo": build("ebo"),
    "ash-s, p = 90": build("ash", percentile=90),
    "scale, p = 85": build("scale", percentile=85),
    "scale, p = 90": build("scale", percentile=90),
    "scale, p = 95": build("scale", percentile=95),
    "vra + actsub + vim + nci": build("fuse", parts="vra+actsub+vim+nci"),
}
NETWORKS = {"base": "before fine-tuning", "plain": "plain fine-tune", "ish": "ISH"}


def network() -> nn.Module:
    """Return the paper's network."""
    return load_model(f"{densenet.__file__}:DenseNet(classes=10)", WEIGHTS)


def train(method: str, archive: Path, out: Path, epochs: int, precision: str) -> None:
    """Fine-tune the network; an interrupted run resumes from its last checkpoint."""
    arrays, names = np.load(archive), tuple("0123456789")
    labels = {part: torch.from_numpy(arrays[f"{part}_labels"]).long() for part in ("train", "test")}
    parts = {part: TrainingSet(torch.from_numpy(arrays[f"{part}_images"]), labels[part], names) for part in labels}
    finetune(
        network(), parts["train"], method, val=parts["test"], out=out / f"{method}-{epochs}", progress=True,
        epochs=epochs, precision=precision, mean=MEAN, std=STD, seed=0, checkpoint_every=50,
    )  # fmt: skip


def batches(images: NDArray[np.uint8]) -> Iterator[Tensor]:
    """Yield normalised batches."""
    mean, std = torch.tensor(MEAN).view(-1, 1, 1), torch.tensor(STD).view(-1, 1, 1)
    for start in range(0, len(images), 64):
        part = torch.from_numpy(images[start : start + 64]).permute(0, 3, 1, 2)
        yield (part.float() / 255 - mean) / std


def extract(model: nn.Module, archive: Path, tables: Path, kept: Path) -> tuple[SplitModel, dict[str, Activations]]:
    """Return a network and its activations on every set, computed or read from an earlier run.

    Methods learn from the first 5,000 training images.
    """
    split = SplitModel(model.eval().to(memory_format=torch.channels_last), example=torch.rand(2, 3, 32, 32))
    cifar = np.load(archive)
    images = {"train": cifar["train_images"][:5000], "test": cifar["test_images"]}
    for name, file in (pair for group in SETS.values() for pair in group.items()):
        images[name] = np.load(tables / f"{file}.npz")["images"]
    features = load_file(kept) if kept.exists() else {}
    runner = EngineRunner("onnxruntime")
    for name, part in images.items():
        if name not in features:
            features[name] = torch.cat([runner.run(split, batch)[0] for batch in batches(part)])
            save_file(features, kept)
            print(f"{kept.stem}: {name}, {len(part):,} images", flush=True)
    labels = {"test": torch.from_numpy(cifar["test_labels"].astype(np.int64))}
    return split, {name: Activations(part, split.head(part), labels.get(name)) for name, part in features.items()}


def scored(split: SplitModel, acts: dict[str, Activations], detector: Detector) -> dict[str, Tensor]:
    """Return the scores of every set by a detector fitted on the training images."""
    detector.fit(split.head, acts["train"])
    return {name: detector.score(part) for name, part in acts.items() if name != "train"}


def measure(archive: Path, tables: Path, out: Path, epochs: int) -> dict[str, Any]:
    """Return a comparison of the three networks by method: AUROC and FPR of each, and ISH minus plain with paired intervals."""
    scores: dict[str, dict[str, dict[str, Tensor]]] = {}
    result: dict[str, Any] = {"epochs": epochs, "accuracy": {}, "methods": {}}
    for name in NETWORKS:
        model = network()
        if name != "base":
            model.load_state_dict(load_file(out / f"{name}-{epochs}" / "weights.safetensors"))
        split, acts = extract(model, archive, tables, out / f"{name}-{epochs}-features.safetensors")
        test = acts["test"]
        assert test.labels is not None
        result["accuracy"][name] = metrics.accuracy(test.logits, test.labels)
        scores[name] = {label: scored(split, acts, detector) for label, detector in METHODS.items()}
    for label in METHODS:
        row: dict[str, Any] = {name: {} for name in NETWORKS} | {"ish minus plain": {}}
        for group, sets in SETS.items():
            ranks = {}
            for name in NETWORKS:
                found = scores[name][label]
                oods = [found[key] for key in sets]
                ranks[name] = intervals.ranks(found["test"], oods)
                row[name][group] = {
                    "auroc": float(np.mean([metrics.auroc(found["test"], ood) for ood in oods])),
                    "fpr_at_id_recall": float(np.mean([metrics.fpr_at_id_recall(found["test"], o) for o in oods])),
                    "sets": {key: metrics.auroc(found["test"], found[key]) for key in sets},
                }
            gap = intervals.mean_auroc_difference(ranks["ish"], ranks["plain"])
            row["ish minus plain"][group] = {"auroc": gap.value, "low": gap.low, "high": gap.high}
        result["methods"][label] = row
    return result


def page(result: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        "# ISH on the paper's CIFAR-10 DenseNet-101",
        "",
        f"Made by `python tools/ish_densenet.py measure`. {result['epochs']} epochs of ISH and of the plain loss, one seed,",
        "bf16 autocast; the paper trains 10 epochs. Near OOD is CIFAR-100 test; far OOD is SVHN, iSUN, Textures and Mini-Places.",
        "AUROC and FPR at 95 % ID recall in percent, group means. Differences are in points, with paired 95 % intervals",
        "(DeLong), which cover the choice of test images, not of training runs.",
        "",
        "| network | ID accuracy |",
        "|---|--:|",
        *(f"| {title} | {100 * result['accuracy'][name]:.2f} |" for name, title in NETWORKS.items()),
        "",
    ]
    for group in SETS:
        lines += [
            f"## {group.capitalize()} OOD",
            "",
            "| method | before: AUROC / FPR | plain: AUROC / FPR | ISH: AUROC / FPR | ISH minus plain, AUROC |",
            "|---|--:|--:|--:|--:|",
        ]
        for label, row in result["methods"].items():
            cells = [
                f"{100 * row[n][group]['auroc']:.2f} / {100 * row[n][group]['fpr_at_id_recall']:.2f}" for n in NETWORKS
            ]
            gap = row["ish minus plain"][group]
            cells.append(f"{100 * gap['auroc']:+.2f} [{100 * gap['low']:+.2f}, {100 * gap['high']:+.2f}]")
            lines.append(f"| {label} | {' | '.join(cells)} |")
        lines.append("")
    gaps = [(g, label, row["ish minus plain"][g]) for label, row in result["methods"].items() for g in SETS]
    better = [f"{label} ({g})" for g, label, gap in gaps if gap["low"] > 0]
    worse = [f"{label} ({g})" for g, label, gap in gaps if gap["high"] < 0]
    largest = max(100 * abs(gap["auroc"]) for _, _, gap in gaps)
    tuned = [
        100 * (row["plain"][g]["auroc"] - row["base"][g]["auroc"]) for row in result["methods"].values() for g in SETS
    ]
    lines += [
        "## Does ISH help here?",
        "",
        f"The largest difference between ISH and the plain fine-tune is {largest:.2f} points of AUROC; the plain fine-tune itself"
        f" moves the methods by {min(tuned):+.2f} to {max(tuned):+.2f}.",
        "",
        f"Better than the plain fine-tune, interval above zero: {', '.join(better) or 'none'}.",
        "",
        f"Worse, interval below zero: {', '.join(worse) or 'none'}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["train", "measure"])
    parser.add_argument("method", nargs="?", choices=["ish", "plain"], default="ish")
    parser.add_argument("--archive", type=Path, default=REPOSITORY / ".data" / "cifar10.npz")
    parser.add_argument("--tables", type=Path, default=REPOSITORY / ".data" / "tables")
    parser.add_argument("--out", type=Path, default=REPOSITORY / ".data" / "ish-densenet")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--precision", default="bf16-mixed")
    words = parser.parse_args()
    torch.set_num_threads(1)
    if words.command == "train":
        train(words.method, words.archive, words.out, words.epochs, words.precision)
        return
    result = measure(words.archive, words.tables, words.out, words.epochs)
    PAGE.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    PAGE.write_text(page(result))


if __name__ == "__main__":
    main()
