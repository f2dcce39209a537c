from __future__ import annotations

import warnings

import pytest
import torch

from idness.analysis.doctor import IDEAL, LITTLE, MUCH, balance, examine
from idness.analysis.prerelu import extract
from idness.errors import InputError
from idness.model import SplitModel
from idness.registry import parse
from idness.types import Activations, Head
from tests.analysis.rectified import World, rectified_world

STRUCTURES = {
    "resnet50": True,
    "mobilenet_v2": True,
    "efficientnet_b0": False,
    "convnext_tiny": False,
    "vit_b_16": False,
    "swin_t": False,
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_structure_of_torchvision_networks(name: str) -> None:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    images = torch.randn(3, 3, 224, 224)
    split = SplitModel(getattr(models, name)(weights=None).eval(), example=images[:2])
    found = extract(split, [images])
    diagnosis = examine(split, found.acts, pre=found.pre, rectifier=found.rectifier)
    assert diagnosis.suits is STRUCTURES[name]
    assert (found.rectifier is not None) is STRUCTURES[name]
    assert parse(diagnosis.method).name == ("scale" if STRUCTURES[name] else "gen")


def test_signed_features_never_get_scale_and_never_warn(world: World) -> None:
    shifted = Activations(world.inside.features - 1.0, world.head(world.inside.features - 1.0), world.inside.labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = examine(world.head, shifted)
        other = world.outside.features - 1.0
        measured = examine(world.head, shifted, Activations(other, world.head(other)))
    assert not alone.suits
    assert alone.method == "gen"
    assert "negative" in alone.why
    assert not measured.suits
    assert parse(measured.method).name not in ("scale", "ash")


def test_the_verdict_is_measured_where_ood_images_are_there() -> None:
    good, bad = rectified_world(0.5, 0.0), rectified_world(-0.5, 2.0)
    assert examine(good.head, good.inside, good.outside).suits
    verdict = examine(bad.head, bad.inside, bad.outside)
    assert not verdict.suits, verdict.why
    assert parse(verdict.method).name != "scale"
    assert any(finding.name.startswith("measured") for finding in verdict.findings)


def test_few_ood_images_give_no_measured_verdict(world: World) -> None:
    verdict = examine(world.head, world.inside, world.outside[:10])
    assert not any(finding.name.startswith("measured") for finding in verdict.findings)


def test_narrow_networks_are_a_risk() -> None:
    small = rectified_world(0.5, 0.0, width=64)
    verdict = examine(small.head, small.inside)
    assert not verdict.suits
    assert "64 features" in verdict.why


def test_balance_is_the_quotient_of_spreads(world: World) -> None:
    from idness.kernels import scale_ratio

    energies = torch.logsumexp(world.inside.logits.double(), dim=1)
    assert bool((energies > 0).all())
    expected = scale_ratio(world.inside.features, 85.0).double().std() / energies.log().std()
    assert balance(world.inside, [85.0])[85.0] == pytest.approx(float(expected), rel=1e-5)


def test_a_ratio_without_spread_and_one_that_drowns_the_energy_are_told() -> None:
    generator = torch.Generator().manual_seed(0)
    base = 1 + 0.02 * torch.rand(200, 200, generator=generator)
    logits = torch.randn(200, 5, generator=generator).mul(3).exp()
    weight = torch.linalg.lstsq(base, logits).solution.T  # a head that makes these logits of these features
    head = Head(weight)
    flat = examine(head, Activations(base, head(base)))
    assert not flat.suits
    assert flat.method == "ebo"
    peaks = base * torch.where(
        torch.rand(200, 200, generator=generator) < torch.rand(200, 1, generator=generator), 0.0, 1.0
    )
    steady = Head(torch.zeros(5, 200), torch.tensor([9.0, 0.0, 0.0, 0.0, 0.0]))
    drowned = examine(steady, Activations(peaks, steady(peaks) + 0.01 * torch.randn(200, 5, generator=generator)))
    assert not drowned.suits
    assert drowned.method == "gen"


def test_wrong_input_is_refused(world: World) -> None:
    with pytest.raises(InputError, match="features per image"):
        examine(world.head, Activations(world.inside.features[:, :10], world.inside.logits))


def test_diagnosis_shows_itself(world: World) -> None:
    import json

    diagnosis = examine(world.head, world.inside)
    assert json.loads(json.dumps(diagnosis.to_dict()))["method"] == diagnosis.method
    assert diagnosis.method in diagnosis._repr_html_()


@pytest.mark.shared
def test_the_papers_densenet(densenet: World) -> None:
    alone = examine(densenet.head, densenet.inside)
    assert alone.suits
    assert alone.method == "scale(percentile=95)"
    measured = examine(densenet.head, densenet.inside, densenet.outside)
    assert measured.suits
    assert measured.method == "scale(percentile=95)"
    values = balance(densenet.inside, [80.0, 90.0, 95.0, 98.0])
    assert values[80.0] < LITTLE < values[90.0] < values[95.0] < MUCH < values[98.0]
    assert abs(values[95.0] - IDEAL) < 0.1
