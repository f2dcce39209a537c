from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from idness.activations.prerelu import capture
from idness.core.types import Activations
from idness.networks.split import SplitModel


class Small(nn.Module):
    """A network whose last steps are given."""

    def __init__(self, end: str) -> None:
        super().__init__()
        self.end = end
        self.first = nn.Conv2d(3, 12, 3, padding=1)
        self.bn = nn.BatchNorm2d(12)
        self.relu = nn.ReLU(inplace=True)
        self.relu6 = nn.ReLU6(inplace=True)
        self.fc = nn.Linear(12, 5)

    def before(self, x: Tensor) -> Tensor:
        return self.bn(self.first(self.relu(self.first(x)[:, :3].contiguous()))) * 3

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        if self.end == "module":
            x = self.relu(x).mean((2, 3))
        elif self.end == "functional":
            x = functional.adaptive_avg_pool2d(functional.relu(x, inplace=True), 1).flatten(1)
        elif self.end == "relu6":
            x = self.relu6(x).mean((2, 3))
        elif self.end == "max":
            x = x.relu().amax((2, 3))
        elif self.end == "pooled first":
            x = torch.relu(x.mean((2, 3)))
        else:
            x = functional.silu(x).mean((2, 3))
        return self.fc(x)


EXPECTED = {
    "module": "ReLU and average pooling",
    "functional": "ReLU and average pooling",
    "relu6": "ReLU6 and average pooling",
    "max": "ReLU and max pooling",
    "pooled first": "ReLU",
}


@pytest.mark.parametrize("end", EXPECTED)
def test_what_enters_the_last_relu_is_captured_and_pooled_as_the_network_pools(end: str) -> None:
    torch.manual_seed(0)
    model = Small(end).eval()
    images = torch.randn(6, 3, 8, 8)
    result, _ = capture(SplitModel(model, example=images), images)
    assert result.rectifier == EXPECTED[end]
    with torch.no_grad():
        before = model.before(images)
    truth = before.amax((2, 3)) if end == "max" else before.mean((2, 3))
    assert result.pre_relu is not None
    torch.testing.assert_close(result.pre_relu, truth)
    assert float(truth.min()) < 0 or end == "max"


def test_a_network_without_a_final_relu_says_so() -> None:
    images = torch.randn(4, 3, 8, 8)
    model = Small("silu").eval()
    result, last = capture(SplitModel(model, example=images), images)
    assert (result.rectifier, last) == ("", "silu")
    assert result.pre_relu is None


def test_the_network_is_left_as_it_was_even_after_a_failure() -> None:
    images = torch.randn(4, 3, 8, 8)
    model = Small("module").train()
    split = SplitModel(model, example=images)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    capture(split, images)
    with pytest.raises(RuntimeError):
        capture(split, torch.randn(4, 2, 8, 8))
    assert model.training
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.relu(torch.tensor(-1.0)) == 0  # nothing watches any more


def test_a_loader_gives_the_same_as_one_batch_with_labels() -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(10, 3, 8, 8), torch.arange(10) % 5
    split = SplitModel(Small("module").eval(), example=images)
    whole, _ = capture(split, images)
    parts = Activations.concat(capture(split, (images[rows], labels[rows]))[0] for rows in (slice(7), slice(7, None)))
    torch.testing.assert_close(parts.pre_relu, whole.pre_relu)
    assert parts.labels is not None
    assert torch.equal(parts.labels, labels)


RECTIFIED = {
    "resnet18": "ReLU and average pooling",
    "resnet50": "ReLU and average pooling",
    "densenet121": "ReLU and average pooling",
    "mobilenet_v2": "ReLU6 and average pooling",
    "regnet_y_400mf": "ReLU and average pooling",
    "shufflenet_v2_x0_5": "ReLU and average pooling",
}


def captured(name: str) -> Activations:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    images = torch.randn(2, 3, 64, 64)
    return capture(SplitModel(getattr(models, name)(weights=None).eval(), example=images), images)[0]


@pytest.mark.parametrize("name", RECTIFIED)
def test_torchvision_families_that_end_in_a_relu(name: str) -> None:
    result = captured(name)
    assert result.rectifier == RECTIFIED[name]
    assert result.pre_relu is not None
    assert result.pre_relu.shape == result.features.shape
    assert float(result.pre_relu.min()) < 0


@pytest.mark.parametrize("name", ["efficientnet_b0", "mobilenet_v3_small"])
def test_torchvision_families_that_do_not(name: str) -> None:
    result = captured(name)
    assert result.rectifier == ""
    assert result.pre_relu is None
