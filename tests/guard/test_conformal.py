from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from idness.core.errors import InputError, OptionError
from idness.guard.conformal import Calibration, false_alarm_rate, needed

ZERO = torch.zeros


def plain_p(calibration: list[float], score: float) -> float:
    return (1 + sum(value <= score for value in calibration)) / (len(calibration) + 1)


@given(
    st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=40),
    st.lists(st.integers(-7, 7).map(float), min_size=1),
)
def test_p_values_are_the_formula(calibration: list[float], scores: list[float]) -> None:
    made = Calibration.pooled(torch.tensor(calibration))
    found = made.p_values(torch.tensor(scores), ZERO(len(scores), dtype=torch.long))
    assert found.tolist() == pytest.approx([plain_p(calibration, score) for score in scores], abs=1e-7)


@given(st.data())
def test_p_values_by_class_are_the_formula_within_the_class(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 3)), min_size=1, max_size=60))
    scores, labels = torch.tensor([float(s) for s, _ in rows]), torch.tensor([c for _, c in rows])
    made = Calibration.by_class(scores, labels, 4)
    for group in range(4):
        own = [float(s) for s, c in rows if c == group]
        query = torch.tensor([-6.0, -1.0, 0.5, 5.0])
        found = made.p_values(query, torch.full((4,), group))
        assert found.tolist() == pytest.approx([plain_p(own, float(q)) for q in query], abs=1e-7)


@pytest.mark.parametrize("recall", [0.5, 0.8, 0.9, 0.95, 0.975, 0.99])
@pytest.mark.parametrize("extra", [0, 1, 7, 200])
def test_threshold_is_where_the_p_value_crosses(recall: float, extra: int) -> None:
    size = needed(recall) + extra
    made = Calibration.pooled(torch.randn(size, generator=torch.Generator().manual_seed(size)).round(decimals=1))
    queries = torch.cat([made.scores - 0.05, made.scores, made.scores + 0.05])
    p_values = made.p_values(queries, ZERO(len(queries), dtype=torch.long)).double()
    by_p = p_values <= false_alarm_rate(recall) * (1 + 1e-6)
    assert torch.equal(queries < made.thresholds(recall)[0], by_p)
    assert by_p.any()


@pytest.mark.parametrize("recall", [0.5, 0.3])
def test_one_image_is_enough_where_half_may_be_flagged(recall: float) -> None:
    assert needed(recall) == 1
    assert Calibration.pooled(torch.tensor([7.0])).thresholds(recall).tolist() == [7.0]


@pytest.mark.parametrize(("recall", "least"), [(0.95, 19), (0.9, 9), (0.99, 99), (0.999, 999), (2 / 3, 2)])
def test_fewer_images_than_the_promise_needs_are_refused_with_the_number(recall: float, least: int) -> None:
    assert needed(recall) == least
    Calibration.pooled(torch.arange(float(least))).thresholds(recall)
    with pytest.raises(InputError, match=f"at least {least} in-distribution images, got {least - 1}"):
        Calibration.pooled(torch.arange(float(least - 1))).thresholds(recall)


def test_a_class_with_too_few_images_is_named() -> None:
    made = Calibration.by_class(torch.arange(25.0), torch.tensor([0] * 20 + [1] * 5), 2)
    with pytest.raises(InputError, match=r"predicted as each class, got too few in 1 classes \(cat: 5\)"):
        made.thresholds(0.95, ["dog", "cat"])


@pytest.mark.parametrize("size", [20, 50, 100, 1_000, 10_000])
@pytest.mark.parametrize("recall", [0.95, 0.9])
def test_false_alarms_stay_within_the_promise(size: int, recall: float) -> None:
    """Simulate: the mean false-alarm rate over calibration sets is at most 1 - recall, within its binomial error."""
    rng = np.random.default_rng(size)
    alpha, rounds, new = false_alarm_rate(recall), 400, 50
    flagged = 0
    for _ in range(rounds):
        # Rounded, so that scores are tied; the promise holds for ties too.
        calibration = torch.from_numpy(rng.gamma(2.0, size=size).round(3)).float()
        scores = torch.from_numpy(rng.gamma(2.0, size=new).round(3)).float()
        flagged += int((scores < Calibration.pooled(calibration).thresholds(recall)[0]).sum())
    # Images that share a calibration set are not independent: their variance has the Beta's part too.
    rank = math.floor(alpha * (size + 1) + 1e-9)
    mean = rank / (size + 1)
    beta = mean * (1 - mean) / (size + 2)
    error = math.sqrt((mean * (1 - mean) / new + beta) / rounds)
    assert flagged / (rounds * new) <= alpha + 3 * error
    assert flagged / (rounds * new) >= mean - 4 * error - 0.01  # and is no emptier promise than n allows


@pytest.mark.parametrize(("size", "rank"), [(19, 1), (38, 1), (39, 2), (59, 3), (98, 4), (99, 5), (200, 10)])
def test_at_95_percent_every_twentieth_of_all_and_one_more_is_below(size: int, rank: int) -> None:
    made = Calibration.pooled(torch.arange(1.0, size + 1))
    assert float(made.thresholds(0.95)[0]) == rank
    low, high = made.spread(0.95)
    assert low < rank / (size + 1) < high


@pytest.mark.parametrize(("size", "recall"), [(38, 0.95), (98, 0.95), (17, 0.9), (30, 0.8)])
def test_spread_is_that_of_the_order_statistic(size: int, recall: float) -> None:
    """The false-alarm rate is where the threshold lies among uniform scores: its quantiles, by brute force."""
    scores = np.sort(np.random.default_rng(size).random((20_000, size)), axis=1)
    place = int(Calibration.pooled(torch.arange(float(size))).thresholds(recall)[0])
    found = Calibration.pooled(torch.arange(float(size))).spread(recall)
    assert found == pytest.approx(np.quantile(scores[:, place], (0.025, 0.975)), abs=0.006)


def test_spread_is_what_simulation_gives() -> None:
    rng = np.random.default_rng(0)
    low, high = Calibration.pooled(torch.arange(200.0)).spread(0.95)
    rates = [float(Calibration.pooled(torch.from_numpy(rng.random(200))).thresholds(0.95)[0]) for _ in range(2_000)]
    inside = np.mean([low <= rate <= high for rate in rates])
    assert 0.93 < inside < 0.97


def test_wrong_rates_and_scores_are_refused() -> None:
    for wrong in (0.0, 1.0, 95, -0.1):
        with pytest.raises(OptionError, match="recall must be in"):
            Calibration.pooled(torch.arange(100.0)).thresholds(wrong)
    with pytest.raises(InputError, match="finite"):
        Calibration.pooled(torch.tensor([1.0, float("nan")]))


@pytest.mark.fault(
    "ties, 5 calibration images, a threshold per class, heavy tails: 200 calibrations of each",
    does="the share of ID images that is flagged stays within the promise on average",
)
@pytest.mark.parametrize("kind", ["ties", "five images", "per class", "heavy tails"])
def test_the_promise_holds_over_200_calibrations(kind: str) -> None:
    rng = torch.Generator().manual_seed(3)
    size, fresh, recall = (5, 400, 0.8) if kind == "five images" else (60, 400, 0.9)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(0, 2, (count,), generator=rng)
        if kind == "ties":
            return torch.randint(0, 4, (count,), generator=rng).float(), labels
        if kind == "heavy tails":
            return torch.empty(count).cauchy_(generator=rng), labels
        return torch.randn(count, generator=rng) + 5 * labels, labels

    rates: list[list[float]] = [[], []]
    for _ in range(200):
        known, groups = draw(size)
        new, news = draw(fresh)
        by_class = kind == "per class"
        made = Calibration.by_class(known, groups, 2) if by_class else Calibration.pooled(known)
        flagged = new < made.thresholds(recall)[made.group(news)]
        assert torch.equal(flagged, made.p_values(new, news).double() <= (1 - recall) * (1 + 1e-6))
        for group in range(2) if by_class else (0,):
            rates[group].append(float(flagged[news == group].float().mean() if by_class else flagged.float().mean()))
    for found in rates[: 2 if kind == "per class" else 1]:
        spread = torch.tensor(found).std() / 200**0.5
        assert torch.tensor(found).mean() <= (1 - recall) + 3 * spread
