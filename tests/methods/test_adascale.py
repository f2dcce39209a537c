import math

import pytest
import torch
from torch import nn

from idness.core.errors import InputError, OptionError
from idness.core.types import Activations, Head
from idness.detectors.kernels import scale_ratios
from idness.methods import LTS, AdaScale, Scale, adascale
from tests.worlds import make_world


def slow_oddness(before, after, weight, k_shift, k_level):
    order = sorted(range(len(before)), key=lambda place: -before[place])
    level = sum(max(after[place], 0.0) for place in order[: max(1, int(len(before) * k_level / 100))])
    shift = sum(abs(before[place] - after[place]) for place in order[: max(1, int(len(before) * k_shift / 100))])
    return level + weight * shift


def slow_score(before, head, percentile, variant):
    rectified = [max(a, 0.0) for a in before]
    kept = len(before) - round(len(before) * percentile / 100)
    ratio = sum(rectified) / sum(sorted(rectified, reverse=True)[:kept])
    weight, bias = head.weight.double().tolist(), head.offset.double().tolist()
    factor = math.exp(ratio) if variant == "a" else 1.0
    logits = [
        sum(w * factor * a for w, a in zip(row, before, strict=True)) + b for row, b in zip(weight, bias, strict=True)
    ]
    logits = [z * ratio**2 for z in logits] if variant == "l" else logits
    return max(logits) + math.log(sum(math.exp(z - max(logits)) for z in logits))


@pytest.mark.parametrize("variant", ["a", "l"])
@pytest.mark.parametrize("signed", [False, True])
def test_it_scores_as_the_paper_writes(variant, signed):
    options = {"low": 40.0, "high": 95.0, "k_shift": 3.0, "k_level": 20.0, "weight": 7.0}
    detector = AdaScale(variant=variant, **options)
    world = make_world(signed=signed).seen_by(detector)
    scores = detector.fit(world.head, world.train, val=world.val).score(world.test)

    def oddness(acts):
        rows = zip(acts.features.double().tolist(), acts.edited.features.double().tolist(), strict=True)
        return [slow_oddness(before, after, 7.0, 3.0, 20.0) for before, after in rows]

    inside = oddness(world.val)
    for before, odd, score in zip(
        world.test.features.double().tolist(), oddness(world.test), scores.tolist(), strict=True
    ):
        share = sum(other > odd for other in inside) / len(inside)  # 1 - F(Q')
        expected = slow_score(before, world.head, 40.0 + share * 55.0, variant)
        assert score == pytest.approx(expected, rel=1e-4)


def test_the_values_of_least_influence_move_by_eps_along_the_gradient():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.SiLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()).double()
    last, images = nn.Linear(24, 4).double(), torch.rand(3, 3, 6, 6, dtype=torch.double)
    changed = AdaScale(pixels=10.0, eps=0.5).perturb(lambda inputs: (body(inputs), last(body(inputs))), images)
    for image, other in zip(images, changed, strict=True):
        inputs = image.clone().requires_grad_()
        last(body(inputs[None]))[0].max().backward()
        gradient = inputs.grad.flatten().tolist()
        least = sorted(range(108), key=lambda place: abs(gradient[place]))[:10]  # 10 % of 108, rounded down
        wanted = image.flatten().tolist()
        for place in least:
            wanted[place] += 0.5 * math.copysign(1, gradient[place])
        torch.testing.assert_close(other.flatten(), torch.tensor(wanted, dtype=torch.double))


@pytest.mark.parametrize(("variant", "plain"), [("a", Scale), ("l", LTS)])
def test_where_both_percentiles_are_one_it_is_the_plain_method(variant, plain):
    detector = AdaScale(variant=variant, low=85.0, high=85.0)
    world = make_world().seen_by(detector)
    found = detector.fit(world.head, world.train).score(world.test)
    torch.testing.assert_close(found, plain(percentile=85.0).fit(world.head).score(world.test), rtol=1e-4, atol=1e-4)


def test_images_that_shift_more_are_scaled_less():
    head = Head(torch.eye(40))
    features = torch.linspace(0, 1, 40).repeat(50, 1)
    shifts = torch.zeros(50, 40)
    shifts[:, -1] = torch.arange(50) / 50
    acts = Activations(features, head(features), edited=Activations(features + shifts, head(features + shifts)))
    detector = AdaScale(low=50.0, high=95.0).fit(head, acts)
    scores = detector.score(acts)
    assert (scores[1:] <= scores[:-1]).all()
    # The oddest image has the lowest percentile: half of the features are summed.
    assert float(scores[-1]) == pytest.approx(slow_score(features[0].tolist(), head, 50.0, "a"), rel=1e-5)


def test_it_learns_from_validation_images_where_there_are_some():
    detector = AdaScale()
    world = make_world().seen_by(detector)
    assert len(detector.fit(world.head, world.train, val=world.val).state()["oddness_"]) == len(world.val)
    with pytest.raises(InputError, match="AdaScale: val must carry those of the changed images"):
        AdaScale().fit(world.head, world.train, val=make_world().val)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 90.0, "high": 85.0}, r"low must be at most high \(85\), got 90"),
        ({"variant": "x"}, "variant must be one of a, l"),
        ({"high": 100.0}, "must be in"),
        ({"pixels": 0.05}, "did you mean 5"),
        ({"weight": 0.0}, "must be above 0"),
        ({"eps": -0.5}, "must be above 0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(OptionError, match=f"AdaScale: .*{message}"):
        AdaScale(**options)


def test_a_percentile_for_each_row_gives_what_it_gives_for_all():
    features = torch.randn(300, 512, generator=torch.Generator().manual_seed(0)).clamp(min=0)
    features[:100] = features[:100].round()
    percents = torch.tensor([0.0, 15.0, 65.0, 85.0, 99.9])
    expected = torch.stack(scale_ratios(features, percents.tolist()), dim=1)
    own = torch.arange(len(features)) % len(percents)
    found = adascale._ratio_each(features, percents[own])
    torch.testing.assert_close(found, expected[torch.arange(len(features)), own], rtol=1e-5, atol=1e-5)
