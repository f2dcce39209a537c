"""Methods that read nothing but logits."""

import math

import pytest
import torch

from idness.core.types import Activations, Head
from idness.methods import EBO, GEN, KLM, MLS, MSP, GradNorm
from tests.methods.slow import check, energy, softmax


def test_mls_is_the_largest_logit(world):
    check(MLS().fit(world.head), world, lambda _, z: max(z), rel=0)


def test_msp_is_the_largest_softmax_probability(world):
    check(MSP().fit(world.head), world, lambda _, z: max(softmax(z)), rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_ebo_is_the_negative_free_energy(world, temperature):
    detector = EBO(temperature=temperature).fit(world.head)
    check(detector, world, lambda _, z: temperature * energy([v / temperature for v in z]), rel=1e-5)


def test_logits_far_apart_neither_overflow_nor_underflow(world):
    logits = torch.tensor([[1e4, -1e4, 0.0, 0.0, 0.0], [-1e4] * 5])
    scores = EBO().fit(world.head).score(Activations(world.test.features[:2], logits))
    assert scores.tolist() == pytest.approx([1e4, -1e4 + math.log(5)])


@pytest.mark.parametrize(("gamma", "m"), [(0.1, 100), (0.5, 3), (2.0, 1)])
def test_gen_is_the_negative_generalised_entropy(world, gamma, m):
    def expected(_, z):
        return -sum(q**gamma * (1 - q) ** gamma for q in sorted(softmax(z), reverse=True)[:m])

    check(GEN(gamma=gamma, m=m).fit(world.head), world, expected, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 4.0])
def test_gradnorm_is_the_size_of_the_gradient_that_a_backward_pass_gives(world, temperature):
    uniform = torch.full((world.head.classes,), 1 / world.head.classes)

    def expected(features, _):
        layer = torch.nn.Linear(world.head.width, world.head.classes)
        layer.load_state_dict({"weight": world.head.weight, "bias": world.head.bias})
        logs = torch.log_softmax(layer(features.float()) / temperature, dim=0)
        torch.nn.functional.kl_div(logs, uniform, reduction="sum").backward()
        return float(layer.weight.grad.abs().sum())

    check(GradNorm(temperature=temperature).fit(world.head), world, expected)


@pytest.mark.parametrize("with_val", [True, False])
def test_klm_is_the_least_divergence_from_the_usual_probabilities_of_a_class(world, with_val):
    groups = {}
    for row in (world.val if with_val else world.train).logits.double().tolist():
        groups.setdefault(row.index(max(row)), []).append(softmax(row))
    templates = [[sum(column) / len(rows) for column in zip(*rows, strict=True)] for rows in groups.values()]

    def expected(_, z):
        divergences = (
            sum(p * math.log(p / d) for p, d in zip(softmax(z), one, strict=True) if p > 0) for one in templates
        )
        return -min(divergences)

    detector = KLM().fit(world.head, world.train, val=world.val if with_val else None)
    check(detector, world, expected, abs=1e-7)


def test_klm_uses_no_labels_and_has_no_template_of_a_class_that_is_never_predicted(world):
    bare = Activations(world.train.features, world.train.logits)
    detector = KLM().fit(world.head, bare[bare.logits.argmax(dim=1) != 3])
    assert len(detector.templates_) == world.head.classes - 1
    assert detector.score(world.test).isfinite().all()


def test_probabilities_below_what_floating_point_holds_still_count():
    """All images are sure of one of the first two classes; exp(-2000) is 0, and the divergence is 2000 all the same."""
    train = torch.tensor([[2000.0, 0.0, 0.0], [0.0, 2000.0, 0.0]])
    odd = torch.tensor([[0.0, 0.0, 2000.0], [2000.0, 0.0, 0.0]])
    scores = KLM().fit(Head(torch.eye(3)), Activations(train, train)).score(Activations(odd, odd))
    assert scores.tolist() == pytest.approx([-2000.0, 0.0])
