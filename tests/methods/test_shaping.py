"""Methods that edit features or weights, and SCALE and LTS, which scale by a ratio of them."""

import math

import numpy as np
import pytest
import torch

from idness.core.types import Activations
from idness.detectors.detector import score_many
from idness.detectors.registry import build
from idness.methods import DICE, EBO, LTS, RAS, VRA, Ash, OptFS, ReAct, Scale
from idness.metrics import auroc, fpr_at_id_recall, fpr_at_ood_recall
from tests.methods.slow import check, check_shaped, energy, ratio
from tests.worlds import make_world


def slow_ash(row, percent, variant):
    """Activation by activation, as the paper's algorithms are written."""
    kept = len(row) - round(len(row) * percent / 100)
    chosen = sorted(range(len(row)), key=lambda j: -row[j])[:kept]
    value = {"s": lambda a: a * math.exp(ratio(row, percent)), "p": lambda a: a, "b": lambda _: sum(row) / kept}[
        variant
    ]
    return [value(a) if j in chosen else 0.0 for j, a in enumerate(row)]


@pytest.mark.parametrize("variant", ["s", "p", "b"])
@pytest.mark.parametrize("percent", [65.0, 90.0])
def test_ash_shapes_as_the_paper_writes(world, variant, percent):
    detector = Ash(variant=variant, percentile=percent).fit(world.head)
    check_shaped(detector, world, lambda row: slow_ash(row, percent, variant))


def test_levelled_features_are_never_more_than_are_kept(world):
    """Rows with fewer positive features than are kept: ties at zero must not raise the count."""
    features = torch.zeros(1, world.head.width)
    features[0, :3] = torch.tensor([3.0, 2.0, 1.0])
    detector = Ash(variant="b", percentile=80.0).fit(world.head)
    assert int((detector.shape(features) > 0).sum()) == world.head.width - round(world.head.width * 0.8)
    assert detector.score(Activations(features, world.head(features))).isfinite().all()


@pytest.mark.parametrize("percent", [10.0, 65.0, 95.0])
@pytest.mark.parametrize("signed", [False, True])
def test_lts_scores_as_the_paper_writes(percent, signed):
    world = make_world(signed=signed)

    def expected(features, logits):
        factor = ratio(features.clamp(min=0).tolist(), percent) ** 2
        return energy([factor * z for z in logits])

    check(LTS(percentile=percent).fit(world.head), world, expected)


@pytest.mark.parametrize("percent", [0.0, 65.0, 85.0, 95.0])
def test_scale_scores_as_the_paper_writes(world, percent):
    detector = Scale(percentile=percent).fit(world.head)
    check_shaped(detector, world, lambda row: [a * math.exp(ratio(row, percent)) for a in row])


def test_all_zero_features_score_as_the_bias_alone(world):
    zero = torch.zeros(1, world.head.width)
    acts = Activations(zero, world.head(zero))
    assert Scale().fit(world.head).score(acts).item() == pytest.approx(EBO().fit(world.head).score(acts).item())


@pytest.mark.shared
def test_the_papers_network_gives_the_papers_numbers(densenet):
    head, inside, outside = densenet
    expected = {  # AUROC, FPR at ID recall, FPR at OOD recall, in percent
        ("msp", None): (94.4901, 42.5322, 16.1400),
        ("mls", None): (98.0533, 10.1064, 7.2100),
        ("ebo", None): (98.1138, 9.5350, 7.0800),
        ("ash-s", 95): (98.8781, 5.1429, 5.1900),
        ("scale", 85): (98.3527, 8.0448, 6.2600),
        ("scale", 95): (99.2250, 3.5406, 3.7400),
    }
    detectors = [build(name, **({} if p is None else {"percentile": p})).fit(head) for name, p in expected]
    scores = zip(score_many(detectors, inside), score_many(detectors, outside), strict=True)
    for (id_scores, ood_scores), numbers in zip(scores, expected.values(), strict=True):
        ours = [100 * f(id_scores, ood_scores) for f in (auroc, fpr_at_id_recall, fpr_at_ood_recall)]
        assert ours == pytest.approx(numbers, abs=0.02)
    assert float((inside.logits.argmax(1) == inside.labels).double().mean()) == pytest.approx(0.9454, abs=1e-6)


@pytest.mark.shared
def test_the_default_of_react_does_no_harm_on_the_papers_network(densenet):
    head, inside, outside = densenet
    detectors = [detector.fit(head, val=inside[::2]) for detector in (EBO(), ReAct(), ReAct(percentile=90))]
    plain, default, papers = (auroc(one.score(inside[1::2]), one.score(outside)) for one in detectors)
    assert default > plain
    assert papers < plain - 0.1


@pytest.mark.parametrize("percent", [50.0, 90.0, 99.0])
def test_react_clips_at_a_percentile_of_all_validation_activations(world, percent):
    detector = ReAct(percentile=percent).fit(world.head, world.train, val=world.val)
    clip = np.percentile(world.val.features.numpy(), percent)
    assert float(detector.clip_) == pytest.approx(clip, rel=1e-5)
    check_shaped(detector, world, lambda row: [min(a, clip) for a in row])
    alone = ReAct(percentile=percent).fit(world.head, world.train)  # without validation images
    assert float(alone.clip_) == pytest.approx(np.percentile(world.train.features.numpy(), percent), rel=1e-5)


@pytest.mark.parametrize(("low", "high"), [(50.0, 90.0), (60.0, 99.0)])
def test_vra_sets_low_activations_to_zero_and_clips_high_ones(world, low, high):
    detector = VRA(low=low, high=high).fit(world.head, world.train, val=world.val)
    floor, clip = np.percentile(world.val.features.numpy(), [low, high])
    check_shaped(detector, world, lambda row: [0.0 if a < floor else min(a, float(clip)) for a in row])


@pytest.mark.parametrize("percent", [10.0, 70.0, 90.0])
def test_dice_keeps_the_weights_that_contribute_most(world, percent):
    weight = world.head.weight.numpy()
    contribution = world.train.features.double().numpy().mean(axis=0) * weight
    masked = np.where(contribution > np.percentile(contribution, percent), weight, 0)
    assert (masked == 0).mean() == pytest.approx(percent / 100, abs=0.01)
    detector = DICE(percentile=percent).fit(world.head, world.train)
    assert np.array_equal(detector.weight_.numpy(), masked)
    check_shaped(detector, world, lambda row: row, weight=masked)


def test_ras_replaces_sorted_features_by_the_mean_sorted_training_features(world):
    rows = [sorted(row) for row in world.train.features.tolist()]
    profile = [sum(column) / len(rows) for column in zip(*rows, strict=True)]

    def shape(row):
        """The smallest feature gets the smallest value of the profile, and so on; among equals the first comes first."""
        order = sorted(range(len(row)), key=lambda j: (row[j], j))
        return [profile[order.index(j)] for j in range(len(row))]

    check_shaped(RAS().fit(world.head, world.train), world, shape)


@pytest.mark.parametrize("bins", [100, 7])
def test_factors_and_scores_of_optfs_are_those_of_the_closed_form(world, bins):
    """Bin after bin: the mean over images of what features of that size add to the predicted class's logit."""
    features = world.train.features.numpy().astype(float)
    low, high = np.quantile(features, [0.001, 0.999])
    width = (high - low) / bins
    weights = world.head.weight.double().numpy()[world.train.logits.argmax(dim=1).numpy()]
    inside = [(features >= low + i * width) & (features < low + (i + 1) * width) for i in range(bins)]
    gains = [float(np.mean(np.sum(mask * weights * features, axis=1))) for mask in inside]
    factors = 1000 * np.array(gains) / np.linalg.norm(gains)
    detector = OptFS(bins=bins).fit(world.head, world.train)
    np.testing.assert_allclose(detector.factors_.numpy(), factors, rtol=1e-3, atol=0.5)

    def shape(row):
        places = [math.floor((a - low) / width) for a in row]
        return [a * factors[place] if 0 <= place < bins else 0.0 for a, place in zip(row, places, strict=True)]

    check_shaped(detector, world, shape, rel=2e-3)
    outside = torch.tensor([[-5.0, 1e6] * (world.head.width // 2)])
    assert torch.equal(detector.shape(outside), torch.zeros_like(outside))
