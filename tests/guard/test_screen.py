"""Promises about many images and about one guard: false discovery rates, confidence, and how many images they need."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from colour_world import HOW, known_tensors, ood_tensors, write_ood
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from idness.core.errors import IdnessWarning, InputError, OptionError
from idness.guard import Guard, Verdict, score
from idness.guard.conformal import Calibration, calibration_images, plan
from idness.guard.onnx import GraphGuard
from idness.guard.verdict import Detection, fdr_shortfall, images_for_fdr
from tests.cli.running import idness
from tests.guard.conftest import Words, rows


def verdict(p_values: Any, **more: Any) -> Verdict:
    p = torch.tensor(p_values, dtype=torch.float32) if isinstance(p_values, list) else p_values
    return Verdict(p * 0, p, p, p < 0, **more)


def test_select_returns_the_type_of_the_verdict_and_flags_rejected_rows() -> None:
    p_values = [0.01, 0.02, 0.5, 0.9, 0.9]
    found = verdict(p_values, reasons={4: "not finite"})
    assert isinstance(found.select(0.1), torch.Tensor)
    assert found.select(0.1).tolist() == [True, True, False, False, True]  # four are tested: 0.02 * 4 / 2 <= 0.1
    assert found.select(0.03).tolist() == [False, False, False, False, True]
    assert found.q_values().tolist() == pytest.approx([0.04, 0.04, 2 / 3, 0.9, 0.0])
    plain = verdict(np.array(p_values))
    assert isinstance(plain.select(0.1), np.ndarray)
    assert plain.select(0.1).tolist() == [True, True, False, False, False]
    assert verdict([]).select().tolist() == []
    with pytest.raises(OptionError, match=r"fdr must be in \(0, 1\), got 10"):
        found.select(10)


def test_false_discovery_rate_is_at_most_the_promised_one() -> None:
    rng, rates, power = np.random.default_rng(0), [], []
    for _ in range(300):
        known = Calibration.pooled(torch.from_numpy(rng.normal(size=1_000)))
        scores = torch.from_numpy(np.concatenate([rng.normal(size=450), rng.normal(-4, 1, 50)])).float()
        flags = verdict(known.p_values(scores, torch.zeros(500, dtype=torch.long))).select(0.1)
        rates.append(float(flags[:450].sum() / flags.sum().clamp(min=1)))
        power.append(float(flags[450:].float().mean()))
    assert np.mean(rates) <= 0.1 + 3 * np.std(rates) / math.sqrt(300)
    assert np.mean(rates) > 0.05  # and is not kept by flagging nothing
    assert np.mean(power) > 0.8


@pytest.mark.parametrize(("size", "recall", "confidence"), [(59, 0.95, 0.95), (200, 0.95, 0.9), (500, 0.9, 0.99)])
def test_a_threshold_with_confidence_keeps_its_rate_in_that_share_of_calibrations(
    size: int, recall: float, confidence: float
) -> None:
    rng, many = np.random.default_rng(size), 4_000
    known = Calibration.pooled(torch.arange(float(size)))
    rank = int(known.thresholds(recall, confidence=confidence)[0])
    rates = np.partition(rng.random((many, size)), rank, axis=1)[:, rank]
    kept = np.mean(rates <= 1 - recall)
    assert kept >= confidence - 3 * math.sqrt(confidence * (1 - confidence) / many)
    higher = np.partition(rng.random((many, size)), rank + 1, axis=1)[:, rank + 1]
    assert np.mean(higher <= 1 - recall) < confidence + 0.01  # no higher score would do
    low, high = known.spread(recall, confidence=confidence)
    assert low < np.mean(rates) < high


def test_plan_names_the_numbers_of_images() -> None:
    assert (calibration_images(0.95), calibration_images(0.95, 0.95), calibration_images(0.99, 0.9)) == (19, 59, 230)
    assert images_for_fdr(1_000, 10, 0.1) == 999
    assert [count for _, count in plan(0.95)] == [19, 59, 1_270, 999]
    with pytest.raises(InputError, match="0.05 with 95 % confidence needs at least 59 in-distribution images, got 58"):
        Calibration.pooled(torch.arange(58.0)).thresholds(0.95, confidence=0.95)
    done = idness("calibrate", "--plan", "--false-alarm", 0.01, "--confidence", 0.9, "--fdr", 0.05, "--screen", 10_000)
    assert done.returncode == 0, done.stderr
    counts = [int(line.split()[0].replace(",", "")) for line in done.stdout.splitlines()]
    assert (counts[0], counts[1], counts[3]) == (99, 230, 1_999)
    for wrong in ([], ["--plan", "--confidence", 95]):
        refused = idness("calibrate", *wrong)
        assert refused.returncode == 2
        assert "confidence must be in (0, 1), got 95" in refused.stderr or "MODEL and --data" in refused.stderr


def test_confidence_is_promised_saved_and_exported(trained: nn.Module, tmp_path: Path) -> None:
    data = [known_tensors(200)[0]]
    plain = Guard(trained, "ebo", preprocessing=HOW).calibrate(data)
    guard = Guard(trained, "ebo", preprocessing=HOW).calibrate(data, confidence=0.95)
    assert float(guard.threshold()) < float(plain.threshold())
    assert plain.promise().startswith("On average, at most 5 % of in-distribution images")
    assert guard.promise().startswith("With 95 % confidence, at most 5 % of in-distribution images")
    loaded = Guard.load(guard.save(tmp_path / "guard"), trained)
    assert (loaded.rule().confidence, float(loaded.threshold())) == (0.95, float(guard.threshold()))
    assert loaded.set_recall(0.9).rule().confidence == 0.95
    graph = GraphGuard(guard.to_onnx(tmp_path / "guard.onnx"))
    images = torch.cat([known_tensors(40, first=900)[0], ood_tensors(20)])
    images[3] = torch.nan
    assert graph.facts["confidence"] == 0.95
    assert graph(images.numpy()).is_ood.tolist() == guard(images).is_ood.tolist()
    assert graph(images.numpy()).reasons == guard(images).reasons
    with pytest.raises(OptionError, match="confidence must be in"):
        guard.calibrate(data, confidence=95)


def test_screen_takes_folders_lists_and_loaders(
    guard: Guard, id_folder: Path, ood_folder: Path, tmp_path: Path
) -> None:
    files = [*sorted((id_folder / "red").iterdir()), *sorted(ood_folder.iterdir())]
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    found = guard.screen([*files, broken], 0.2)
    assert found.names == [*map(str, files), str(broken)]
    assert list(found.errors) == [len(files)]
    assert found.is_ood[: len(files)].tolist() == guard.judge(files).select(0.2).tolist()
    assert bool(found.is_ood[-1])
    assert found.records()[-1] == {"image": str(broken), "error": found.errors[len(files)]}
    assert found.records()[0]["q_value"] == pytest.approx(float(found.q_values()[0]))
    assert int(found.is_ood[60:90].sum()) > 20
    tensors = torch.stack([HOW(Image.open(file)) for file in files])
    loaded = guard.screen(DataLoader(TensorDataset(tensors, torch.zeros(len(files))), batch_size=32), 0.2)
    assert loaded.is_ood.tolist() == found.is_ood[:-1].tolist()
    assert len(guard.screen(ood_folder)) == 30


def test_too_few_calibration_images_for_a_rate_are_reported(guard: Guard, ood_folder: Path, id_folder: Path) -> None:
    said = fdr_shortfall([1 / 20, *[0.5] * 999], 19, 0.1)
    assert "1 of 1,000 images score below all 19 of them" in said
    assert f"calibrate on {images_for_fdr(1_000, 1, 0.1):,} images" in said
    assert fdr_shortfall([0.5] * 100, 19, 0.1) == ""  # nothing to flag
    assert fdr_shortfall([1 / 100_000, *[0.5] * 999], 99_999, 0.1) == ""
    files = [*sorted(id_folder.rglob("*.png")), *sorted(ood_folder.iterdir())[:1]]
    with pytest.warns(IdnessWarning, match="too few calibration images for a false discovery rate of 0.001"):
        assert not guard.screen(files, 0.001).is_ood.any()


def test_score_with_fdr_flags_by_q_values_in_every_output(
    words: Words, guard: Guard, id_folder: Path, ood_folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(score, "SHARD", 32)
    (tmp_path / "broken.png").write_bytes(b"no image")
    images = (id_folder / "red", ood_folder, tmp_path / "broken.png")
    rate = ("--fdr", 0.2)
    done = idness(*words, *images, *rate, "--json")
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    wanted = guard.judge([row["image"] for row in told])
    assert [row.get("is_ood", True) for row in told] == wanted.select(0.2).tolist()
    assert [row["q_value"] for row in told[:-1]] == pytest.approx(wanted.q_values()[:-1].tolist())
    assert "error" in told[-1]
    flagged = sum(row.get("is_ood", False) for row in told)
    for name in ("x.csv", "x.json", "x.parquet", "folder"):
        written = idness(*words, *images, *rate, "-o", tmp_path / name)
        assert written.returncode == 0, written.stderr
        said = f"{flagged} of 91 images out-of-distribution (on average at most 20 % of them in-distribution), 1 unread"
        assert written.stdout.startswith(said)
        found = rows(tmp_path / name)
        assert [row["image"] for row in found] == [row["image"] for row in told]
        assert [float(row["q_value"]) for row in found[:-1]] == pytest.approx([row["q_value"] for row in told[:-1]])
        assert [str(row["is_ood"]) for row in found[:-1]] == [str(row["is_ood"]) for row in told[:-1]]
    resumed = idness(*words, *images, *rate, "-o", tmp_path / "folder", "--resume")
    assert resumed.stdout == written.stdout
    assert idness(*words, *images, "-o", tmp_path / "folder", "--resume").returncode == 2  # decided otherwise
    terminal = idness(*words, *images, *rate)
    assert "q-value" in terminal.stdout
    assert "warning" not in terminal.stderr  # OOD images are expected here, and are no drift
    short = idness(*words, *images, "--fdr", 0.0001)
    assert "warning: too few calibration images for a false discovery rate of 0.0001" in short.stderr
    assert idness(*words, *images, "--fdr", 2).returncode == 2


def test_score_takes_another_recall_or_false_alarm_rate(words: Words, id_folder: Path) -> None:
    plain, by_rate, by_recall = (
        idness(*words, id_folder, "--json", *more).stdout for more in ((), ("--false-alarm", 0.4), ("--recall", 0.6))
    )
    assert by_rate == by_recall
    assert by_rate.count('"is_ood": true') > 2 * plain.count('"is_ood": true') > 0
    both = idness(*words, id_folder, "--recall", 0.9, "--false-alarm", 0.1)
    assert both.returncode == 2
    assert "needs at least 9999" in idness(*words, id_folder, "--recall", "0.9999").stderr


def test_calibrate_reports_the_detection_rate_first(
    net_spec: str, weights: Path, id_folder: Path, tmp_path: Path
) -> None:
    ood = write_ood(tmp_path / "odd", 40)
    words = ("--weights", weights, "--data", id_folder, "--ood", ood, "--method", "msp", "-o", tmp_path / "guard")
    done = idness("calibrate", net_spec, *words)
    assert done.returncode == 0, done.stderr
    guard = Guard.load(tmp_path / "guard")
    pictures = {file.read_bytes(): file for file in ood.iterdir()}  # duplicates count once
    flagged = int(guard.judge(*pictures.values()).is_ood.sum())
    assert guard.detection == Detection(flagged, len(pictures))
    assert done.stdout.startswith(f"detection  {guard.detection}\nmethod     msp")
    assert str(Detection(12, 150)) == "8.0 % of OOD images are flagged (12 of 150; 95 % interval 4.2 to 13.6 %)"
    assert guard.set_recall(0.5).detection is None
    for few in (False, True):
        again = idness("calibrate", net_spec, *words, "--method", "auto")
        assert ("they also chose the method" in again.stdout) is not few
        assert ("OOD images: 20 are too few to choose a method; 30 are needed" in again.stderr) is few
        assert again.stdout.endswith("guard, replacing the previous guard\n")
        for file in list(pictures.values())[20:]:
            file.unlink(missing_ok=True)
