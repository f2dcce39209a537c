from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logit

from idness.benchmark.group_metrics import group_metrics, set_metrics
from idness.benchmark.results import METRICS
from idness.metrics import all_metrics


def draw(
    rng: np.random.Generator, n: int = 150, sizes: tuple[int, ...] = (60, 100)
) -> tuple[np.ndarray, list[np.ndarray]]:
    return rng.normal(1.5, 1, n), [rng.normal(0.3 * place, 1, size) for place, size in enumerate(sizes)]


def test_means_are_plain_and_sets_have_their_own_values() -> None:
    known, unknown = draw(np.random.default_rng(0))
    parts = [set_metrics(known, scores) for scores in unknown]
    group = group_metrics(known, unknown, parts)
    for name in METRICS:
        values = [all_metrics(known, scores)[name] for scores in unknown]
        assert [getattr(part, name) for part in parts] == values
        assert getattr(group, name) == pytest.approx(np.mean(values), abs=1e-15)
    for name, (low, high) in group.intervals.items():
        assert 0 <= low <= getattr(group, name) <= high <= 1
    single = group_metrics(known, unknown[:1], parts[:1])
    assert single.intervals == parts[0].intervals


@pytest.mark.parametrize("name", ["auroc", "fpr_at_id_recall", "fpr_at_ood_recall"])
def test_intervals_of_means_cover_the_truth(name: str) -> None:
    rng = np.random.default_rng(1)
    known, unknown = draw(rng, 200_000, (200_000, 200_000))
    truth = np.mean([all_metrics(known, scores)[name] for scores in unknown])
    hits, runs = 0, 200
    for _ in range(runs):
        known, unknown = draw(rng)
        group = group_metrics(known, unknown, [set_metrics(known, scores) for scores in unknown])
        low, high = group.intervals[name]
        hits += low <= truth <= high
    assert hits / runs > 0.88  # 95 % nominal; bootstrap intervals of an order statistic fall a little short of it
    assert hits / runs < 1.0


def test_the_interval_of_a_mean_over_many_sets_is_as_wide_as_the_mean_scatters() -> None:
    """Many known images and four small sets: nearly all of the scatter comes from the sets, whose errors average out."""
    rng = np.random.default_rng(3)
    values, widths = [], []
    for _ in range(150):
        known, unknown = draw(rng, 2000, (30, 30, 30, 30))
        group = group_metrics(known, unknown, [set_metrics(known, scores) for scores in unknown])
        low, high = logit(group.intervals["auroc"])
        values.append(logit(group.auroc))
        widths.append(high - low)
    assert np.mean(widths) / (2 * 1.96) == pytest.approx(np.std(values), rel=0.2)


def test_sharing_the_known_images_widens_the_interval() -> None:
    rng = np.random.default_rng(2)
    known, _ = draw(rng, 40)
    copies = [rng.normal(0, 1, 5000) for _ in range(6)]
    low, high = group_metrics(known, copies, [set_metrics(known, scores) for scores in copies]).intervals["auroc"]
    one = set_metrics(known, copies[0]).intervals["auroc"]
    # The 40 known images are the weak point, and more unknown sets do not mend that.
    assert (high - low) == pytest.approx(one[1] - one[0], rel=0.1)


def test_perfect_separation_has_a_finite_interval() -> None:
    known, unknown = np.linspace(1, 2, 50), [np.linspace(-1, 0, 30), np.linspace(-3, -2, 40)]
    group = group_metrics(known, unknown, [set_metrics(known, scores) for scores in unknown])
    low, high = group.intervals["auroc"]
    assert 0.8 < low < 1
    assert high == 1
