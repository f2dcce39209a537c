from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from idness.core.errors import InputError
from idness.guard.conformal import Calibration, calibration_images, false_alarm_rate

ZERO = torch.zeros


def plain_p(calibration: list[float], score: float) -> float:
    return (1 + sum(value <= score for value in calibration)) / (len(calibration) + 1)


@given(st.data())
def test_p_values_match_the_formula(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 3)), min_size=1, max_size=60))
    scores, labels = torch.tensor([float(s) for s, _ in rows]), torch.tensor([c for _, c in rows])
    for made in (Calibration.by_class(scores, labels, 4), Calibration.pooled(scores)):
        for group in range(4):
            own = [float(s) for s, c in rows if c == group or not made.per_class]
            query = torch.tensor([-6.0, -1.0, 0.5, 5.0])
            found = made.p_values(query, torch.full((4,), group))
            assert found.tolist() == pytest.approx([plain_p(own, float(q)) for q in query], abs=1e-7)


@pytest.mark.parametrize("recall", [0.5, 0.8, 0.9, 0.95, 0.975, 0.99])
@pytest.mark.parametrize("extra", [0, 1, 7, 200])
def test_threshold_is_where_the_p_value_crosses(recall: float, extra: int) -> None:
    size = calibration_images(recall) + extra
    made = Calibration.pooled(torch.randn(size, generator=torch.Generator().manual_seed(size)).round(decimals=1))
    queries = torch.cat([made.scores - 0.05, made.scores, made.scores + 0.05])
    p_values = made.p_values(queries, ZERO(len(queries), dtype=torch.long)).double()
    by_p = p_values <= false_alarm_rate(recall) * (1 + 1e-6)
    assert torch.equal(queries < made.thresholds(recall)[0], by_p)
    assert by_p.any()


@pytest.mark.parametrize(
    ("recall", "least"), [(0.95, 19), (0.9, 9), (0.99, 99), (0.999, 999), (2 / 3, 2), (0.5, 1), (0.3, 1)]
)
def test_too_few_images_are_refused_with_the_number_needed(recall: float, least: int) -> None:
    assert calibration_images(recall) == least
    Calibration.pooled(torch.arange(float(least))).thresholds(recall)
    if least > 1:
        with pytest.raises(InputError, match=f"at least {least} in-distribution images, got {least - 1}"):
            Calibration.pooled(torch.arange(float(least - 1))).thresholds(recall)


@pytest.mark.parametrize(("size", "rank"), [(19, 1), (38, 1), (39, 2), (59, 3), (98, 4), (99, 5), (200, 10)])
def test_threshold_at_recall_95_is_the_order_statistic(size: int, rank: int) -> None:
    made = Calibration.pooled(torch.arange(1.0, size + 1))
    assert float(made.thresholds(0.95)[0]) == rank
    low, high = made.spread(0.95)
    assert low < rank / (size + 1) < high
    two = Calibration.by_class(torch.arange(size + 400.0), torch.tensor([0] * size + [1] * 400), 2)
    assert two.spread(0.95) == made.spread(0.95)  # that of the smaller class


@pytest.mark.parametrize(("size", "recall"), [(38, 0.95), (98, 0.95), (17, 0.9), (30, 0.8)])
def test_spread_is_the_interval_of_the_order_statistic(size: int, recall: float) -> None:
    """The false-alarm rate is the position of the threshold among uniform scores: compare its quantiles by simulation."""
    scores = np.sort(np.random.default_rng(size).random((20_000, size)), axis=1)
    place = int(Calibration.pooled(torch.arange(float(size))).thresholds(recall)[0])
    found = Calibration.pooled(torch.arange(float(size))).spread(recall)
    assert found == pytest.approx(np.quantile(scores[:, place], (0.025, 0.975)), abs=0.006)


@pytest.mark.fault(
    "ties, 5 calibration images, heavy tails: 200 calibrations of each",
    does="the fraction of ID images that is flagged stays within the promise on average",
)
@pytest.mark.parametrize(
    ("size", "recall", "draw"),
    [
        (60, 0.9, lambda count, rng: rng.integers(0, 4, count).astype(float)),
        (5, 0.8, lambda count, rng: rng.normal(size=count)),
        (60, 0.9, lambda count, rng: rng.standard_cauchy(count)),
    ],
)
def test_false_alarm_rate_over_200_calibrations_is_at_most_the_promised_one(
    size: int, recall: float, draw: Callable[[int, np.random.Generator], NDArray[np.float64]]
) -> None:
    rng, rates = np.random.default_rng(3), []
    for _ in range(200):
        made = Calibration.pooled(torch.from_numpy(draw(size, rng)))
        rates.append(np.mean(draw(400, rng).astype(np.float32) < float(made.thresholds(recall)[0])))
    assert np.mean(rates) <= 1 - recall + 3 * np.std(rates) / 200**0.5
