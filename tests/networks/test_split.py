from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from idness import Guard
from idness.core.errors import DataError, InputError, ModelError
from idness.networks.modules import module_fingerprint
from idness.networks.split import SplitModel


def small() -> nn.Sequential:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_networks_of_any_precision_give_float32(dtype):
    model = small().to(dtype)
    split = SplitModel(model)
    images = torch.rand(3, 3, 16, 16)
    acts = split.split(images)
    assert acts.features.dtype == acts.logits.dtype == torch.float32
    torch.testing.assert_close(split.head(acts.features), acts.logits, rtol=1e-4, atol=1e-4)


def test_the_network_is_left_as_it_was():
    model = small().train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    before = module_fingerprint(model)
    SplitModel(model).extract([torch.rand(4, 3, 16, 16)])
    assert [module.training for module in model.modules()] == modes
    assert module_fingerprint(model) == before
    assert hooks_of(model) == 0
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_after_a_failure_no_hook_is_left_and_the_mode_is_back():
    model, wrong = small().train(), torch.rand(2, 5, 16, 16)
    with pytest.raises(RuntimeError, match="5 channels"):
        SplitModel(model).split(wrong)
    assert hooks_of(model) == 0
    assert model.training
    with pytest.raises(ModelError, match=r"could not be probed \(.*5 channels.*\); pass example="):
        SplitModel(model, example=wrong)
    assert hooks_of(model) == 0


def test_every_kind_of_batch_is_taken():
    split = SplitModel(small())
    images, labels = torch.rand(4, 3, 16, 16), torch.arange(4)
    for batch in (images, (images, labels), {"image": images, "label": labels}, {"pixel_values": images}):
        assert len(split.extract([batch, batch])) == 8
    assert split.extract([(images, labels)]).labels.tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match="a batch must be images"):
        split.extract([["cat.jpg"]])
    with pytest.raises(InputError, match="is the data set empty"):
        split.extract([])


def test_a_copy_shares_the_parameters_and_nothing_else():
    model = small().eval()
    split = SplitModel(model)
    other = split.copy()
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(other.split(images).logits, split.split(images).logits)
    assert other.model[7] is not model[7]
    assert all(own is theirs for own, theirs in zip(model.parameters(), other.model.parameters(), strict=True))
    other.model[1].running_mean += 1
    assert not torch.equal(other.split(images).logits, split.split(images).logits)


def test_fingerprints_tell_weights_apart():
    model, same = small(), small()
    assert module_fingerprint(model) == module_fingerprint(same) == module_fingerprint(nn.DataParallel(model))
    with torch.no_grad():
        model[7].bias[0] += 1e-6
    assert module_fingerprint(model) != module_fingerprint(same)


def test_what_is_no_network_is_refused():
    with pytest.raises(ModelError, match="must be a torch nn.Module, got int"):
        SplitModel(3)  # type: ignore[arg-type]


class Brighter:
    """Changes images so that their first class gains, by a fixed step."""

    def __init__(self, step: float = 0.1) -> None:
        self.step = step
        self.calls = 0

    def perturb(self, network, images):
        self.calls += 1
        inputs = images.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(network(inputs)[1][:, 0].sum(), inputs)
        return images + self.step * gradient.sign()

    def edit_key(self) -> str:
        return f"brighter {self.step}"


@pytest.mark.parametrize(
    ("mode", "grads"), [(True, torch.enable_grad), (True, torch.inference_mode), (False, torch.no_grad)]
)
def test_a_second_pass_sees_the_changed_images_and_leaves_the_network_as_it_was(mode, grads):
    model = small().train(mode)
    model[0].weight.requires_grad_(False)
    split, images = SplitModel(model), torch.rand(5, 3, 8, 8)
    before, state = images.clone(), module_fingerprint(model)
    with grads():
        acts = split.split(images, edit_with=Brighter())
    assert acts.edited is not None
    plain = split.split(images)
    torch.testing.assert_close(acts.features, plain.features)
    torch.testing.assert_close(acts.logits, plain.logits)
    # The same by hand, in a copy of the network that may be spoilt.
    twin = small().eval()
    inputs = images.clone().requires_grad_()
    twin(inputs)[:, 0].sum().backward()
    assert inputs.grad is not None
    torch.testing.assert_close(acts.edited.logits, twin(images + 0.1 * inputs.grad.sign()).detach())
    assert (acts.edited.logits[:, 0] > acts.logits[:, 0]).all()
    assert torch.equal(images, before)
    assert module_fingerprint(model) == state
    assert model.training is mode
    assert [parameter.requires_grad for parameter in model.parameters()] == [False] + [True] * 7
    assert all(parameter.grad is None for parameter in model.parameters())
    assert hooks_of(model) == 0


def test_two_looks_cost_two_forward_passes():
    model, calls = small(), []
    split = SplitModel(model, "7")
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    loaded = [(torch.rand(4, 3, 8, 8), torch.arange(4)), (torch.rand(2, 3, 8, 8), torch.arange(2))]
    editor = Brighter()
    acts = split.extract(loaded, edit_with=editor)
    assert (len(calls), editor.calls) == (4, 2)
    assert acts.edited is not None
    assert (len(acts), len(acts.edited), acts.labels.tolist()) == (6, 6, [0, 1, 2, 3, 0, 1])


def test_networks_that_work_in_place_or_give_no_gradient():
    class InPlace(nn.Sequential):
        def forward(self, images):
            return super().forward(images.sub_(0.5))

    class Closed(nn.Sequential):
        def forward(self, images):
            with torch.no_grad():
                return super().forward(images)

    images = torch.rand(2, 3, 8, 8)
    before = images.clone()
    found = SplitModel(InPlace(*small())).split(images, edit_with=Brighter())
    torch.testing.assert_close(found.logits, SplitModel(small()).split(before - 0.5).logits)
    assert torch.equal(images, before)
    closed = Closed(*small()).train()
    with pytest.raises(ModelError, match="Brighter: the network has no gradient for its input; use a method with"):
        SplitModel(closed).split(images, edit_with=Brighter())
    assert closed.training
    assert all(parameter.requires_grad for parameter in closed.parameters())


class LowRank(nn.Module):
    """A LoRA adapter: around a layer it adds to its output, as a parametrization to its weight."""

    def __init__(self, base: nn.Linear | None = None) -> None:
        super().__init__()
        self.base_layer = base
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 5, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        if self.base_layer is None:
            return value + self.up.weight @ self.down.weight
        return self.base_layer(value) + 0.5 * self.up(self.down(value))


def _parametrized() -> nn.Module:
    layer = nn.Linear(16, 5)
    parametrize.register_parametrization(layer, "weight", LowRank())
    return layer


@pytest.mark.parametrize(
    "head",
    [
        lambda: LowRank(nn.Linear(16, 5)),
        lambda: LowRank(nn.utils.parametrizations.spectral_norm(nn.Linear(16, 5))),
        _parametrized,
        lambda: nn.utils.spectral_norm(nn.Linear(16, 5)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(16, 5)),
    ],
    ids=["lora", "lora of spectral norm", "parametrized", "spectral norm hook", "spectral norm"],
)
def test_guards_of_computed_heads_load_and_leave_the_network_alone(
    head: Callable[[], nn.Module], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), head()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first, images = SplitModel(model).head, torch.randn(60, 3, 4, 4)
    guard = Guard(model, "ebo").calibrate([images])
    loaded = Guard.load(guard.save(tmp_path / "guard"), model)
    assert loaded.split.classes == 5
    assert torch.equal(guard(images).score, loaded(images).score)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    acts = SplitModel(model, guard.split.layer).extract([images])
    torch.testing.assert_close(first(acts.features), acts.logits)
    with torch.no_grad():
        torch.testing.assert_close(acts.logits, copy.deepcopy(model).eval()(images))
