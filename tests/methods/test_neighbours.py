"""Methods that compare an image with single training images."""

import math

import numpy as np
import pytest

from idness.methods import KNN, ActSub, NNGuide, Relation
from tests.methods.slow import check, energy, ratio, softmax
from tests.worlds import make_world


@pytest.mark.parametrize("k", [1, 7, 50])
def test_knn_is_the_distance_to_the_kth_training_image(world, k):
    bank = world.train.features.double()
    bank = bank / bank.norm(dim=1, keepdim=True)

    def expected(x, _):
        return -sorted((x / x.norm() - bank).square().sum(dim=1).tolist())[k - 1]

    check(KNN(k=k).fit(world.head, world.train), world, expected, abs=1e-5)


@pytest.mark.parametrize("k", [1, 10, 77])
def test_nnguide_is_the_energy_times_the_weighted_similarity_of_neighbours(world, k):
    bank = world.train.features.double()
    bank = bank / bank.norm(dim=1, keepdim=True)
    weights = [energy(logits) for logits in world.train.logits.double().tolist()]

    def expected(x, z):
        cosines = (bank @ x / x.norm()).tolist()
        guided = sorted((a * b for a, b in zip(weights, cosines, strict=True)), reverse=True)
        return energy(z) * sum(guided[:k]) / k

    check(NNGuide(k=k).fit(world.head, world.train), world, expected)


@pytest.mark.parametrize("power", [1.0, 2.0, 8.0])
def test_relation_is_the_mean_relation_to_training_images_without_weak_ones(world, power):
    train = world.train[:100]
    bank = list(zip(train.features.double(), map(softmax, train.logits.tolist()), strict=True))

    def expected(x, z):
        cosines = [float(x @ y / (x.norm() * y.norm())) for y, _ in bank]
        likely = [sum(a * b for a, b in zip(softmax(z), q, strict=True)) for _, q in bank]
        relations = [max(0.0, cosine) * same for cosine, same in zip(cosines, likely, strict=True)]
        return sum(relation**power for relation in relations if relation > 0.03) / len(relations)

    check(Relation(power=power).fit(world.head, train), world, expected)


def slow_basis(weight, features):
    """ActSub's split: the number of directions at which both parts are equally long on average."""
    _, _, directions = np.linalg.svd(weight, full_matrices=False)
    gaps = []
    for count in range(1, len(directions) + 1):
        inside = features @ directions[:count].T @ directions[:count]
        gaps.append(abs(np.mean(np.linalg.norm(inside, axis=1) - np.linalg.norm(features - inside, axis=1))))
    return directions[: int(np.argmin(gaps)) + 1]


@pytest.mark.parametrize(("percentile", "power", "k"), [(85.0, 2.0, 10), (65.0, 0.5, 1), (90.0, 1.0, 25)])
def test_actsub_scores_as_the_paper_writes(world, percentile, power, k):
    bank, weight = world.train.features.double().numpy(), world.head.weight.double().numpy()
    basis = slow_basis(weight, bank)
    others = bank - bank @ basis.T @ basis

    def expected(x, _):
        decisive = basis.T @ (basis @ x.numpy())
        rest = x.numpy() - decisive
        cosines = others @ rest / np.linalg.norm(rest) / np.linalg.norm(others, axis=1)
        logits = weight @ (decisive * math.exp(ratio(decisive.tolist(), percentile))) + world.head.bias.double().numpy()
        return energy(logits.tolist()) * (-math.log(1 - np.mean(np.sort(cosines)[-k:]))) ** power

    detector = ActSub(percentile=percentile, power=power, k=k).fit(world.head, world.train)
    assert detector.basis_.shape == (world.head.width, len(basis))
    check(detector, world, expected, rel=1e-3)


def test_fewer_directions_are_decisive_where_there_are_many_classes():
    """Here the head sees every direction, and the split falls in between."""
    world = make_world(width=16, classes=30)
    detector = ActSub().fit(world.head, world.train)
    basis = slow_basis(world.head.weight.double().numpy(), world.train.features.double().numpy())
    assert detector.basis_.shape[1] == len(basis) < 16
