"""Means over OOD sets that share their ID images."""

from __future__ import annotations

import numpy as np
import pytest

from idness.core.errors import InputError
from idness.intervals import bootstrap, fpr_draws, mean_auroc_difference, mean_auroc_interval, mean_fpr_interval, ranks
from idness.metrics import auroc, fpr_at_id_recall, fpr_at_ood_recall

WEIGHTS = (0.7, 0.2, 0.1)


def worlds(seed: int = 4) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return rng.normal(1, 1, 30).round(1), [
        rng.normal(gap, 1, size).round(1) for gap, size in ((0, 8), (0.5, 20), (1, 40))
    ]


def jackknife_variance(value, ids: np.ndarray, oods: list[np.ndarray]) -> float:  # type: ignore[no-untyped-def]
    """The variance of a statistic of several samples, by leaving out one image at a time."""
    samples, total = [ids, *oods], 0.0
    for place, sample in enumerate(samples):
        left = []
        for index in range(len(sample)):
            parts = [*samples[:place], np.delete(sample, index), *samples[place + 1 :]]
            left.append(value(parts[0], parts[1:]))
        total += (len(sample) - 1) ** 2 / len(sample) * np.var(left, ddof=1)
    return total


def mean(ids: np.ndarray, oods: list[np.ndarray]) -> float:
    return sum(weight * auroc(ids, ood) for weight, ood in zip(WEIGHTS, oods, strict=True))


def test_the_interval_of_a_weighted_mean_has_the_variance_of_the_jackknife() -> None:
    ids, oods = worlds()
    value = mean(ids, oods)
    variance = jackknife_variance(mean, ids, oods) + 0.25 * ((value - 0.5) / len(ids)) ** 2
    for weight, ood in zip(WEIGHTS, oods, strict=True):
        variance += 0.25 * (weight * (auroc(ids, ood) - 0.5) / len(ood)) ** 2
    reach = 1.959964 * np.sqrt(variance) / (value * (1 - value))
    low, high = mean_auroc_interval(ranks(ids, oods, [7, 2, 1]))
    assert np.log(np.array([low, high]) / (1 - np.array([low, high]))) == pytest.approx(
        np.log(value / (1 - value)) + np.array([-reach, reach]), abs=1e-6
    )


def test_a_paired_difference_of_weighted_means_has_the_variance_of_the_jackknife() -> None:
    (ids, oods), rng = worlds(), np.random.default_rng(5)
    other_ids, other_oods = ids + rng.normal(0, 1, len(ids)), [ood + rng.normal(0, 1, len(ood)) for ood in oods]
    found = mean_auroc_difference(ranks(ids, oods, WEIGHTS), ranks(other_ids, other_oods, WEIGHTS))
    gap = mean(ids, oods) - mean(other_ids, other_oods)
    # An image is left out of both methods' scores at once: pairs of scores, as complex numbers.
    pairs = ids + 1j * other_ids, [ood + 1j * other for ood, other in zip(oods, other_oods, strict=True)]
    variance = jackknife_variance(
        lambda i, o: mean(i.real, [each.real for each in o]) - mean(i.imag, [each.imag for each in o]), *pairs
    )
    assert found.value == pytest.approx(gap)
    assert (found.high - found.low) / 2 == pytest.approx(1.959964 * np.sqrt(variance), rel=1e-6)


def test_the_interval_of_a_mean_over_sets_covers_what_new_images_give() -> None:
    # Both sets share their ID images, so that treating them as independent would make the interval too short.
    rng = np.random.default_rng(0)
    truth = auroc(rng.normal(1, 1, 200_000), rng.normal(0, 1, 200_000))
    hits = 0
    for _ in range(300):
        ids, oods = rng.normal(1, 1, 60), [rng.normal(0, 1, 400) for _ in range(3)]
        low, high = mean_auroc_interval(ranks(ids, oods))
        hits += low <= truth <= high
    assert 0.91 <= hits / 300 <= 0.985


@pytest.mark.parametrize(
    ("metric", "function"), [("fpr_at_id_recall", fpr_at_id_recall), ("fpr_at_ood_recall", fpr_at_ood_recall)]
)
def test_bootstrap_draws_are_the_metric_of_the_drawn_images(metric: str, function: object) -> None:
    rng = np.random.default_rng(3)
    ids, oods = (
        np.round(rng.normal(1, 1, 40), 1),
        [np.round(rng.normal(0, 1, 30), 1), np.round(rng.normal(0, 2, 25), 1)],
    )
    draws = fpr_draws({"a": (ids, oods)}, metric, 0.9, draws=20, seed=5)["a"]  # type: ignore[arg-type]
    again = np.random.default_rng(5)
    picked = [again.integers(size, size=(20, size)) for size in (40, 30, 25)]
    for draw in range(20):
        for column, ood in enumerate(oods):
            expected = function(ids[picked[0][draw]], ood[picked[1 + column][draw]], 0.9)  # type: ignore[operator]
            assert draws[draw, column] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("metric", "function"), [("fpr_at_id_recall", fpr_at_id_recall), ("fpr_at_ood_recall", fpr_at_ood_recall)]
)
@pytest.mark.parametrize("recall", [0.02, 0.5, 0.95, 0.999])
@pytest.mark.parametrize("held", [bootstrap._HELD, 1000])
def test_bootstrap_draws_hold_at_any_recall_and_in_blocks(
    metric: str, function: object, recall: float, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "_HELD", held)
    rng = np.random.default_rng(8)
    for digits, sizes in ((0, (300, 80)), (6, (120, 350)), (6, (3, 1))):
        ids, ood = (rng.normal(gap, 1, size).round(digits) for gap, size in zip((1, 0), sizes, strict=True))
        draws = fpr_draws({"a": (ids, [ood])}, metric, recall, draws=30, seed=2)["a"]  # type: ignore[arg-type]
        again, block = np.random.default_rng(2), max(1, min(30, held // max(sizes)))
        for start in range(0, 30, block):
            rows = range(start, min(start + block, 30))
            picked = [again.integers(size, size=(len(rows), size)) for size in sizes]
            for draw, one, other in zip(rows, *picked, strict=True):
                assert draws[draw, 0] == pytest.approx(function(ids[one], ood[other], recall), abs=1e-12)  # type: ignore[operator]


def test_a_draw_that_lies_far_off_is_read_all_the_same() -> None:
    # All images of a draw are the highest one, or the lowest: no chance does that.
    values = np.arange(400.0)
    side, counts = bootstrap._Side(values, np.arange(400)), np.ones((400, 3), np.int32)
    counts[:, :2] = 0
    counts[-1, 0] = counts[0, 1] = 400
    assert side.at_rank(counts, 20).tolist() == [399, 0, 20]
    assert side.at_rank(counts, 399).tolist() == [399, 0, 399]


def test_quantiles_are_those_of_numpy() -> None:
    rng = np.random.default_rng(7)
    for count in (1, 2, 7, 41, 2000):
        for tail in (0.0, 0.005, 0.025, 0.1, 0.37, 0.5):
            draws = rng.normal(0, 1, count)
            assert bootstrap._quantiles(draws, tail) == pytest.approx(
                tuple(np.quantile(draws, (tail, 1 - tail))), abs=1e-15
            )


@pytest.mark.parametrize("digits", [0, 1, 9])
def test_ranks_are_shares_of_the_other_side(digits: int) -> None:
    rng = np.random.default_rng(digits)
    ids, oods = rng.normal(1, 1, 37).round(digits), [rng.normal(0, 1, size).round(digits) for size in (1, 20, 90)]
    wins = [(ids[:, None] > ood).astype(float) + (ids[:, None] == ood) / 2 for ood in oods]
    found = ranks(ids, oods, WEIGHTS)
    assert found.by_id == pytest.approx(
        sum(weight * won.mean(axis=1) for weight, won in zip(WEIGHTS, wins, strict=True)), abs=1e-12
    )
    for share, won in zip(found.by_ood, wins, strict=True):
        assert share == pytest.approx(won.mean(axis=0), abs=1e-12)


@pytest.mark.parametrize("metric", ["fpr_at_id_recall", "fpr_at_ood_recall"])
def test_the_interval_of_a_mean_fpr_is_that_of_drawn_images(metric: str) -> None:
    """Of many images, on which the bootstrap can be trusted."""
    rng = np.random.default_rng(6)
    ids, oods = rng.normal(1, 1, 1500), [rng.normal(0, 1, 1000), rng.normal(1, 1, 1000)]
    draws = fpr_draws({"a": (ids, oods)}, metric, 0.8, draws=2000, seed=9)["a"].mean(axis=1)  # type: ignore[arg-type]
    found = mean_fpr_interval(metric, ids, oods, 0.8, 0.9)  # type: ignore[arg-type]
    assert found == pytest.approx(np.quantile(draws, [0.05, 0.95]), abs=0.006)


def test_perfect_order_in_many_sets_has_an_honest_lower_end() -> None:
    # Six shares of a sixth add up to a little less than one.
    low, high = mean_auroc_interval(ranks(np.full(20, 2.0), [np.zeros(30)] * 6))
    assert (low, high) == pytest.approx((0.025 ** (1 / 20), 1.0))


def test_other_sets_or_weights_are_refused() -> None:
    ids, oods = worlds()
    with pytest.raises(InputError, match="same OOD images, got 40 and 0"):
        mean_auroc_difference(ranks(ids, oods), ranks(ids, oods[:2]))
    with pytest.raises(InputError, match="weigh the same"):
        mean_auroc_difference(ranks(ids, oods), ranks(ids, oods, WEIGHTS))
