import numpy as np
import pytest

from idness.core.types import Activations, Head
from idness.methods import EBO, Residual, ViM
from tests.methods.slow import check, energy


def slow_parts(world, dim):
    """The authors' recipe: the origin, and the directions outside the principal space, by singular values."""
    weight, bias = world.head.weight.double().numpy(), world.head.bias.double().numpy()
    origin = -np.linalg.pinv(weight) @ bias
    _, _, directions = np.linalg.svd(world.train.features.double().numpy() - origin)
    return origin, directions[dim:]


def length(x, origin, outside):
    return float(np.linalg.norm(outside @ (x - origin)))


@pytest.mark.parametrize(("share", "dim"), [(12.5, 8), (50.0, 32), (75.0, 48), (0.0, 0)])
def test_the_residual_is_a_logit_that_is_as_large_as_the_others(world, share, dim):
    origin, outside = slow_parts(world, dim)
    residuals = [length(x, origin, outside) for x in world.train.features.double().numpy()]
    alpha = world.train.logits.double().amax(dim=1).mean().item() / (sum(residuals) / len(residuals))
    detector = ViM(share=share).fit(world.head, world.train)
    assert detector.alpha_.item() == pytest.approx(alpha, rel=1e-6)
    check(detector, world, lambda x, z: energy(z) - alpha * length(x.numpy(), origin, outside), abs=1e-4)
    preferred = ViM(share=share).fit(world.head, world.train, val=world.val)
    largest = world.val.logits.double().amax(dim=1).mean()
    assert float(preferred.alpha_ * preferred.residual(world.val).mean()) == pytest.approx(float(largest))
    residual = Residual(share=share).fit(world.head, world.train)
    check(residual, world, lambda x, _: -length(x.numpy(), origin, outside), rel=1e-5)


def test_logits_that_are_negative_on_average_do_not_reward_residuals(world):
    head = Head(world.head.weight, world.head.bias - 100)
    shifted = [Activations(acts.features, head(acts.features)) for acts in (world.train, world.ood)]
    detector = ViM().fit(head, shifted[0])
    assert detector.alpha_ > 0
    assert (detector.score(shifted[1]) <= EBO().fit(head).score(shifted[1])).all()


@pytest.mark.parametrize("method", [ViM, Residual])
@pytest.mark.parametrize("count", [1, 10, 600])
def test_few_images_and_dead_features_leave_a_residual(world, method, count):
    """The share is of the directions in which images vary, else training images had no residual at all."""
    features = world.train.features[:count].clone()
    features[:, :40] = 0.0
    train = Activations(features, world.head(features))
    detector = method().fit(world.head, train)
    assert (Residual().fit(world.head, train).score(train) < -1e-3).double().mean() > 0.9
    scores = detector.score(world.test)
    assert scores.isfinite().all()
    assert scores.abs().max() < 1e5
