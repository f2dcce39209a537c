import pytest
import torch

from idness.methods import GradNorm


@pytest.mark.parametrize("temperature", [1.0, 0.5, 4.0])
def test_it_is_the_size_of_the_gradient_that_a_backward_pass_gives(world, temperature):
    scores = GradNorm(temperature=temperature).fit(world.head).score(world.test)
    uniform = torch.full((world.head.classes,), 1 / world.head.classes)
    for features, score in zip(world.test.features[:50], scores.tolist(), strict=False):
        layer = torch.nn.Linear(world.head.width, world.head.classes)
        layer.load_state_dict({"weight": world.head.weight, "bias": world.head.bias})
        logs = torch.log_softmax(layer(features) / temperature, dim=0)
        torch.nn.functional.kl_div(logs, uniform, reduction="sum").backward()
        assert score == pytest.approx(float(layer.weight.grad.abs().sum()), rel=1e-4)
