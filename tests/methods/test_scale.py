import math

import pytest
import torch

from idness.core.types import Activations, Head
from idness.detectors.detector import score_many
from idness.detectors.registry import build
from idness.methods import EBO, Scale
from idness.metrics import auroc, fpr_at_id_recall, fpr_at_ood_recall


def slow_score(row, head, percent):
    """The paper's formula, word by word."""
    kept = len(row) - round(len(row) * percent / 100)
    ratio = sum(row) / sum(sorted(row, reverse=True)[:kept])
    scaled = torch.tensor([a * math.exp(ratio) for a in row], dtype=torch.double)
    return float((head.weight.double() @ scaled + head.bias.double()).logsumexp(0))


@pytest.mark.parametrize("percent", [0.0, 65.0, 85.0, 95.0])
def test_it_scores_as_the_paper_writes(world, percent):
    scores = Scale(percentile=percent).fit(world.head).score(world.test)
    for row, score in zip(world.test.features.tolist(), scores.tolist(), strict=True):
        assert score == pytest.approx(slow_score(row, world.head, percent), rel=1e-4)


def test_all_zero_features_score_as_the_bias_alone(world):
    zero = torch.zeros(1, world.head.width)
    acts = Activations(zero, world.head(zero))
    assert Scale().fit(world.head).score(acts).item() == pytest.approx(EBO().fit(world.head).score(acts).item())


@pytest.mark.shared
def test_the_papers_network_gives_the_papers_numbers(shared_data):
    from safetensors.torch import load_file

    folder = shared_data / "activations"
    test, ood = load_file(folder / "cifar10_test.safetensors"), load_file(folder / "isun.safetensors")
    head = Head(**load_file(folder / "head.safetensors"))
    inside = Activations(test["features"], test["logits"], test["labels"])
    outside = Activations(ood["features"], ood["logits"])
    expected = {  # AUROC, FPR at ID recall, FPR at OOD recall, in percent
        ("msp", None): (94.4901, 42.5322, 16.1400),
        ("mls", None): (98.0533, 10.1064, 7.2100),
        ("ebo", None): (98.1138, 9.5350, 7.0800),
        ("ash-s", 95): (98.8781, 5.1429, 5.1900),
        ("scale", 85): (98.3527, 8.0448, 6.2600),
        ("scale", 95): (99.2250, 3.5406, 3.7400),
    }
    detectors = [build(name, **({} if p is None else {"percentile": p})).fit(head) for name, p in expected]
    scores = zip(score_many(detectors, inside), score_many(detectors, outside), strict=True)
    for (id_scores, ood_scores), numbers in zip(scores, expected.values(), strict=True):
        ours = [100 * f(id_scores, ood_scores) for f in (auroc, fpr_at_id_recall, fpr_at_ood_recall)]
        assert ours == pytest.approx(numbers, abs=0.02)
    assert float((inside.logits.argmax(1) == inside.labels).double().mean()) == pytest.approx(0.9454, abs=1e-6)
