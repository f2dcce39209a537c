from __future__ import annotations

import numpy as np
import pytest
from scipy import special
from scipy.stats import norm, t

from idness import intervals, metrics
from idness.core.errors import InputError
from idness.intervals import compare_fpr, fpr_draws, fpr_intervals, mean_auroc_interval, ranks
from idness.metrics import FPRS, WITH_INTERVAL, auroc

EACH_FPR = pytest.mark.parametrize("name", FPRS)
WEIGHTS = (0.7, 0.2, 0.1)


def compared(name, first, second):
    return intervals.compare_auroc(*first, *second) if name == "auroc" else compare_fpr(name, first, second)


def covers(interval, truth):
    return interval.low <= truth <= interval.high


@pytest.mark.parametrize(("id_count", "ood_count"), [(150, 75), (20, 20), (20, 1000)])
@pytest.mark.parametrize("gap", [0.5, 2.0, 3.0])
def test_the_auroc_interval_covers_the_truth(gap, id_count, ood_count):
    rng = np.random.default_rng(0)
    truth = norm.cdf(gap / np.sqrt(2))
    pairs = [(rng.normal(gap, 1, id_count), rng.normal(0, 1, ood_count)) for _ in range(400)]
    assert np.mean([covers(intervals.auroc_interval(*pair), truth) for pair in pairs]) >= 0.92


@EACH_FPR
@pytest.mark.parametrize("count", [72, 100, 400])
def test_the_fpr_interval_covers_the_truth(name, count):
    rng, gap = np.random.default_rng(1), 2.0
    # Threshold at 95 % of one side, share of the other beyond it; by symmetry the same both ways.
    truth = norm.sf(norm.ppf(0.05) + gap)
    sizes = (count, 1000) if name == "fpr_at_id_recall" else (1000, count)
    sets = [(rng.normal(gap, 1, sizes[0]), rng.normal(0, 1, sizes[1])) for _ in range(300)]
    found = [fpr_intervals(name, ids, [oods])[-1] for ids, oods in sets]
    assert np.mean([covers(each, truth) for each in found]) >= 0.94
    assert all(covers(each, getattr(metrics, name)(*pair)) for each, pair in zip(found, sets, strict=True))
    if count == 400:  # and it is not wider than it needs to be
        low, high = np.quantile([getattr(metrics, name)(*pair) for pair in sets], [0.025, 0.975])
        assert np.mean([each.high - each.low for each in found]) < 1.3 * (high - low)


@EACH_FPR
def test_the_intervals_of_fprs_and_of_their_mean_cover_the_truths(name):
    rng, gaps = np.random.default_rng(13), (1.0, 2.0, 2.5)
    truths = [norm.sf(norm.ppf(0.05) + gap) for gap in gaps]
    sets = [(rng.normal(0, 1, 150), [rng.normal(-gap, 1, 400) for gap in gaps]) for _ in range(200)]
    found = [fpr_intervals(name, *each) for each in sets]
    for place, truth in enumerate([*truths, np.mean(truths)]):
        assert np.mean([covers(each[place], truth) for each in found]) >= 0.93
    assert np.mean([each[-1].high - each[-1].low for each in found]) < (0.35 if name == "fpr_at_id_recall" else 0.22)


def test_too_few_images_have_no_fpr_interval():
    rng = np.random.default_rng(2)
    for recall, level, needed in ((0.95, 0.95, 72), (0.9, 0.95, 36), (0.99, 0.9, 299), (0.1, 0.95, 36)):
        assert intervals.images_needed(recall, level) == needed
        assert max(recall, 1 - recall) ** needed <= (1 - level) / 2 < max(recall, 1 - recall) ** (needed - 1)
        for count, exists in ((needed - 1, False), (needed, True)):
            few, many = rng.normal(1, 1, count), rng.normal(0, 1, 500)
            [at_id, _] = fpr_intervals("fpr_at_id_recall", few, [many], recall, level)
            [kept, at_ood, mean] = fpr_intervals("fpr_at_ood_recall", many, [many, few], recall, level)
            assert [kept is None, mean is None] == [False, at_ood is None]
            paired = compare_fpr("fpr_at_id_recall", (few, many), (few, many), recall, level)
            other = compare_fpr("fpr_at_ood_recall", (many, few), (many, few), recall, level)
            assert [each is not None for each in (at_id, at_ood, paired, other)] == [exists] * 4


def test_perfect_order_has_an_honest_lower_end():
    low, high = intervals.auroc_interval([2.0] * 20, [1.0] * 50)
    assert high == 1.0
    assert mean_auroc_interval(ranks(np.full(20, 2.0), [np.zeros(30)] * 6)) == pytest.approx((low, 1.0))
    assert 0.8 < low < 0.9
    assert intervals.auroc_interval([1.0] * 20, [2.0] * 50) == pytest.approx((0.0, 1 - low))
    # Exact binomial bounds for "none of 50" and "all of 50", once the threshold is certain.
    never, always = (0.0, 1 - 0.025 ** (1 / 50)), (0.025 ** (1 / 50), 1.0)
    assert fpr_intervals("fpr_at_id_recall", [2.0] * 400, [[1.0] * 50])[0] == pytest.approx(never, abs=0.02)
    assert fpr_intervals("fpr_at_id_recall", [1.0] * 400, [[2.0] * 50])[0] == pytest.approx(always, abs=0.02)
    assert fpr_intervals("fpr_at_ood_recall", [1.0] * 50, [[2.0] * 400])[0] == pytest.approx(always, abs=0.02)


@pytest.mark.parametrize("name", WITH_INTERVAL)
def test_a_better_method_is_found_and_does_not_differ_from_itself(name):
    rng = np.random.default_rng(6)
    ids, oods = rng.normal(1.5, 1, 800), rng.normal(0, 1, 800)
    worse = ids + rng.normal(0, 2, 800), oods + rng.normal(0, 2, 800)
    assert compared(name, (ids, oods), (ids, oods)) == (0.0, 0.0, 0.0, 1.0)
    found = compared(name, (ids, oods), worse)
    assert found.p_value < 0.01
    assert found.low <= found.value <= found.high
    assert (found.low > 0) if name == "auroc" else (found.high < 0)


@EACH_FPR
def test_the_paired_bootstrap_is_two_sided_and_draws_the_same_images_for_both(name):
    rng, metric = np.random.default_rng(12), getattr(metrics, name)
    ids, oods = rng.normal(1.5, 1, 200), rng.normal(0, 1, 150)
    other_ids, other_oods = ids + rng.normal(0, 0.7, 200), oods + rng.normal(0, 0.7, 150)
    gaps = []
    for _ in range(1000):
        i, o = rng.integers(200, size=200), rng.integers(150, size=150)
        gaps.append(metric(ids[i], oods[o], 0.9) - metric(other_ids[i], other_oods[o], 0.9))
    found = compare_fpr(name, (ids, oods), (other_ids, other_oods), recall=0.9)
    share = min(np.mean(np.array(gaps) <= 0), np.mean(np.array(gaps) >= 0))
    assert found.p_value == pytest.approx(2 * share, abs=0.03)
    assert (found.low, found.high) == pytest.approx(np.quantile(gaps, [0.025, 0.975]), abs=0.02)


def test_the_p_value_is_where_the_interval_reaches_zero():
    rng = np.random.default_rng(10)
    ids, oods = rng.normal(1, 1, 400), rng.normal(0, 1, 200)
    noisy = ids + rng.normal(0, 0.4, len(ids)), oods + rng.normal(0, 0.4, len(oods))
    for pair in ((ids, oods, *noisy), (*noisy, ids, oods)):
        found = intervals.compare_auroc(*pair)
        assert 1e-6 < found.p_value < 0.5
        at = intervals.compare_auroc(*pair, level=1 - found.p_value)
        assert min(abs(at.low), abs(at.high)) == pytest.approx(0, abs=1e-9)


def test_the_mean_over_sets_weighs_them_as_asked():
    ids, oods = [1.0, 3.0], [np.array([0.0, 2.0]), np.array([2.0, 2.0, 4.0])]
    assert ranks(np.array(ids), oods).auroc == pytest.approx((3 / 4 + 2 / 6) / 2)
    assert ranks(np.array(ids), oods, (2, 3)).auroc == pytest.approx((2 * 3 / 4 + 3 * 2 / 6) / 5)
    with pytest.raises(InputError, match="at least one OOD set"):
        ranks(np.array(ids), [])


def test_unpaired_scores_are_refused():
    with pytest.raises(InputError, match=r"same images, got \[2, 1\] and \[1, 1\]"):
        intervals.compare_auroc([1.0, 2.0], [0.0], [1.0], [0.0])
    ids, oods = three_sets()
    with pytest.raises(InputError, match=r"same images, got \[30, 8, 20, 40\] and \[30, 8, 20\]"):
        intervals.mean_auroc_difference(ranks(ids, oods), ranks(ids, oods[:2]))


def test_runs_are_compared_by_welchs_test():
    """Against the textbook's formula."""
    first, second = np.array([0.91, 0.93, 0.90, 0.95]), np.array([0.88, 0.89, 0.89])
    parts = [side.var(ddof=1) / len(side) for side in (first, second)]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(first) - 1) + parts[1] ** 2 / (len(second) - 1))
    value, error = first.mean() - second.mean(), np.sqrt(sum(parts))
    reach = t.ppf(0.95, freedom) * error
    expected = (value, value - reach, value + reach, 2 * t.sf(value / error, freedom))
    assert intervals.compare_runs(first, second, level=0.9) == pytest.approx(expected)
    assert intervals.compare_runs([1.0, 1.0], [1.0, 1.0]) == (0.0, 0.0, 0.0, 1.0)
    assert intervals.compare_runs([2.0, 2.0], [1.0, 1.0]).p_value == 0.0


def three_sets(seed: int = 4) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    ids = rng.normal(1, 1, 30).round(1)
    return ids, [rng.normal(gap, 1, size).round(1) for gap, size in ((0, 8), (0.5, 20), (1, 40))]


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
    ids, oods = three_sets()
    value = mean(ids, oods)
    variance = jackknife_variance(mean, ids, oods) + 0.25 * ((value - 0.5) / len(ids)) ** 2
    for weight, ood in zip(WEIGHTS, oods, strict=True):
        variance += 0.25 * (weight * (auroc(ids, ood) - 0.5) / len(ood)) ** 2
    reach = 1.959964 * np.sqrt(variance) / (value * (1 - value))
    found = special.logit(mean_auroc_interval(ranks(ids, oods, [7, 2, 1])))
    assert found == pytest.approx(special.logit(value) + np.array([-reach, reach]), abs=1e-6)


def test_a_paired_difference_of_weighted_means_has_the_variance_of_the_jackknife() -> None:
    (ids, oods), rng = three_sets(), np.random.default_rng(5)
    other_ids, other_oods = ids + rng.normal(0, 1, len(ids)), [ood + rng.normal(0, 1, len(ood)) for ood in oods]
    found = intervals.mean_auroc_difference(ranks(ids, oods, WEIGHTS), ranks(other_ids, other_oods, WEIGHTS))
    gap = mean(ids, oods) - mean(other_ids, other_oods)
    # An image is left out of both methods' scores at once: pairs of scores, as complex numbers.
    pairs = ids + 1j * other_ids, [ood + 1j * other for ood, other in zip(oods, other_oods, strict=True)]
    variance = jackknife_variance(
        lambda i, o: mean(i.real, [each.real for each in o]) - mean(i.imag, [each.imag for each in o]), *pairs
    )
    assert found.value == pytest.approx(gap)
    assert (found.high - found.low) / 2 == pytest.approx(1.959964 * np.sqrt(variance), rel=1e-6)


@EACH_FPR
@pytest.mark.parametrize("recall", [0.02, 0.5, 0.95, 0.999])
@pytest.mark.parametrize("held", [intervals.BLOCK, 1000])
def test_bootstrap_draws_hold_at_any_recall_and_in_blocks(name, recall, held, monkeypatch):
    metric = getattr(metrics, name)
    monkeypatch.setattr(intervals, "BLOCK", held)
    rng = np.random.default_rng(8)
    for digits, sizes in ((0, (300, 80)), (6, (120, 350)), (6, (3, 1))):
        ids, ood = (rng.normal(gap, 1, size).round(digits) for gap, size in zip((1, 0), sizes, strict=True))
        draws = fpr_draws({"a": (ids, [ood])}, name, recall, draws=30, seed=2)["a"]
        again, block = np.random.default_rng(2), max(1, min(30, held // max(sizes)))
        for start in range(0, 30, block):
            rows = range(start, min(start + block, 30))
            picked = [again.integers(size, size=(len(rows), size)) for size in sizes]
            for draw, one, other in zip(rows, *picked, strict=True):
                assert draws[draw, 0] == pytest.approx(metric(ids[one], ood[other], recall), abs=1e-12)


@pytest.mark.parametrize("value", [-690.0, -37.0, -3.0, -1e-9, 0.0, 0.7, 9.0, 800.0])
def test_the_logistic_function_is_scipys(value):
    share = intervals.expit(value)
    assert share == pytest.approx(float(special.expit(value)), rel=1e-12, abs=0)
    if share < 1:
        assert intervals.logit(share) == pytest.approx(float(special.logit(share)), rel=1e-12, abs=1e-15)
