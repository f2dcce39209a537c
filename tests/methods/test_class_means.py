"""Methods that compare an image with the mean, or the weights, of the predicted class."""

import math

import pytest
import torch

from idness.core.types import Activations, Head
from idness.methods import FDBD, NCI, SHE, CADRef
from tests.methods.slow import check, energy, softmax

READ = {"energy": energy, "msp": lambda z: max(softmax(z)), "max_logit": max}


@pytest.mark.parametrize("readout", list(READ))
def test_cadref_scores_as_the_paper_writes(world, readout):
    train, predicted = world.train, world.train.logits.argmax(dim=1)
    means = [train.features[predicted == c].double().mean(dim=0).tolist() for c in range(5)]
    average = sum(READ[readout](z) for z in train.logits.double().tolist()) / len(train)

    def expected(x, z):
        c = z.index(max(z))
        raising = lowering = 0.0
        for value, mean, weight in zip(x.tolist(), means[c], world.head.weight[c].tolist(), strict=True):
            effect = (value - mean) * (1 if weight > 0 else -1 if weight < 0 else 0)
            raising, lowering = raising + max(effect, 0.0), lowering + max(-effect, 0.0)
        return -(raising / READ[readout](z) + lowering / average) / sum(abs(v) for v in x.tolist())

    check(CADRef(readout=readout).fit(world.head, train), world, expected)


def test_a_class_that_was_never_predicted_has_the_mean_of_all(world):
    kept = world.train[world.train.logits.argmax(dim=1) != 2]
    detector = CADRef().fit(world.head, kept)
    torch.testing.assert_close(detector.means_[2], kept.features.mean(dim=0), rtol=1e-4, atol=1e-5)
    assert detector.score(world.test).isfinite().all()


def test_a_negative_energy_is_no_merit(world):
    """Divided by it, an error would raise the score."""
    head = Head(world.head.weight, world.head.bias - 9)
    train, ood = (Activations(a.features, head(a.features)) for a in (world.train, world.ood))
    assert (ood.logits.logsumexp(dim=1) < 0).any()
    assert (CADRef().fit(head, train).score(ood) < 0).all()


def test_fdbd_is_the_mean_distance_to_the_boundaries_over_that_from_the_mean_image(world):
    mean, weight = world.train.features.double().mean(dim=0), world.head.weight.double()

    def expected(x, z):
        best = z.index(max(z))
        distances = [(z[best] - z[c]) / float((weight[best] - weight[c]).norm()) for c in range(5) if c != best]
        return sum(distances) / len(distances) / float((x - mean).norm())

    check(FDBD().fit(world.head, world.train), world, expected)


def test_classes_with_the_same_weights_and_single_classes_have_no_boundary(world):
    def scores(head):
        train, test = (Activations(a.features, head(a.features)) for a in (world.train, world.test))
        return FDBD().fit(head, train).score(test)

    weight, bias = world.head.weight, world.head.bias
    assert (scores(Head(weight[:1], bias[:1])) == 0).all()
    # Every class twice: of nine boundaries one is missing, the others are four, twice.
    twice = scores(Head(torch.cat([weight, weight]), torch.cat([bias, bias])))
    torch.testing.assert_close(twice, scores(world.head) * 8 / 9, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("alpha", [0.0001, 0.01, 1.0])
def test_nci_is_the_projection_on_the_predicted_class_plus_the_size(world, alpha):
    mean, weight = world.train.features.double().mean(dim=0), world.head.weight.double()

    def expected(x, z):
        along = float(weight[z.index(max(z))] @ (x - mean))
        return along / float((x - mean).norm()) + alpha * sum(abs(v) for v in x.tolist())

    check(NCI(alpha=alpha).fit(world.head, world.train), world, expected)


METRICS = {
    "inner_product": lambda x, y: sum(a * b for a, b in zip(x, y, strict=True)),
    "cosine": lambda x, y: sum(a * b for a, b in zip(x, y, strict=True)) / (math.hypot(*x) * math.hypot(*y)),
    "euclidean": lambda x, y: -math.dist(x, y),
}


@pytest.mark.parametrize("metric", list(METRICS))
def test_she_compares_with_the_pattern_of_the_predicted_class(world, metric):
    train = world.train
    known = train.logits.argmax(dim=1) == train.labels
    patterns = [train.features[known & (train.labels == c)].double().mean(dim=0).tolist() for c in range(5)]
    detector = SHE(metric=metric).fit(world.head, train)
    check(detector, world, lambda x, z: METRICS[metric](x.tolist(), patterns[z.index(max(z))]))


def test_images_that_the_network_takes_for_another_class_leave_no_trace(world):
    wrong = world.train.labels.clone()
    wrong[::3] = (wrong[::3] + 1) % world.head.classes
    mislabelled = Activations(world.train.features, world.train.logits, wrong)
    without = world.train[torch.arange(len(world.train)) % 3 != 0]
    assert (world.train.logits.argmax(dim=1) == world.train.labels).all()  # so that each of the wrong labels is wrong
    ours, expected = (SHE().fit(world.head, train).patterns_ for train in (mislabelled, without))
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("absent", [[2], [0, 1, 2, 3, 4]])
def test_a_class_that_was_never_recognised_takes_the_mean_of_all_images(world, absent):
    labels = world.train.labels.clone()
    for label in absent:
        labels[world.train.labels == label] = (label + 1) % world.head.classes
    detector = SHE().fit(world.head, Activations(world.train.features, world.train.logits, labels))
    torch.testing.assert_close(detector.patterns_[2], world.train.features.mean(dim=0))
    assert detector.score(world.test).isfinite().all()
