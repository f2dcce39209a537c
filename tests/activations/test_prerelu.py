from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from idness.activations.extract import capture
from idness.networks.split import SplitModel

ENDS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "module": ("ReLU and average pooling", lambda x: nn.ReLU(inplace=True)(x).mean((2, 3))),
    "functional": (
        "ReLU and average pooling",
        lambda x: functional.adaptive_avg_pool2d(functional.relu_(x), 1).flatten(1),
    ),
    "relu6": ("ReLU6 and average pooling", lambda x: nn.ReLU6(inplace=True)(x).mean((2, 3))),
    "max": ("ReLU and max pooling", lambda x: x.relu().amax((2, 3))),
    "pooled first": ("ReLU", lambda x: torch.relu(x.mean((2, 3)))),
    "silu": ("", lambda x: functional.silu(x).mean((2, 3))),
}


class Small(nn.Module):
    """A network whose last steps are given."""

    def __init__(self, end: str) -> None:
        super().__init__()
        self.end, self.first, self.relu = end, nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(inplace=True)
        self.bn, self.fc = nn.BatchNorm2d(12), nn.Linear(12, 5)

    def before(self, x: Tensor) -> Tensor:
        return self.bn(self.first(self.relu(self.first(x)[:, :3].contiguous()))) * 3

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(ENDS[self.end][1](self.before(x)))


@pytest.mark.parametrize("end", [end for end in ENDS if end != "silu"])
def test_the_input_of_the_last_relu_is_pooled_as_the_network_pools(end: str) -> None:
    torch.manual_seed(0)
    model = Small(end).eval()
    images = torch.randn(6, 3, 8, 8)
    result = capture(SplitModel(model, example=images), images)
    assert result.rectifier == ENDS[end][0]
    with torch.no_grad():
        before = model.before(images)
    truth = before.amax((2, 3)) if end == "max" else before.mean((2, 3))
    assert result.pre_relu is not None
    torch.testing.assert_close(result.pre_relu, truth)
    assert float(truth.min()) < 0 or end == "max"


def test_a_network_without_a_final_relu() -> None:
    images = torch.randn(4, 3, 8, 8)
    model = Small("silu").eval()
    result = capture(SplitModel(model, example=images), images)
    assert result.rectifier == ""
    assert result.pre_relu is None
