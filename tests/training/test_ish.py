from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idness.core.errors import ModelError, OptionError
from idness.training import IshLinear, ish, networks
from idness.training.ish import ish_activations


def rows(count: int = 6, width: int = 40, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Features as a ReLU leaves them: non-negative, some zero."""
    values = torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (values + 0.3).relu().to(dtype)


def slow_gradient(features: Tensor, delta: Tensor, percentile: float, prune: bool) -> Tensor:
    """The paper's equation in numpy, one image at a time: sum over images of delta_i (a_i exp(r_i))^T."""
    total = np.zeros((delta.shape[1], features.shape[1]))
    for a, d in zip(features.double().numpy(), delta.double().numpy(), strict=True):
        keep = len(a) - round(len(a) * percentile / 100)
        largest = np.argsort(a)[::-1][:keep]
        scaled = a * math.exp(a.sum() / a[largest].sum())
        if prune:
            mask = np.zeros_like(a)
            mask[largest] = 1
            scaled = scaled * mask
        total += np.outer(d, scaled)
    return torch.from_numpy(total)


def pair(
    width: int = 40, classes: int = 4, dtype: torch.dtype = torch.float32, **options: object
) -> tuple[nn.Linear, IshLinear]:
    torch.manual_seed(0)
    plain = nn.Linear(width, classes, dtype=dtype)
    return plain, IshLinear.sharing(copy.deepcopy(plain), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(40,), (6, 40), (2, 3, 40)])
def test_forward_is_bit_identical(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    plain, shaped = pair(dtype=dtype)
    features = rows().reshape(-1)[: math.prod(shape)].reshape(shape).to(dtype)
    assert torch.equal(plain(features), shaped(features))
    assert torch.equal(plain(features), shaped.eval()(features))


@pytest.mark.parametrize("prune", [False, True])
@pytest.mark.parametrize("percentile", [0.0, 60.0, 85.0, 97.0])
def test_gradients_against_the_papers_equation(percentile: float, prune: bool) -> None:
    plain, shaped = pair(dtype=torch.float64, percentile=percentile, prune=prune)
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    results = []
    for layer in (plain, shaped):
        features = rows(dtype=torch.float64).requires_grad_()
        logits = layer(features)
        logits.retain_grad()
        F.cross_entropy(logits, labels).backward()
        results.append((features, logits))
    delta = results[1][1].grad
    assert delta is not None
    torch.testing.assert_close(
        shaped.weight.grad, slow_gradient(rows(dtype=torch.float64), delta, percentile, prune), rtol=1e-6, atol=1e-9
    )
    torch.testing.assert_close(shaped.bias.grad, plain.bias.grad, rtol=0, atol=0)
    torch.testing.assert_close(results[1][0].grad, results[0][0].grad, rtol=0, atol=0)
    assert not torch.allclose(shaped.weight.grad, plain.weight.grad)


def test_second_derivatives_are_refused() -> None:
    """No loss has ISH's gradient, so a second derivative through it would be silently wrong."""
    _, shaped = pair(dtype=torch.float64)
    features = rows(dtype=torch.float64).requires_grad_()
    gradient = torch.autograd.grad(shaped(features).square().sum(), shaped.weight, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.square().sum().backward()


def test_only_in_training_mode() -> None:
    plain, shaped = pair()
    shaped.eval()
    for layer in (plain, shaped):
        layer(rows()).square().sum().backward()
    assert torch.equal(plain.weight.grad, shaped.weight.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    plain, shaped = pair()
    delta = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.autocast("cpu", dtype):
        expected, got = plain(rows()), shaped(rows())
    assert got.dtype == dtype
    assert torch.equal(expected, got)
    got.backward(delta)
    assert shaped.weight.grad is not None
    assert shaped.weight.grad.dtype == torch.float32
    torch.testing.assert_close(
        shaped.weight.grad.double(), slow_gradient(rows().to(dtype), delta, 85.0, False), rtol=1e-5, atol=1e-4
    )


def test_compile_gives_the_same_gradients() -> None:
    _, shaped = pair(dtype=torch.float64)
    other = copy.deepcopy(shaped)
    compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
    shaped(rows(dtype=torch.float64)).square().sum().backward()
    compiled(rows(dtype=torch.float64)).square().sum().backward()
    torch.testing.assert_close(other.weight.grad, shaped.weight.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(other.bias.grad, shaped.bias.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "features",
    [torch.zeros(2, 40), -torch.ones(2, 40), torch.eye(2, 40) * 1e30, torch.randn(3, 40), torch.full((2, 40), 1e-30)],
    ids=["zero", "negative", "huge and sparse", "signed", "tiny"],
)
@pytest.mark.parametrize("percentile", [85.0, 99.0])
@pytest.mark.parametrize("prune", [False, True])
def test_odd_features_give_finite_factors(features: Tensor, percentile: float, prune: bool) -> None:
    assert torch.isfinite(ish_activations(features, percentile, prune)).all()


def factors(features: Tensor, percentile: float, prune: bool = False) -> list[float]:
    """By how much each row was scaled, read off its largest activation."""
    scaled = ish_activations(features, percentile, prune)
    place = features.abs().argmax(dim=1, keepdim=True)
    return (scaled.gather(1, place) / features.gather(1, place)).flatten().tolist()


def test_signed_rows_are_scaled_as_if_nothing_were_left_out() -> None:
    """Their ratio would be below 1, or have no sense at all; a ReLU's never is."""
    features = torch.tensor([[1.0, -5.0, -5.0, -6.0], [-1.0, -2.0, -3.0, -4.0], [3.0, -1.0, 0.0, 0.0]])
    assert factors(features, 75.0) == pytest.approx([math.e] * 3)
    # Pruning goes by absolute values, so that these rows have a ratio.
    assert factors(features, 75.0, prune=True) == pytest.approx([math.exp(17 / 6), math.exp(10 / 4), math.exp(4 / 3)])


def test_no_ratio_is_so_high_that_its_factor_overflows() -> None:
    level = torch.ones(1, 1000, dtype=torch.float64)
    assert factors(level, 99.9) == pytest.approx([math.exp(80)])
    assert factors(level, 98.0) == pytest.approx([math.exp(50)])


@pytest.mark.parametrize("strength", [1e-12, 1e-4, 1e12])
def test_the_factor_does_not_depend_on_the_strength_of_a_row(strength: float) -> None:
    assert factors(rows() * strength, 85.0) == pytest.approx(factors(rows(), 85.0), rel=1e-4)


@pytest.mark.parametrize("percentile", [-1.0, 0.85, 100.0, float("nan")])
def test_percentile_is_in_percent(percentile: float) -> None:
    with pytest.raises(OptionError, match="percent"):
        IshLinear(4, 2, percentile=percentile)


def test_swap_in_and_out() -> None:
    model = networks.build("tiny_resnet", 3).train()
    keys, plain, weight = list(model.state_dict()), model.fc, model.fc.weight
    images = torch.rand(4, 3, 32, 32)
    logits = copy.deepcopy(model)(images)
    with ish(model, percentile=70.0) as inside:
        assert inside is model
        assert isinstance(model.fc, IshLinear)
        assert model.fc.percentile == 70.0
        assert model.fc.weight is weight
        assert list(model.state_dict()) == keys
        assert torch.equal(model(images), logits)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(images).square().sum().backward()
        optimizer.step()
    assert model.fc is plain
    assert type(model.fc) is nn.Linear
    assert model.fc.weight is weight
    networks.build("tiny_resnet", 3).load_state_dict(model.state_dict())


def test_parameters_that_were_replaced_inside_are_kept() -> None:
    model = networks.build("tiny_resnet", 3).train()
    with ish(model):
        model.fc.weight = nn.Parameter(torch.ones_like(model.fc.weight))
        model.fc.bias = nn.Parameter(torch.full_like(model.fc.bias, 2.0))
        model.eval()
    assert type(model.fc) is nn.Linear
    assert model.fc.weight.unique().tolist() == [1.0]
    assert model.fc.bias.unique().tolist() == [2.0]
    assert not model.fc.training


def test_swap_names_and_refusals() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))
    swapped = ish(model, layer="3")
    assert isinstance(model[3], IshLinear)
    swapped.undo()
    assert type(model[3]) is nn.Linear
    for other in ("2", "nope"):
        with pytest.raises(ModelError, match=other):
            ish(model, layer=other)
    with pytest.raises(ModelError):
        ish(nn.Sequential(nn.Conv2d(3, 4, 3)))
