from __future__ import annotations

import copy
import threading
import warnings
from pathlib import Path

import colour_world as world
import pytest
import torch
from colour_world import HOW, known_tensors, ood_tensors
from torch import nn

from idness.core.errors import ExportError, IdnessWarning, InputError, NotFittedError, OptionError
from idness.detectors.registry import rows
from idness.guard import Guard
from idness.selection.recommend import recommend

IMAGES = known_tensors(24, first=5_000)[0]
BYTES = (IMAGES * 0.25 + 0.5) * 255
"""The same images with values in 0..255, without normalisation."""


def test_in_distribution_images_pass_and_ood_images_are_flagged(guard: Guard, trained: nn.Module) -> None:
    known, labels = known_tensors(200, first=5_000)
    verdict, odd = guard(known), ood_tensors(60)
    assert float(verdict.is_ood.float().mean()) < 0.12
    assert float((verdict.label == labels).float().mean()) > 0.95
    assert float(guard(odd).is_ood.float().mean()) > 0.8
    assert torch.equal(guard.decide(guard.split.split(odd)).is_ood, guard(odd).is_ood)
    with torch.no_grad():
        for images in (known, odd):
            assert torch.equal(guard(images).label, trained(images).argmax(dim=1))


@pytest.mark.fault(
    "NaN or Inf in an image, whatever the method, alone or in a batch",
    does="OOD with its reason and label -1; the other images of the batch keep their scores",
)
@pytest.mark.parametrize("name", list(rows(costly=True)))
def test_scores_do_not_depend_on_the_batch_or_on_other_rows_that_are_not_finite(name: str, trained: nn.Module) -> None:
    guard = Guard(trained, name).fit([known_tensors(120, first=3_000)]).calibrate([known_tensors(100)[0]])
    images = torch.cat([known_tensors(6, first=900)[0], ood_tensors(6)])
    whole = guard(images).score
    spread = max(1.0, float(whole.max() - whole.min()))
    assert float((torch.cat([guard(image).score for image in images]) - whole).abs().max()) / spread < 1e-4
    images[1, 0, 3, 3], images[3] = float("nan"), float("inf")
    verdict, others = guard(images), [0, 2, *range(4, 12)]
    assert sorted(verdict.reasons) == [1, 3]
    assert all("not finite" in reason for reason in verdict.reasons.values())
    assert verdict.is_ood[[1, 3]].all()
    assert verdict.label[[1, 3]].tolist() == [-1, -1]
    assert verdict.p_value[1] == pytest.approx(1 / 101)
    assert float((verdict.score - whole)[others].abs().max()) / spread < 1e-4
    alone = guard(images[1])
    assert alone.is_ood.all()
    assert alone.records()[0]["reason"] == verdict.reasons[1]


def test_thresholds_per_class(guard: Guard) -> None:
    made = Guard(guard.split, "msp").calibrate([known_tensors(400)[0]], 0.9, per_class=True)
    assert made.threshold().shape == (4,)
    verdict = made(known_tensors(400, first=6_000)[0])
    for label in range(4):
        assert float(verdict.is_ood[verdict.label == label].float().mean()) < 0.25
    with pytest.raises(InputError, match=r"predicted as each class, and for class \d, got \d+; add"):
        made.calibrate([known_tensors(24)[0]], 0.95, per_class=True)


def test_invalid_calls_get_one_line(trained: nn.Module) -> None:
    images = known_tensors(8)[0]
    with pytest.raises(NotFittedError, match="not calibrated"):
        Guard(trained, "msp")(images)
    with pytest.raises(NotFittedError, match="call fit"):
        Guard(trained, "knn").calibrate([images])
    with pytest.raises(InputError, match="at least 19 in-distribution images, got 8"):
        Guard(trained, "msp").calibrate([images])
    with pytest.raises(InputError, match="got none"):
        Guard(trained, "msp").calibrate([])
    with pytest.raises(InputError, match="4 classes, got 2"):
        Guard(trained, "msp", class_names=["a", "b"])
    with pytest.raises(InputError, match="without preprocessing"):
        Guard(trained, "msp").calibrate([known_tensors(40)[0]]).judge(world.known("red", 0))
    images[3] = float("nan")
    with pytest.raises(InputError, match="image 3"):
        Guard(trained, "msp").calibrate([images])
    with pytest.raises(OptionError, match=r"recall must be in \(0, 1\), got 95; did you mean 0.95"):
        Guard(trained, "msp").calibrate([images], 95)


def test_images_that_a_detector_has_seen_do_not_calibrate_it(guard: Guard, tmp_path: Path) -> None:
    train, fresh = known_tensors(200, first=3_000), known_tensors(200)[0]
    made = Guard(guard.split, "knn(k=3)").fit([train])
    refused = "calibrate: .* of 200 images were used to fit or choose knn.*; calibrate on other images"
    with pytest.raises(InputError, match=refused):
        made.calibrate(train[0].split(32))  # other batches are rounded differently
    made.calibrate([torch.cat([fresh[:-2], train[0][:2]])])  # 1 %: duplicates between data sets
    with pytest.raises(InputError, match="3 of 200 images"):
        made.calibrate([torch.cat([fresh[:-3], train[0][:3]])])
    with pytest.raises(InputError, match=refused):
        Guard.load(made.save(tmp_path), guard.split).calibrate([train[0]])
    made.fit([(fresh, train[1])])
    with pytest.raises(NotFittedError):  # the old threshold is another detector's
        made(fresh[:2])
    made.calibrate([train[0]])
    Guard(guard.split, "scale").fit([train]).calibrate([train[0]])  # learns nothing


def test_images_that_a_detector_was_chosen_on_do_not_calibrate_it(guard: Guard) -> None:
    train, ids, ood = (
        guard.split.extract([part]) for part in (known_tensors(120), known_tensors(90, 400), ood_tensors(60))
    )
    made = Guard(guard.split, recommend(guard.split.head, train, ids, ood={"odd": ood}).detector).fit(train)
    with pytest.raises(InputError, match="90 of 90 images were used to fit or choose"):
        made.calibrate(ids)
    made.calibrate([known_tensors(90, 900)[0]])


def test_half_precision_networks_have_float32_scores(guard: Guard, tmp_path: Path) -> None:
    low, images = copy.deepcopy(guard).to(torch.bfloat16), known_tensors(16, first=300)[0]
    assert low(images).score.dtype == low.threshold().dtype == torch.float32
    assert (low(images).label == guard(images).label).all()
    with pytest.raises(ExportError, match="bfloat16, which onnxruntime cannot run"):
        low.to_onnx(tmp_path / "guard.onnx")


def test_notebook_output_is_escaped(guard: Guard) -> None:
    made = Guard(guard.split, "scale", class_names=["<b>", "g", "b", 3]).calibrate([known_tensors(200)[0]])
    verdict = made(known_tensors(60)[0])
    html = verdict._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<td>3</td>" in html
    assert "and 10 more" in html
    assert len(verdict.records()) == 60 == len(list(verdict))
    assert verdict[-1].score == verdict.score[-1]
    assert "60 images" in repr(verdict)
    assert "at most 5 % of" in made.promise()
    assert "scale" in repr(made)


def test_an_image_at_the_threshold_passes(guard: Guard) -> None:
    verdict = guard.decide(guard.split.extract([known_tensors(200)[0]]))  # the calibration images themselves
    at = verdict.score == guard.threshold()
    assert at.any()
    assert not verdict.is_ood[at].any()
    assert verdict.is_ood.tolist() == (verdict.score < guard.threshold()).tolist()


def test_guard_for_images(net_spec: str, weights: Path, id_folder: Path, ood_folder: Path, tmp_path: Path) -> None:
    with pytest.warns(IdnessWarning, match="percentile 85 harms this network"):
        guard = Guard.for_images(net_spec, id_folder, 0.9, method="scale", weights=weights)
    assert guard.recalls == (0.9,)
    assert guard.class_names == ("red", "green", "blue", "yellow")
    inside, outside = (guard.judge(*sorted(folder.rglob("*.png"))[:30]) for folder in (id_folder, ood_folder))
    assert int(inside.is_ood.sum()) < 10 < int(outside.is_ood.sum())
    Guard.load(guard.save(tmp_path / "guard", bundle=True))  # the network's file was named by the user


def test_any_recall_has_a_threshold(guard: Guard) -> None:
    again = Guard(guard.split, "scale").calibrate([known_tensors(200)[0]], 0.5)
    assert torch.equal(guard.threshold(0.5), again.threshold())
    with pytest.raises(InputError, match="needs at least 999 in-distribution images, got 200"):
        guard.threshold(0.999)
    with pytest.raises(OptionError, match="recall must be in"):
        guard.threshold(95)


def test_recalls_can_change_while_other_threads_decide(guard: Guard) -> None:
    made = Guard(guard.split, "scale").calibrate([known_tensors(200)[0]], 0.95)
    limits = {float(made.set_recall(recall).threshold()) for recall in (0.95, 0.5)}
    with pytest.raises(InputError, match="needs at least 999 in-distribution images, got 200"):
        made.set_recall(0.999)
    acts, stop = made.split.split(known_tensors(4)[0]), threading.Event()

    def change() -> None:
        while not stop.is_set():
            made.set_recall(0.95)
            made.set_recall(0.5, 0.9)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        verdicts = [made.decide(acts) for _ in range(300)]
        thresholds = [made.threshold() for _ in range(300)]
    finally:
        stop.set()
        changing.join()
    assert {tuple(verdict.levels) for verdict in verdicts} <= {(0.95,), (0.5,), (0.5, 0.9)}
    assert {float(value) for value in thresholds} <= limits


@pytest.mark.fault(
    "tensors in 0..255, or multiplied by 1e30, instead of normalised ones",
    does="flags each with the reason, the lowest score and the lowest p-value",
)
@pytest.mark.parametrize("method", ["scale", "knn(k=3)", "mds", "msp"])
@pytest.mark.parametrize("preprocessing", [HOW, None])
def test_values_outside_the_range_at_calibration_are_ood(
    trained: nn.Module, method: str, preprocessing: object, tmp_path: Path
) -> None:
    guard = Guard(trained, method, preprocessing=preprocessing).fit([known_tensors(80)])  # type: ignore[arg-type]
    guard.calibrate([known_tensors(60, first=900)[0]])
    for harm in (BYTES, IMAGES * 1e30, IMAGES - 1e4, BYTES[:1]):
        verdict = guard(harm)
        assert verdict.is_ood.all()
        assert (verdict.p_value <= 1 / 61 + 1e-6).all()
        assert "normalise the image in the same way" in verdict.reasons[0] or "not finite" in verdict.reasons[0]
    mixed = guard(torch.stack([IMAGES[0], BYTES[1], IMAGES[2]]))
    assert torch.allclose(mixed.score[[0, 2]], guard(IMAGES[[0, 2]]).score, rtol=1e-5)
    assert list(mixed.reasons) == [1]
    loaded = Guard.load(guard.save(tmp_path / "guard"), trained)
    assert loaded.input_range == guard.input_range
    if preprocessing is not None and loaded.input_range is not None:
        # Preprocessed images are in [-2, 2], and half of that width is allowed on both sides.
        assert (loaded.input_range.low, loaded.input_range.high) == (-4.0, 4.0)


@pytest.mark.fault("images in [0, 1] without normalisation", does="warns that their statistics differ from calibration")
def test_missing_normalisation_is_reported_for_large_batches(guard: Guard) -> None:
    with pytest.warns(IdnessWarning, match="of the input.*is it normalised in the same way"):
        guard(BYTES / 255)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard(IMAGES)
        guard(BYTES[:4] / 255)  # too few to compare
        guard(ood_tensors(24))


@pytest.mark.fault("a score far above that of every calibration image", does="a caution next to the verdict")
def test_scores_far_above_calibration_get_a_caution(guard: Guard) -> None:
    assert not guard(IMAGES).cautions
    acts = guard.split.split(IMAGES[:2])
    acts.features[1] *= 20
    acts.logits[1] *= 20
    verdict = guard.decide(acts)
    assert [record["caution"] is None for record in verdict.records()] == [True, False]
    assert "far above" in verdict[1]._repr_html_()
