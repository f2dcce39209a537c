from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from idness.activations.prerelu import capture
from idness.core.errors import InputError
from idness.core.types import Activations, Head
from idness.detectors.registry import parse
from idness.networks.split import SplitModel
from idness.selection.contest import Contest
from idness.selection.suitability import LITTLE, balance, examine
from tests.rectified import World, ratio_world

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
    found = capture(split, images)
    diagnosis = examine(split, found.acts, rectifier=found.rectifier)
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
    good, bad = ratio_world(peaked=True), ratio_world(peaked=False)
    verdict = examine(good.head, good.inside, good.outside)
    assert verdict.suits
    assert verdict.percentiles is not None
    verdict = examine(bad.head, bad.inside, bad.outside)
    assert not verdict.suits, verdict.why
    assert parse(verdict.method).name != "scale"
    assert verdict.percentiles is None
    assert any(finding.name == "measured on your OOD images" for finding in verdict.findings)


def test_without_ood_images_shuffled_ones_decide() -> None:
    good, bad = ratio_world(peaked=True), ratio_world(peaked=False)
    verdict = examine(good.head, good.inside, shuffled=good.outside)
    assert verdict.suits
    assert parse(verdict.method).name == "scale"
    assert "shuffled" in verdict.why
    verdict = examine(bad.head, bad.inside, shuffled=bad.outside)
    assert not verdict.suits
    assert verdict.method == "gen"


def test_with_neither_scale_is_not_recommended(world: World) -> None:
    verdict = examine(world.head, world.inside)
    assert not verdict.suits
    assert verdict.method == "gen"
    assert "structure allows it" in verdict.why


def test_few_images_are_judged_by_structure_alone(world: World) -> None:
    verdict = examine(world.head, world.inside[:20], world.outside)
    assert verdict.suits
    assert verdict.why.startswith("By its structure")


def test_few_ood_images_give_no_measured_verdict(world: World) -> None:
    verdict = examine(world.head, world.inside, world.outside[:10])
    assert not any(finding.name.startswith("measured") for finding in verdict.findings)


def test_a_tie_with_the_plain_energy_is_no_reason_to_scale() -> None:
    tied = Contest({"ebo": 0.9, "scale(percentile=85)": 0.9, "msp": 0.8}, {85.0: 0.9}, "scale(percentile=85)", 1.0, 1.0)
    assert not tied.suits
    assert tied.useful is None
    ahead = Contest(
        {"scale(percentile=85)": 0.91, "ebo": 0.9}, {85.0: 0.91, 95.0: 0.8}, "scale(percentile=85)", 0.2, 0.2
    )
    assert ahead.suits
    assert not ahead.helps
    assert ahead.useful == (85.0, 85.0)


def test_narrow_networks_are_a_risk() -> None:
    small = ratio_world(peaked=True, width=64)
    verdict = examine(small.head, small.inside, shuffled=small.outside)
    assert not verdict.suits
    assert next(finding for finding in verdict.findings if finding.name == "width").good is False


def test_balance_is_the_quotient_of_spreads(world: World) -> None:
    from idness.detectors.kernels import scale_ratio

    energies = torch.logsumexp(world.inside.logits.double(), dim=1)
    assert bool((energies > 0).all())
    expected = scale_ratio(world.inside.features, 85.0).double().std() / energies.log().std()
    assert balance(world.inside, [85.0])[85.0] == pytest.approx(float(expected), rel=1e-5)


def test_a_ratio_without_spread_is_told() -> None:
    generator = torch.Generator().manual_seed(0)
    # The same profile for all, stronger or weaker: r is one number, the energy is not.
    features = torch.rand(1, 200, generator=generator) * (1 + torch.rand(200, 1, generator=generator))
    head = Head(torch.randn(5, 200, generator=generator), torch.full((5,), 9.0))
    found = examine(head, Activations(features, head(features)))
    spread = next(finding for finding in found.findings if finding.name == "spread of r")
    assert spread.good is False
    assert spread.value is not None
    assert spread.value < LITTLE


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
    measured = examine(densenet.head, densenet.inside, densenet.outside)
    assert measured.suits
    assert measured.method == "scale(percentile=95)"
    assert measured.percentiles is not None
    assert measured.percentiles[1] == 95
    flips = next(finding for finding in measured.findings if finding.name == "bias flips")
    assert flips.value is not None
    assert 0 < flips.value < 0.02


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_papers_densenet_by_its_own_images_alone(shared_data: Path, tmp_path: Path) -> None:
    """CIFAR-10 images that ship with the package, and no OOD images: shuffled tiles must give the paper's percentile."""
    import numpy as np

    from idness.data import embedded
    from idness.selection.doctor import diagnose

    known = embedded.load("id_test")
    # The embedded classes among CIFAR-10's ten.
    labels = np.array([0, 1, 2, 4, 5, 9])[known.labels[::20]]
    np.savez(tmp_path / "cifar.npz", images=known.images[::20], labels=labels)
    source = f"{tmp_path / 'net.py'}:make"
    (tmp_path / "net.py").write_text(
        "from idness.networks import densenet\n\n\ndef make():\n    net = densenet.cifar10()\n"
        "    net.preprocessing = {'mean': [0.4914, 0.4822, 0.4465], 'std': [0.2023, 0.1994, 0.2010]}\n    return net\n"
    )
    found = diagnose(source, tmp_path / "cifar.npz", weights=shared_data / "densenet101_cifar10.pth.tar")
    assert found.suits
    assert found.method == "scale(percentile=95)"
