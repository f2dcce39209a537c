import math

import pytest
import torch
from torch import nn

from idness.methods import AdaScale
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
