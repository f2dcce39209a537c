from __future__ import annotations

import json
import warnings

import pytest

from idness.core.errors import InputError
from idness.core.types import Activations
from idness.detectors.registry import parse
from idness.selection.recommend import harmed_by_scaling, recommend
from tests.rectified import World, ratio_world


def test_methods_for_non_negative_features_are_never_used_on_signed_ones(world: World) -> None:
    inside, outside = (
        Activations(acts.features - 1.0, world.head(acts.features - 1.0), acts.labels)
        for acts in (world.inside, world.outside)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = recommend(world.head, None, inside)
        pseudo = recommend(world.head, None, inside, pseudo={"some": outside})
        measured = recommend(world.head, None, inside, ood={"some": outside})
    for found in (alone, pseudo, measured):
        assert found.findings[0].good is False
        assert "methods that require non-negative features do not apply" in found.findings[0].text
        assert not found.detector.assumes_nonnegative
        assert not [name for name in found.aurocs if parse(name).assumes_nonnegative]
    assert "As some features are negative, its parts are nnguide, ras, knn and vim." in alone.why


@pytest.mark.parametrize("real", [True, False])
def test_whether_scaling_helps_is_measured_on_ood_images_or_pseudo_ood_images(real: bool) -> None:
    for peaked in (True, False):
        world = ratio_world(peaked=peaked)
        others = {"ood" if real else "pseudo": {"some": world.outside}}
        found = recommend(world.head, None, world.inside, **others)
        scaling = next(finding for finding in found.findings if finding.name == "scaling")
        assert scaling.good is peaked
        assert scaling.text.startswith("SCALE helps" if peaked else "SCALE harms")
        assert ("your OOD images" if real else "pseudo-OOD images") in scaling.text


def test_few_images_measure_nothing(world: World) -> None:
    few = recommend(world.head, None, world.inside[:20], ood={"a": world.outside})
    assert "20 images are too few" in few.why
    assert few.row == "fuse"
    found = recommend(world.head, None, world.inside, ood={"a": world.outside[:10]})
    assert not found.aurocs
    assert "10 are too few" in next(finding.text for finding in found.findings if finding.name == "OOD images")


def test_methods_learn_from_the_images_given_for_it(world: World) -> None:
    own = recommend(world.head, None, world.inside, ood={"a": world.outside})
    other = recommend(world.head, world.inside[:100], world.inside, ood={"a": world.outside})
    assert own.aurocs != other.aurocs


def test_scaling_that_harms_is_warned_about() -> None:
    gains = {65.0: 0.2, 85.0: -0.3, 95.0: -0.9}
    assert harmed_by_scaling(gains, 65.0) is None
    warning = harmed_by_scaling(gains, 80.0)
    assert warning is not None
    assert "percentile 80 harms this network" in warning
    assert "-0.30 logits" in warning


def test_a_diagnosis_is_plain_values_and_wrong_input_is_refused(world: World) -> None:
    with pytest.raises(InputError, match="features per image"):
        recommend(world.head, None, Activations(world.inside.features[:, :10], world.inside.logits))
    diagnosis = recommend(world.head, None, world.inside)
    assert json.loads(json.dumps(diagnosis.to_dict()))["method"] == diagnosis.method


@pytest.mark.shared
def test_the_papers_densenet(densenet: World) -> None:
    measured = recommend(densenet.head, None, densenet.inside[::8], ood={"isun": densenet.outside[::8]})
    assert next(finding for finding in measured.findings if finding.name == "scaling").good
