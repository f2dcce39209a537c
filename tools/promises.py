"""Simulate the statistical guarantees of idness and write results/promises.md and results/promises.json; takes minutes on one core.

Every row repeats a calibration or measurement on new synthetic data and compares the mean with the guarantee. The Monte-Carlo
error is one standard error of that mean. Calibrations run the library itself on a small trained network and random images.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor, nn
from torch.utils.data import DataLoader

from idness import intervals
from idness.data import Preprocessing
from idness.guard import Guard
from idness.guard.drift import LEVEL, DriftWatch

RESULTS = Path(__file__).resolve().parents[1] / "results"
NETWORK = """
from torch import nn
def make():
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))
"""
HOW = Preprocessing.from_dict({"resize": [8, 8], "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]})
COLOURS = np.array([[0.7, 0.3, 0.3], [0.3, 0.7, 0.3], [0.3, 0.3, 0.7], [0.7, 0.7, 0.3]])


@dataclass(frozen=True)
class Row:
    """One simulated guarantee: rates in [0, 1], or numbers of images for the delays of the drift monitor."""

    promise: str
    setting: str
    promised: str
    measured: float
    error: float
    repetitions: int
    holds: bool


def images(rng: np.random.Generator, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return random in-distribution images (N, 8, 8, 3) of four noisy colours, with labels."""
    labels = rng.integers(0, 4, count)
    light = rng.normal(0, 0.12, (count, 1, 1, 3))
    pixels = COLOURS[labels][:, None, None] + light + rng.normal(0, 0.05, (count, 8, 8, 3))
    return (255 * np.clip(pixels, 0, 1)).astype(np.uint8), labels


def others(rng: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """Return random OOD images: grey noise of any brightness."""
    pixels = rng.uniform(0.2, 0.8, (count, 1, 1, 1)) + rng.normal(0, 0.15, (count, 8, 8, 3))
    return (255 * np.clip(pixels, 0, 1)).astype(np.uint8)


def inputs(pixels: NDArray[np.uint8]) -> Tensor:
    return (torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25


def network(folder: Path) -> nn.Module:
    """Train the small network, and write it with its weights for simulations that open files."""
    from safetensors.torch import save_file

    scope: dict[str, Callable[[], nn.Module]] = {}
    exec(NETWORK, scope)
    torch.manual_seed(0)
    model, rng = scope["make"](), np.random.default_rng(99)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(200):
        pixels, labels = images(rng, 128)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs(pixels)), torch.from_numpy(labels)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    (folder / "net.py").write_text(NETWORK)
    save_file(model.state_dict(), folder / "weights.safetensors")
    return model.eval()


def rate(guard: Guard, rng: np.random.Generator, count: int = 1000) -> float:
    """Return the fraction of new in-distribution images that are flagged."""
    return float(guard(inputs(images(rng, count)[0])).is_ood.float().mean())


def at_most(promise: str, setting: str, promised: float, found: list[float]) -> Row:
    error = float(np.std(found, ddof=1) / math.sqrt(len(found)))
    mean = float(np.mean(found))
    return Row(promise, setting, f"at most {100 * promised:g} %", mean, error, len(found), mean <= promised + 3 * error)


def false_alarms(model: nn.Module, folder: Path, many: int) -> Iterator[Row]:
    """Simulate the false-alarm rate of calibrated guards."""
    what = "false alarms"

    def guard(rng: np.random.Generator, count: int, recall: float | list[float], **options: bool) -> Guard:
        made = Guard(model, "ebo", preprocessing=HOW)
        return made.calibrate([inputs(images(rng, count)[0])], recall, **options)

    for count, recall in ((20, 0.95), (100, 0.9), (500, 0.95), (500, 0.99)):
        rng = np.random.default_rng([count, round(1000 * recall)])
        found = [rate(guard(rng, count, recall), rng) for _ in range(many)]
        yield at_most(what, f"pooled, {count} images, recall {recall:g}", 1 - recall, found)
    rng = np.random.default_rng(1)
    by_class: list[list[float]] = [[] for _ in range(4)]
    for _ in range(many):
        made, fresh = guard(rng, 400, 0.9, per_class=True), inputs(images(rng, 2000)[0])
        verdict = made(fresh)
        for label in range(4):
            by_class[label].append(float(verdict.is_ood[verdict.label == label].float().mean()))
    worst = max(by_class, key=lambda found: float(np.mean(found)))
    yield at_most(what, "per class, 400 images, recall 0.9, worst of 4 classes", 0.1, worst)
    found = [rate(guard(rng, 200, 0.9).set_recall(0.95), rng) for _ in range(many)]
    yield at_most(what, "200 images, recall 0.9, then set_recall(0.95)", 0.05, found)
    found = []
    for place in range(max(many // 5, 3)):
        saved = guard(rng, 200, 0.95).save(folder / f"saved-{place}", bundle=True)
        loaded = Guard.load(saved, model=model)
        found.append(rate(loaded, rng, 4000))
    yield at_most(what, "200 images, recall 0.95, after save and load", 0.05, found)
    found = []
    for _ in range(max(many // 20, 2)):
        found.append(_onnx_rate(guard(rng, 200, 0.95), folder, rng))
    yield at_most(what, "200 images, recall 0.95, exported to ONNX", 0.05, found)


def confidence(model: nn.Module, many: int) -> Iterator[Row]:
    """Simulate how often a single guard calibrated with confidence keeps its false-alarm rate."""
    for count, recall, sure in ((100, 0.95, 0.95), (500, 0.95, 0.95), (500, 0.9, 0.8)):
        rng = np.random.default_rng([count, round(1000 * sure)])
        kept = []
        for _ in range(many):
            made = Guard(model, "ebo", preprocessing=HOW).calibrate(
                [inputs(images(rng, count)[0])], recall, confidence=sure
            )
            kept.append(rate(made, rng, 10_000) <= 1 - recall)
        mean, error = float(np.mean(kept)), math.sqrt(sure * (1 - sure) / many)
        setting = f"{count} images, recall {recall:g}, confidence {sure:g}: guards that keep the rate"
        yield Row("confidence", setting, f"at least {100 * sure:g} %", mean, error, many, mean >= sure - 3 * error)


def screening(model: nn.Module, many: int) -> Iterator[Row]:
    """Simulate the fraction of in-distribution images among those flagged by `Guard.screen`, and the fraction of OOD images flagged."""
    for count, total, odd, per_class in (
        (200, 500, 50, False),
        (1000, 1000, 20, False),
        (1000, 500, 0, False),
        (1000, 500, 50, True),
    ):
        rng = np.random.default_rng([count, total, odd, per_class])
        false, power = [], []
        for _ in range(many):
            made = Guard(model, "ebo", preprocessing=HOW).calibrate(
                [inputs(images(rng, count)[0])], 0.9, per_class=per_class
            )
            mixed = inputs(np.concatenate([images(rng, total - odd)[0], others(rng, odd)]))
            flags = made.screen(DataLoader(mixed, batch_size=total), 0.1).is_ood.numpy()  # type: ignore[arg-type]
            false.append(float(flags[: total - odd].sum() / max(flags.sum(), 1)))
            power.append(float(flags[total - odd :].mean()) if odd else 0.0)
        setting = f"{count} calibration images{', a threshold per class' if per_class else ''}, {total} images, {odd} of them OOD"
        yield at_most("false discoveries at fdr 0.1", setting, 0.1, false)
        if odd:
            error = float(np.std(power, ddof=1) / math.sqrt(many))
            yield Row("OOD images flagged at fdr 0.1", setting, "measured", float(np.mean(power)), error, many, True)


def _onnx_rate(guard: Guard, folder: Path, rng: np.random.Generator) -> float:
    import onnxruntime

    path = folder / "guard.onnx"
    path.unlink(missing_ok=True)
    guard.to_onnx(path)
    session = onnxruntime.InferenceSession(path)
    given = session.get_inputs()[0]
    pixels = images(rng, 4000)[0]
    fed = inputs(pixels).numpy()
    flags = session.run(["is_ood"], {given.name: fed})[0]
    return float(np.mean(flags))


def automatic(folder: Path, many: int) -> Iterator[Row]:
    """Simulate `auto`, which chooses a method on some of the images."""
    for with_ood in (False, True):
        rng, found = np.random.default_rng(7 + with_ood), []
        for place in range(many):
            paths = {"data": folder / f"id-{place}.npz", "ood": folder / f"ood-{place}.npz"}
            np.savez(paths["data"], images=images(rng, 200)[0])
            np.savez(paths["ood"], images=others(rng, 100))
            made = Guard.for_images(
                f"{folder / 'net.py'}:make",
                paths["data"],
                0.9,
                weights=folder / "weights.safetensors",
                ood=paths["ood"] if with_ood else None,
                preprocessing=HOW,
                gallery=False,
                notes=[],
            )
            found.append(rate(made, rng))
        setting = f"auto {'with' if with_ood else 'without'} OOD images, 200 images, recall 0.9"
        yield at_most("false alarms", setting, 0.1, found)


def coverage(many: int) -> Iterator[Row]:
    """Simulate how often 95 % intervals contain the true value, for normal scores and a given gap between ID and OOD."""
    at_95 = norm.ppf(0.05)
    for gap in (1.0, 2.0, 3.0):
        truths = {"auroc": norm.cdf(gap / math.sqrt(2)), "fpr": norm.sf(at_95 + gap)}
        for few, lots in ((20, 1000), (50, 50), (100, 1000), (500, 500)):
            rng = np.random.default_rng([few, lots, int(gap)])
            hits: dict[str, list[bool]] = {}
            for _ in range(many):
                ids, oods = rng.normal(gap, 1, few), rng.normal(0, 1, lots)
                found = {
                    "AUROC": (intervals.auroc_interval(ids, oods), truths["auroc"]),
                    "FPR at 95 % ID recall": (
                        intervals.fpr_intervals("fpr_at_id_recall", ids, [oods])[-1],
                        truths["fpr"],
                    ),
                    # The same scores mirrored, so that few OOD images determine the threshold.
                    "FPR at 95 % OOD recall": (
                        intervals.fpr_intervals("fpr_at_ood_recall", -oods, [-ids])[-1],
                        truths["fpr"],
                    ),
                }
                for name, (interval, truth) in found.items():
                    if interval is not None:
                        hits.setdefault(name, []).append(interval.low <= truth <= interval.high)
            for name, values in hits.items():
                setting = f"{name}, {few} images that set the threshold, {lots} others, gap {gap:g}"
                yield at_least("coverage of the interval", setting, values)


def at_least(promise: str, setting: str, values: list[bool]) -> Row:
    mean = float(np.mean(values))
    error = math.sqrt(max(mean * (1 - mean), 0.25 / len(values)) / len(values))
    return Row(promise, setting, "95 %, at least 92 %", mean, error, len(values), mean + 2 * error >= 0.92)


def paired(many: int) -> Iterator[Row]:
    """Simulate the coverage of paired differences between two methods whose scores have a correlation of 0.7."""
    at_95, gaps = norm.ppf(0.05), (2.5, 1.5)
    auroc = norm.cdf(gaps[0] / math.sqrt(2)) - norm.cdf(gaps[1] / math.sqrt(2))
    fpr = norm.sf(at_95 + gaps[0]) - norm.sf(at_95 + gaps[1])
    for few, lots in ((50, 1000), (100, 1000), (500, 500)):
        rng = np.random.default_rng([few, lots])
        hits: dict[str, list[bool]] = {}
        for _ in range(many):
            pairs = []
            for count, means in ((few, gaps), (lots, (0.0, 0.0))):
                shared = math.sqrt(0.7) * rng.normal(size=count)
                pairs.append([mean + shared + math.sqrt(0.3) * rng.normal(size=count) for mean in means])
            (a, b), (c, d) = pairs
            found = {
                "AUROC": (intervals.compare_auroc(a, c, b, d), auroc),
                "FPR at 95 % ID recall": (intervals.compare_fpr("fpr_at_id_recall", (a, c), (b, d)), fpr),
                "FPR at 95 % OOD recall": (intervals.compare_fpr("fpr_at_ood_recall", (-c, -a), (-d, -b)), fpr),
            }
            for name, (gap, truth) in found.items():
                if gap is not None:
                    hits.setdefault(name, []).append(gap.low <= truth <= gap.high)
        for name, values in hits.items():
            yield at_least("coverage of a paired difference", f"{name}, {few} and {lots} images", values)


def drift(many: int) -> Iterator[Row]:
    """Simulate the drift monitor: false alarms, and the delay of alarms for OOD images (three deviations lower)."""
    for count in (20, 100, 1000):
        rng = np.random.default_rng(count)
        rings = [float(_alarm(rng, count, 0.0, 500) is not None) for _ in range(2 * many)]
        error = math.sqrt(max(np.mean(rings), LEVEL) / len(rings))
        held = float(np.mean(rings)) <= LEVEL + 3 * error
        setting = f"{count} calibration images, nothing changes, first 500 images"
        yield Row(
            "false drift alarm", setting, f"at most {100 * LEVEL:g} %", float(np.mean(rings)), error, len(rings), held
        )
    for count in (50, 100, 200, 500, 1000):
        for share in (0.05, 0.2, 0.5):
            rng = np.random.default_rng([count, round(100 * share)])
            delays = [_alarm(rng, count, share, 1000) for _ in range(many)]
            seen = [delay for delay in delays if delay is not None]
            part = len(seen) / many
            setting = f"{count} calibration images, {100 * share:g} % OOD"
            error = math.sqrt(max(part * (1 - part), 0.25 / many) / many)
            yield Row("drift noticed within 1,000 images", setting, "measured", part, error, many, True)
            # The median over all runs; runs without an alarm count as late.
            median = float(np.median([1001 if delay is None else delay for delay in delays]))
            spread = float(1.25 * np.std(seen) / math.sqrt(len(seen))) if seen else 0.0
            if median <= 1000:
                yield Row("median delay of a drift alarm, images", setting, "measured", median, spread, many, True)


def _alarm(rng: np.random.Generator, count: int, share: float, most: int) -> int | None:
    watch = DriftWatch([np.sort(rng.normal(size=count)).tolist()])
    scores = rng.normal(size=most) - 3 * (rng.random(most) < share)
    return next((place for place, score in enumerate(scores, 1) if watch.observe([float(score)]).alarm), None)


def simulate(effort: float = 1.0) -> list[Row]:
    """Return the simulation of every guarantee; the effort scales the repetitions."""

    def times(count: int) -> int:
        return max(2, round(effort * count))

    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(temporary)
        model = network(folder)
        return [
            *false_alarms(model, folder, times(200)),
            *confidence(model, times(200)),
            *screening(model, times(200)),
            *automatic(folder, times(60)),
            *coverage(times(400)),
            *paired(times(200)),
            *drift(times(100)),
        ]


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown page."""
    lines = [
        "# Statistical promises, simulated",
        "",
        "Made by `make promises` (`python tools/promises.py`; `--effort` scales the repetitions) on synthetic images and scores. ± is one",
        "standard error of the simulation;",
        "a promise holds if the measured value is within three of it (two for coverage).",
        "",
        "| promise | setting | promised | measured | repetitions | holds |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        shown = (
            f"{row.measured:.0f} ± {row.error:.0f}"
            if row.promise.endswith("images") and "delay" in row.promise
            else f"{100 * row.measured:.2f} ± {100 * row.error:.2f} %"
        )
        holds = "–" if row.promised == "measured" else "yes" if row.holds else "**no**"
        lines.append(f"| {row.promise} | {row.setting} | {row.promised} | {shown} | {row.repetitions} | {holds} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--effort", type=float, default=1.0, help="scale of the number of repetitions")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of promises.md and promises.json")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows = simulate(given.effort)
    (given.out / "promises.md").write_text(table(rows), encoding="utf-8")
    (given.out / "promises.json").write_text(
        json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
