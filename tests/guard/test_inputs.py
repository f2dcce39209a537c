"""Input of another kind than at calibration: told, whatever its score."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from colour_world import HOW, known_tensors, ood_tensors
from torch import nn

from idness.core.errors import IdnessWarning
from idness.detectors.registry import rows
from idness.guard import Guard
from idness.guard.inputs import InputRange

IMAGES = known_tensors(24, first=5_000)[0]
BYTES = (IMAGES * 0.25 + 0.5) * 255
"""The same pictures with values in 0..255, as one gets them who forgets to normalise."""


@pytest.mark.fault(
    "tensors in 0..255, or multiplied by 1e30, in place of normalised ones",
    does="calls each OOD with its reason and the lowest score and p-value",
)
@pytest.mark.parametrize("method", ["scale", "knn(k=3)", "mds", "msp"])
@pytest.mark.parametrize("preprocessing", [HOW, None])
def test_values_that_no_calibration_image_had_are_ood(trained: nn.Module, method: str, preprocessing: object) -> None:
    guard = Guard(trained, method, preprocessing=preprocessing)
    images, labels = known_tensors(80)
    if guard.detector.needs_train:
        guard.fit([(images, labels)])
    guard.calibrate([known_tensors(60, first=900)[0]])
    for harm in (BYTES, IMAGES * 1e30, IMAGES - 1e4, torch.cat([IMAGES[:1], BYTES[:1]])[1:]):
        verdict = guard(harm)
        assert verdict.is_ood.all()
        assert verdict.at(0.5).all()
        assert (verdict.p_value <= 1 / 61 + 1e-6).all()
        assert "normalise it in the same way" in verdict.reasons[0] or "not finite" in verdict.reasons[0]
    mixed = guard(torch.stack([IMAGES[0], BYTES[1], IMAGES[2]]))
    alone = guard(IMAGES[[0, 2]])
    assert torch.allclose(mixed.score[[0, 2]], alone.score, rtol=1e-5)
    assert list(mixed.reasons) == [1]


@pytest.mark.fault(
    "images in [0, 1] that were not normalised", does="warns that their statistics are not those of calibration"
)
def test_forgotten_normalisation_is_told_once_a_batch_is_large_enough(guard: Guard) -> None:
    with pytest.warns(IdnessWarning, match="of the input.*is it normalised in the same way"):
        guard(BYTES / 255)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard(IMAGES)
        guard(BYTES[:4] / 255)  # four images say little
        guard(ood_tensors(24))


@pytest.mark.fault("a score far above that of every calibration image", does="says so beside the verdict (caution)")
def test_scores_far_above_all_of_calibration_are_told(guard: Guard) -> None:
    assert not guard(IMAGES).cautions
    acts = guard.look(IMAGES[:2])
    acts.features[1] *= 20
    acts.logits[1] *= 20
    verdict = guard.decide(acts)
    assert list(verdict.cautions) == [1]
    assert "far above" in verdict.records()[1]["caution"]
    assert verdict.records()[0]["caution"] is None
    assert "far above" in verdict[1]._repr_html_()


def test_the_range_is_kept_with_the_guard(guard: Guard, trained: nn.Module, tmp_path: Path) -> None:
    again = Guard.load(guard.save(tmp_path / "guard"), trained)
    assert again.input_range == guard.input_range
    assert again.input_range is not None
    # Pictures after preprocessing lie in [-2, 2], and half of that width is allowed beyond.
    assert (again.input_range.low, again.input_range.high) == (-4.0, 4.0)
    assert again(BYTES).is_ood.all()


@pytest.mark.fault(
    "NaN or Inf in an image, whatever the method, alone or in a batch",
    does="OOD with its reason and label -1; the other images of the batch keep their scores",
)
@pytest.mark.parametrize("name", list(rows(costly=True)))
def test_not_finite_is_ood_for_every_method(name: str, trained: nn.Module) -> None:
    guard = Guard(trained, name, preprocessing=HOW)
    images, labels = known_tensors(120)
    if guard.detector.needs_train or guard.detector.needs_val:
        guard.fit([(images, labels)])
    guard.calibrate([known_tensors(40, first=900)[0]])
    bad = IMAGES[:5].clone()
    bad[1, 0, 3, 3], bad[3, 1] = float("nan"), float("inf")
    whole, clean = guard(bad), guard(IMAGES[[0, 2, 4]])
    assert sorted(whole.reasons) == [1, 3]
    assert whole.is_ood[[1, 3]].all()
    assert all("not finite" in reason for reason in whole.reasons.values())
    assert torch.allclose(whole.score[[0, 2, 4]], clean.score, rtol=1e-4, atol=1e-4)
    alone = guard(bad[1])
    assert alone.is_ood.all()
    assert alone.records()[0]["reason"] == whole.reasons[1]


def test_a_range_that_is_none_is_refused() -> None:
    from idness.core.errors import InputError

    for low, high in ((1.0, 0.0), (float("nan"), 1.0), (0.0, float("inf"))):
        with pytest.raises(InputError, match="finite and in order"):
            InputRange(low, high)
