import pytest

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
