import math

import pytest
import torch
from torch import nn

from idness.methods import AdaScale
from tests.methods.slow import check, energy, ratio
from tests.worlds import make_world


def slow_oddness(before, after, weight, k_shift, k_level):
    order = sorted(range(len(before)), key=lambda place: -before[place])
    level = sum(max(after[place], 0.0) for place in order[: max(1, int(len(before) * k_level / 100))])
    shift = sum(abs(before[place] - after[place]) for place in order[: max(1, int(len(before) * k_shift / 100))])
    return level + weight * shift


@pytest.mark.parametrize("variant", ["a", "l"])
@pytest.mark.parametrize("signed", [False, True])
def test_it_scores_as_the_paper_writes(variant, signed):
    detector = AdaScale(variant=variant, low=40.0, high=95.0, k_shift=3.0, k_level=20.0, weight=7.0)
    world = make_world(signed=signed).seen_by(detector)
    weight, bias = world.head.weight.double(), world.head.offset.double()

    def oddness(acts):
        rows = zip(acts.features.double().tolist(), acts.edited.features.double().tolist(), strict=True)
        return [slow_oddness(before, after, 7.0, 3.0, 20.0) for before, after in rows]

    inside, odd = oddness(world.val), iter(oddness(world.test))

    def expected(x, z):
        limit = next(odd)
        share = sum(other > limit for other in inside) / len(inside)  # 1 - F(Q')
        r = ratio(x.clamp(min=0).tolist(), 40.0 + share * 55.0)
        return energy((weight @ x * math.exp(r) + bias).tolist() if variant == "a" else [v * r**2 for v in z])

    check(detector.fit(world.head, world.train, val=world.val), world, expected)


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
