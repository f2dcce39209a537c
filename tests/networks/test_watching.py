from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from idness.networks.watching import watching


class Normalised(nn.Linear):
    """Computes with its weight brought to length one."""

    def forward(self, entered: Tensor) -> Tensor:
        return functional.linear(entered, functional.normalize(self.weight))


def test_a_layer_is_its_weight_only_where_it_computes_with_it() -> None:
    plain, own = nn.Linear(4, 3, bias=False), Normalised(3, 2, bias=False)
    entered = torch.randn(5, 4)
    with watching(network := nn.Sequential(plain, own)) as steps:
        network(entered)
    assert [step.layer for step in steps] == ["0", None]
    assert steps[0].weight is plain.weight or torch.equal(steps[0].weight, plain.weight)
    assert torch.equal(steps[1].weight, functional.normalize(own.weight))
