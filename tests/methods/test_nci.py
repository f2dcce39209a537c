import pytest
import torch

from idness.core.types import Activations
from idness.methods import NCI


@pytest.mark.parametrize("alpha", [0.0001, 0.01, 1.0])
def test_it_is_the_projection_on_the_predicted_class_plus_the_size(world, alpha):
    mean = world.train.features.double().mean(dim=0)
    weight = world.head.weight.double()
    scores = NCI(alpha=alpha).fit(world.head, world.train).score(world.test)
    for x, logits, score in zip(world.test.features.double(), world.test.logits, scores.tolist(), strict=True):
        along = sum(float(w) * float(v) for w, v in zip(weight[int(logits.argmax())], x - mean, strict=True))
        expected = along / float((x - mean).norm()) + alpha * sum(abs(float(v)) for v in x)
        assert score == pytest.approx(expected, rel=1e-4)


def test_without_the_size_only_the_direction_from_the_mean_counts(world):
    detector = NCI(alpha=1e-12).fit(world.head, world.train)
    mean = world.train.features.mean(dim=0)
    away = torch.randn(20, world.head.width, generator=torch.Generator().manual_seed(0))
    # Far enough for the prediction to stay with the direction.
    scores = [detector.score(Activations(mean + f * away, world.head(mean + f * away))) for f in (100.0, 1000.0)]
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-3, atol=1e-3)


def test_the_mean_image_itself_has_a_finite_score(world):
    detector = NCI().fit(world.head, world.train)
    mean = detector.centre_.unsqueeze(0)
    assert detector.score(Activations(mean, world.head(mean))).isfinite().all()
