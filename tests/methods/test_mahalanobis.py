import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.linalg import pinvh
from sklearn.covariance import oas

from idness.core.errors import IdnessWarning, InputError
from idness.core.types import Activations
from idness.detectors import gaussian
from idness.methods import MDS, MDSPP, RMDS, RMDSPP
from idness.metrics import auroc
from tests.methods.slow import check


def slow_parts(acts):
    """Class means, and the precision of class-centred features, by the book."""
    features, labels = acts.features.double().numpy(), acts.labels.numpy()
    classes = sorted(set(labels.tolist()))
    means = [features[labels == c].mean(axis=0) for c in classes]
    centred = np.concatenate([features[labels == c] - mean for c, mean in zip(classes, means, strict=True)])
    return means, pinvh(centred.T @ centred / len(centred)), features


def distance(x, mean, precision):
    return float((x - mean) @ precision @ (x - mean))


def nearest(x, means, precision):
    return min(distance(np.asarray(x), mean, precision) for mean in means)


def unit(acts):
    features = acts.features.double()
    return Activations(features / features.norm(dim=1, keepdim=True), acts.logits, acts.labels)


@pytest.mark.parametrize("count", [600, 30])  # more images than features, and fewer, as a pseudo-inverse takes them
@pytest.mark.parametrize("method", [MDS, RMDS, MDSPP, RMDSPP])
def test_it_is_the_distance_to_the_nearest_class_relative_to_that_to_all_data(world, method, count, monkeypatch):
    monkeypatch.setattr(gaussian, "BLOCK", 256)
    train, test = world.train[:count], world.test
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IdnessWarning)
        scores = method(shrinkage=0).fit(world.head, train).score(test)
    if method in (MDSPP, RMDSPP):
        train, test = unit(train), unit(test)
    means, precision, features = slow_parts(train)
    middle = features.mean(axis=0)
    background = pinvh((features - middle).T @ (features - middle) / len(features)) * (method in (RMDS, RMDSPP))
    for x, score in zip(test.features.double().numpy(), scores.tolist(), strict=True):
        expected = distance(x, middle, background) - nearest(x, means, precision)
        assert score == pytest.approx(expected, rel=1e-3, abs=1e-2)


@pytest.mark.parametrize("seed", range(3))
def test_what_rounding_leaves_is_no_variance(world, seed):
    """Features that follow from others have no variance of their own; rounding leaves some, above or below zero."""
    mix = torch.randn(world.head.width, 6, generator=torch.Generator().manual_seed(seed))

    def with_mixed(acts):
        features = acts.features.clone()
        features[:, :6] = (acts.features[:, 6:].double() @ mix[6:].double()).float()
        features[:, 0] = features[:, 1]
        return Activations(features, world.head(features), acts.labels)

    train, test = with_mixed(world.train), with_mixed(world.test)
    means, precision, _ = slow_parts(train)
    seen = replace(world, test=test)
    check(MDS().fit(world.head, train), seen, lambda x, _: -nearest(x, means, precision), rel=1e-2)


def test_a_class_without_images_is_never_the_nearest(world):
    """Its mean would be the origin: an all-zero image must not be close to it."""
    kept = world.train[world.train.labels != 2]
    means, precision, _ = slow_parts(kept)
    zero = torch.zeros(1, world.head.width)
    score = MDS().fit(world.head, kept).score(Activations(zero, world.head(zero))).item()
    assert score == pytest.approx(-nearest(zero[0], means, precision), rel=1e-4)


@pytest.mark.parametrize("method", [MDS, RMDS, MDSPP, RMDSPP])
def test_too_few_images_for_the_covariance_are_reported(world, method):
    some = world.train[: world.head.width]
    message = rf"{method.__name__}: {len(some)} training images give a covariance of rank \d+.*shrinkage=auto"
    with pytest.warns(IdnessWarning, match=message):
        method(shrinkage=0).fit(world.head, some)
    method(shrinkage="auto").fit(world.head, some)  # as the message suggests
    method(shrinkage=0).fit(world.head, world.train)


@pytest.mark.parametrize("method", [MDS, RMDS, MDSPP, RMDSPP])
def test_few_images_per_class_still_separate_ood_images_and_one_is_refused(world, method):
    labels, places = world.train.labels, torch.arange(len(world.train))
    few, one = (torch.cat([places[labels == c][:count] for c in range(5)]) for count in (3, 1))
    detector = method(shrinkage="auto").fit(world.head, world.train[few])  # 15 images, 64 features
    assert auroc(detector.score(world.test), detector.score(world.ood)) > 0.8
    with pytest.raises(InputError, match="needs classes with at least two training images, got 5 images of as many"):
        method().fit(world.head, world.train[one])


@pytest.mark.parametrize(("count", "width"), [(5, 30), (40, 30), (4000, 30)])
def test_the_automatic_shrinkage_is_that_of_scikit_learn(count, width):
    rows = np.random.default_rng(0).normal(size=(count, width)) * np.linspace(0.1, 2, width)
    covariance = torch.from_numpy(rows.T @ rows / count)
    assert gaussian.oas_shrinkage(covariance, count) == pytest.approx(oas(rows, assume_centered=True)[1], rel=1e-9)


def test_a_variance_of_rounding_errors_is_none():
    assert gaussian.whitening(torch.tensor([1.0, 1e-17]).double().diag()).square().sum(dim=1).tolist() == [1.0, 0.0]


def test_the_automatic_shrinkage_counts_the_images_beyond_one_per_class(world):
    centred = world.train.features.double().numpy()
    labels = world.train.labels.numpy()
    centred = centred - np.stack([centred[labels == c].mean(axis=0) for c in range(5)])[labels]
    covariance = torch.from_numpy(centred.T @ centred / len(centred))
    fixed = MDS(shrinkage=gaussian.oas_shrinkage(covariance, len(centred) - 5)).fit(world.head, world.train)
    auto = MDS(shrinkage="auto").fit(world.head, world.train)
    torch.testing.assert_close(auto.score(world.test), fixed.score(world.test))


@pytest.mark.parametrize("shrinkage", [0.0, 0.1, 0.9])
def test_shrinkage_moves_the_covariance_towards_the_identity(world, shrinkage):
    features, labels = world.train.features.double().numpy(), world.train.labels.numpy()
    means = np.stack([features[labels == c].mean(axis=0) for c in sorted(set(labels.tolist()))])
    centred = features - means[labels]
    covariance = centred.T @ centred / len(centred)
    shrunk = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    precision = pinvh(shrunk)
    check(MDS(shrinkage=shrinkage).fit(world.head, world.train), world, lambda x, _: -nearest(x, means, precision))
