import math

import pytest
import torch

from idness.core.types import Activations
from idness.methods import SHE


def slow_pattern(train, label):
    """The mean of the images of a class that the network recognises, feature by feature."""
    rows = [
        row.tolist()
        for row, logits, truth in zip(train.features, train.logits, train.labels.tolist(), strict=True)
        if truth == label and max(range(len(logits)), key=lambda c: logits[c]) == label
    ]
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


METRICS = {
    "inner_product": lambda x, y: sum(a * b for a, b in zip(x, y, strict=True)),
    "cosine": lambda x, y: sum(a * b for a, b in zip(x, y, strict=True)) / (math.hypot(*x) * math.hypot(*y)),
    "euclidean": lambda x, y: -math.dist(x, y),
}


@pytest.mark.parametrize("metric", list(METRICS))
def test_it_compares_with_the_pattern_of_the_predicted_class(world, metric):
    patterns = [slow_pattern(world.train, label) for label in range(world.head.classes)]
    scores = SHE(metric=metric).fit(world.head, world.train).score(world.test)
    for row, logits, score in zip(
        world.test.features.tolist(), world.test.logits.tolist(), scores.tolist(), strict=True
    ):
        assert score == pytest.approx(METRICS[metric](row, patterns[logits.index(max(logits))]), rel=1e-4)


def test_images_that_the_network_takes_for_another_class_leave_no_trace(world):
    wrong = world.train.labels.clone()
    wrong[::3] = (wrong[::3] + 1) % world.head.classes
    mislabelled = Activations(world.train.features, world.train.logits, wrong)
    without = world.train[torch.arange(len(world.train)) % 3 != 0]
    right = world.train.logits.argmax(dim=1) == world.train.labels
    assert right.all()  # so that each of the wrong labels differs from what the network says
    torch.testing.assert_close(
        SHE().fit(world.head, mislabelled).patterns_, SHE().fit(world.head, without).patterns_, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("absent", [[2], [0, 1, 2, 3, 4]])
def test_a_class_that_was_never_recognised_takes_the_mean_of_all_images(world, absent):
    labels = world.train.labels.clone()
    for label in absent:
        labels[world.train.labels == label] = (label + 1) % world.head.classes
    detector = SHE().fit(world.head, Activations(world.train.features, world.train.logits, labels))
    torch.testing.assert_close(detector.patterns_[2], world.train.features.mean(dim=0))
    assert detector.score(world.test).isfinite().all()
