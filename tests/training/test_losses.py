"""Each method's loss against its paper, written again slowly, one image at a time."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file
from torch import Tensor, nn

from idness.networks.architectures import ProjectedNetwork
from idness.training import AugMix, Cider, ConfBranch, LogitNorm, Plain, RegMixup, TrainingSet, finetune, networks
from idness.training.augmix import jsd_loss, operate
from idness.training.cider import compactness_loss, dispersion_loss, update_prototypes
from idness.training.confbranch import confidence_losses
from idness.training.logitnorm import logitnorm_loss
from idness.training.regmixup import regmixup_loss
from tests.training.conftest import small_world

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3


@pytest.fixture
def labels() -> Tensor:
    return torch.tensor([0, 1, 2, 3, 3, 0, 0])


def softmax(row: Tensor) -> list[float]:
    powers = [math.exp(float(v)) for v in row]
    return [p / sum(powers) for p in powers]


def test_logitnorm(logits: Tensor, labels: Tensor) -> None:
    slow = 0.0
    for row, label in zip(logits, labels, strict=True):
        length = math.sqrt(sum(float(v) ** 2 for v in row))
        slow -= math.log(softmax(row / length / 0.04)[int(label)]) / len(labels)
    assert float(logitnorm_loss(logits, labels, 0.04)) == pytest.approx(slow, rel=1e-6)
    assert float(logitnorm_loss(logits * 1000, labels, 0.04)) == pytest.approx(slow, rel=1e-6)
    assert torch.isfinite(logitnorm_loss(torch.zeros(2, 4), torch.tensor([0, 1]), 0.04))


def test_regmixup(logits: Tensor, labels: Tensor) -> None:
    mixed, partners = logits.flip(0) * 0.5, labels.flip(0)
    slow = 0.0
    for z, m, y, other in zip(logits, mixed, labels, partners, strict=True):
        slow -= math.log(softmax(z)[int(y)])
        slow -= 0.7 * (0.6 * math.log(softmax(m)[int(y)]) + 0.4 * math.log(softmax(m)[int(other)]))
    assert float(regmixup_loss(logits, mixed, labels, partners, 0.6, 0.7)) == pytest.approx(slow / len(labels))


def test_confbranch(logits: Tensor, labels: Tensor) -> None:
    confidence = torch.tensor([0.9, 0.1, 0.5, 0.99, 0.3, 1e-20, 1.0], dtype=torch.float64)
    hinted = torch.tensor([True, False, True, True, False, True, False])
    task = asked = 0.0
    for z, c, y, hint in zip(logits, confidence, labels, hinted, strict=True):
        p = softmax(z)
        share = float(c) if hint else 1.0
        moved = [share * p[k] + (1 - share) * (k == int(y)) for k in range(4)]
        task -= math.log(moved[int(y)]) / 7
        asked -= math.log(max(float(c), 1e-12)) / 7
    got = confidence_losses(logits, confidence, labels, hinted)
    assert [float(v) for v in got] == pytest.approx([task, asked])


@pytest.mark.parametrize(("budget", "price"), [(99.0, 0.1 / 1.01), (1e-6, 0.1 / 0.99)])
def test_confbranch_price_follows_the_budget(budget: float, price: float, world: TrainingSet) -> None:
    method = ConfBranch(networks.build("tiny_resnet", 3), 3, MEAN, STD, budget=budget).train()
    method(world.images[:12].permute(0, 3, 1, 2), world.labels[:12])
    assert float(method.price) == pytest.approx(price)


def test_cider_prototypes_move_one_image_after_another(labels: Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    start = nn.functional.normalize(torch.randn(4, 5, generator=generator, dtype=torch.float64), dim=1)
    images = nn.functional.normalize(torch.randn(7, 5, generator=generator, dtype=torch.float64), dim=1)
    slow = start.clone()
    for image, label in zip(images, labels, strict=True):
        moved = 0.95 * slow[label] + 0.05 * image
        slow[label] = moved / moved.square().sum().sqrt()
    torch.testing.assert_close(update_prototypes(start, images, labels, 0.95), slow, rtol=1e-12, atol=1e-12)


def test_cider_losses(labels: Tensor) -> None:
    generator = torch.Generator().manual_seed(1)
    centres = nn.functional.normalize(torch.randn(4, 5, generator=generator, dtype=torch.float64), dim=1)
    images = nn.functional.normalize(torch.randn(7, 5, generator=generator, dtype=torch.float64), dim=1)
    apart = 0.0
    for i in range(4):
        apart += math.log(sum(math.exp(float(centres[i] @ centres[j]) / 0.1) for j in range(4) if j != i) / 3) / 4
    near = 0.0
    for image, label in zip(images, labels, strict=True):
        near -= math.log(softmax(centres @ image / 0.1)[int(label)]) / 7
    assert float(dispersion_loss(centres, 0.1)) == pytest.approx(apart)
    assert float(compactness_loss(images, centres, labels, 0.1)) == pytest.approx(near)


def test_cider_with_knn_end_to_end(tmp_path: Path) -> None:
    """Trained on three brightnesses, its weights load into a fresh network, and KNN tells noise from what it knows."""
    from idness.detectors.registry import build
    from idness.metrics import auroc
    from idness.networks.load import load_weights
    from idness.networks.split import SplitModel

    torch.manual_seed(0)
    world = small_world(96)
    done = finetune(
        networks.build("tiny_resnet", 3), world, "cider", out=tmp_path, epochs=6, batch_size=16, lr=0.05, warmup=0.0
    )
    inner = networks.build("tiny_resnet", 3)
    fresh = load_weights(ProjectedNetwork(inner, inner.fc, 3), tmp_path / "weights.safetensors").eval()
    assert set(load_file(tmp_path / "method.safetensors")) == {"prototypes"}
    split, normalise = SplitModel(fresh), done.objective.normalise
    train, test = (split.split(normalise(w.images.permute(0, 3, 1, 2))) for w in (world, small_world(48, seed=7)))
    noise = torch.randint(0, 2, (48, 3, 8, 8), generator=torch.Generator().manual_seed(1)) * 255
    knn = build("knn", k=3).fit(split.head, train)
    assert auroc(knn.score(test), knn.score(split.split(normalise(noise)))) > 0.9


def test_jsd(logits: Tensor) -> None:
    others = logits.flip(0), logits.roll(1, 0)
    slow = 0.0
    for rows in zip(logits, *others, strict=True):
        shares = [softmax(row) for row in rows]
        middle = [sum(p[k] for p in shares) / 3 for k in range(4)]
        slow += sum(p[k] * math.log(p[k] / middle[k]) for p in shares for k in range(4)) / 3 / len(logits)
    assert float(jsd_loss(logits, *others)) == pytest.approx(slow, rel=1e-5)
    assert float(jsd_loss(logits, logits, logits)) == pytest.approx(0.0, abs=1e-6)


def pictures(count: int = 4) -> Tensor:
    values = torch.randint(0, 200, (count, 3, 16, 16), generator=torch.Generator().manual_seed(0))
    values[0] = 77  # one image of one colour
    return values.byte()


@pytest.mark.parametrize("level", [0.05, 0.26, 0.29, 0.1])
def test_augmix_changes_values_as_pillow_does(level: float) -> None:
    for image in pictures():
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        expected = {
            "autocontrast": ImageOps.autocontrast(picture),
            "equalize": ImageOps.equalize(picture),
            "posterize": ImageOps.posterize(picture, 4 - int(level * 4)),
            "solarize": ImageOps.solarize(picture, 256 - int(level * 256)),
        }
        for name, want in expected.items():
            off = np.abs(
                operate(image, name, level).permute(1, 2, 0).numpy() - np.asarray(want, dtype=np.float64)
            ).max()
            assert off <= (1 if name == "autocontrast" else 0), name


@pytest.mark.parametrize("level", [-0.27, 0.15])
def test_augmix_moves_pixels_as_pillow_does(level: float) -> None:
    rows, columns = np.meshgrid(np.arange(30), np.arange(30), indexing="ij")
    smooth = np.stack([4 * rows + 60, 5 * columns + 40, 3 * (rows + columns)], axis=-1).astype(np.uint8)
    picture, image = Image.fromarray(smooth), torch.from_numpy(smooth).permute(2, 0, 1)

    def moved(*matrix: float) -> Image.Image:
        return picture.transform((30, 30), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)

    step = int(10 * level)
    expected = {
        "rotate": picture.rotate(-int(30 * level), Image.Resampling.BILINEAR),
        "shear_x": moved(1, 0.3 * level, 0, 0, 1, 0),
        "shear_y": moved(1, 0, 0, 0.3 * level, 1, 0),
        "translate_x": moved(1, 0, -step, 0, 1, 0),
        "translate_y": moved(1, 0, 0, 0, 1, -step),
    }
    for name, want in expected.items():
        found, wanted = operate(image, name, level).permute(1, 2, 0).numpy(), np.asarray(want)
        assert not np.array_equal(found, smooth), name
        # At the border they blend with black differently.
        assert np.abs(found.astype(float) - wanted)[6:-6, 6:-6].max() <= 2, name


@pytest.mark.parametrize("kind", [Plain, LogitNorm, RegMixup, ConfBranch, AugMix, Cider])
def test_every_loss_has_gradients_for_all_that_is_trained(kind: type, world: TrainingSet) -> None:
    torch.manual_seed(0)
    method = kind(networks.build("tiny_resnet", 3), 3, MEAN, STD).train()
    images = world.images[:12].permute(0, 3, 1, 2)
    outcome = method(images, world.labels[:12])
    outcome.loss.backward()
    assert torch.isfinite(outcome.loss)
    assert outcome.logits.shape == (12, 3)
    for name, parameter in method.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
