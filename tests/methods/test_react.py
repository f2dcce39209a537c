import math

import pytest
import torch
from safetensors.torch import load_file

from idness.core.types import Activations, Head
from idness.methods import EBO, ReAct
from idness.metrics import auroc


def percentile(values, percent):
    """Linear interpolation between the two nearest ranks."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@pytest.mark.parametrize("percent", [50.0, 90.0, 99.0])
def test_it_clips_at_a_percentile_of_all_validation_activations(world, percent):
    detector = ReAct(percentile=percent).fit(world.head, world.train, val=world.val)
    clip = percentile(world.val.features.flatten().tolist(), percent)
    assert float(detector.clip_) == pytest.approx(clip, rel=1e-5)
    scores = detector.score(world.test)
    for row, score in zip(world.test.features.tolist(), scores.tolist(), strict=True):
        clipped = torch.tensor([min(a, clip) for a in row])
        logits = (world.head.weight @ clipped + world.head.bias).tolist()
        assert score == pytest.approx(math.log(sum(math.exp(z) for z in logits)), rel=1e-4)


def test_without_validation_images_it_learns_from_training_images(world):
    detector = ReAct().fit(world.head, world.train)
    assert float(detector.clip_) == pytest.approx(percentile(world.train.features.flatten().tolist(), 99), rel=1e-5)


@pytest.mark.shared
def test_the_default_does_no_harm_on_the_papers_network(shared_data):
    folder = shared_data / "activations"
    head = Head(**load_file(folder / "head.safetensors"))
    parts = [load_file(folder / f"{name}.safetensors") for name in ("cifar10_test", "isun")]
    known, ood = (Activations(part["features"], part["logits"]) for part in parts)
    gains = {}
    for detector in (EBO(), ReAct(), ReAct(percentile=90)):
        detector.fit(head, val=known[::2])
        gains[detector.label()] = auroc(detector.score(known[1::2]), detector.score(ood))
    plain, default, papers = gains.values()
    assert default > plain
    assert papers < plain - 0.1
