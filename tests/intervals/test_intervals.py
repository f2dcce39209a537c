from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm, t

from idness import intervals, metrics
from idness.core.errors import InputError
from idness.intervals import mean_auroc_difference, mean_fpr_interval, ranks


def draw(rng, count=150, gap=1.0):
    return rng.normal(gap, 1, count), rng.normal(0, 1, count // 2)


def covers(interval, truth):
    return interval.low <= truth <= interval.high


@pytest.mark.parametrize(("id_count", "ood_count"), [(150, 75), (20, 20), (20, 1000)])
@pytest.mark.parametrize("gap", [0.5, 2.0, 3.0])
def test_the_auroc_interval_covers_the_truth(gap, id_count, ood_count):
    rng = np.random.default_rng(0)
    truth = norm.cdf(gap / np.sqrt(2))
    pairs = [(rng.normal(gap, 1, id_count), rng.normal(0, 1, ood_count)) for _ in range(400)]
    assert np.mean([covers(intervals.auroc_interval(*pair), truth) for pair in pairs]) >= 0.92


@pytest.mark.parametrize("name", ["fpr_at_id_recall", "fpr_at_ood_recall"])
@pytest.mark.parametrize("count", [72, 100, 400])
def test_the_fpr_interval_covers_the_truth(name, count):
    """The threshold rests on few images of one side, the count on many of the other."""
    rng, gap = np.random.default_rng(1), 2.0
    # Threshold at 95 % of one side, share of the other beyond it; by symmetry the same both ways.
    truth = norm.sf(norm.ppf(0.05) + gap)
    sizes = (count, 1000) if name == "fpr_at_id_recall" else (1000, count)
    sets = [(rng.normal(gap, 1, sizes[0]), rng.normal(0, 1, sizes[1])) for _ in range(300)]
    found = [getattr(intervals, f"{name}_interval")(*pair) for pair in sets]
    assert np.mean([covers(each, truth) for each in found]) >= 0.94
    assert all(covers(each, getattr(metrics, name)(*pair)) for each, pair in zip(found, sets, strict=True))
    if count == 400:  # and it is not wider than it needs to be
        values = [getattr(metrics, name)(*pair) for pair in sets]
        assert np.mean([each.high - each.low for each in found]) < 1.3 * np.subtract(
            *np.quantile(values, [0.975, 0.025])
        )


@pytest.mark.parametrize("name", ["fpr_at_id_recall", "fpr_at_ood_recall"])
def test_the_interval_of_a_mean_fpr_covers_the_truth(name):
    rng, gaps = np.random.default_rng(13), (1.0, 2.0, 2.5)
    truth = np.mean([norm.sf(norm.ppf(0.05) + gap) for gap in gaps])
    found = [
        mean_fpr_interval(name, rng.normal(0, 1, 150), [rng.normal(-gap, 1, 400) for gap in gaps]) for _ in range(200)
    ]
    assert np.mean([covers(each, truth) for each in found]) >= 0.93
    assert np.mean([each.high - each.low for each in found]) < (0.35 if name == "fpr_at_id_recall" else 0.22)


def test_too_few_images_have_no_fpr_interval():
    """Not even the most extreme of fewer images bounds the true threshold as often as the level says."""
    rng = np.random.default_rng(2)
    for recall, level, needed in ((0.95, 0.95, 72), (0.9, 0.95, 36), (0.99, 0.9, 299), (0.1, 0.95, 36)):
        assert intervals.images_needed(recall, level) == needed
        assert max(recall, 1 - recall) ** needed <= (1 - level) / 2 < max(recall, 1 - recall) ** (needed - 1)
        for count, exists in ((needed - 1, False), (needed, True)):
            few, many = rng.normal(1, 1, count), rng.normal(0, 1, 500)
            at_id = intervals.fpr_at_id_recall_interval(few, many, recall, level)
            at_ood = intervals.fpr_at_ood_recall_interval(many, few, recall, level)
            paired = intervals.compare_fpr_at_id_recall(few, many, few, many, recall, level)
            other = intervals.compare_fpr_at_ood_recall(many, few, many, few, recall, level)
            assert [each is not None for each in (at_id, at_ood, paired, other)] == [exists] * 4


def test_delongs_variance_is_that_of_the_definition():
    """Against the double loop over all pairs."""
    rng = np.random.default_rng(3)
    ids, oods = rng.normal(1, 1, 40).round(1), rng.normal(0, 1, 30).round(1)
    psi = np.array([[1.0 if x > y else 0.5 if x == y else 0.0 for y in oods] for x in ids])
    variance = psi.mean(1).var(ddof=1) / len(ids) + psi.mean(0).var(ddof=1) / len(oods)
    auroc = psi.mean()
    variance += 0.25 * (auroc - 0.5) ** 2 * (1 / len(ids) ** 2 + 1 / len(oods) ** 2)  # a quarter of an image at chance
    reach = 1.959964 * np.sqrt(variance) / (auroc * (1 - auroc))
    expected = 1 / (1 + np.exp(-(np.log(auroc / (1 - auroc)) + np.array([-reach, reach]))))
    assert list(intervals.auroc_interval(ids, oods)) == pytest.approx(list(expected), abs=1e-6)


def test_perfect_order_has_an_honest_lower_end():
    low, high = intervals.auroc_interval([2.0] * 20, [1.0] * 50)
    assert high == 1.0
    assert 0.8 < low < 0.9
    assert intervals.auroc_interval([1.0] * 20, [2.0] * 50) == pytest.approx((0.0, 1 - low))
    # Exact binomial bounds for "none of 50" and "all of 50", once the threshold is certain.
    never, always = (0.0, 1 - 0.025 ** (1 / 50)), (0.025 ** (1 / 50), 1.0)
    assert intervals.fpr_at_id_recall_interval([2.0] * 400, [1.0] * 50) == pytest.approx(never, abs=0.02)
    assert intervals.fpr_at_id_recall_interval([1.0] * 400, [2.0] * 50) == pytest.approx(always, abs=0.02)
    assert intervals.fpr_at_ood_recall_interval([1.0] * 50, [2.0] * 400) == pytest.approx(always, abs=0.02)


def test_more_images_make_shorter_intervals():
    rng = np.random.default_rng(4)
    few, many = (intervals.auroc_interval(*draw(rng, count)) for count in (50, 5000))
    assert many.high - many.low < (few.high - few.low) / 5


def test_equal_methods_are_found_different_as_rarely_as_the_level_says():
    rng = np.random.default_rng(5)
    false_alarms = 0
    for _ in range(400):
        ids, oods = draw(rng)
        noise = [part + rng.normal(0, 0.7, len(part)) for part in (ids, oods, ids, oods)]
        false_alarms += intervals.compare_auroc(*noise).p_value < 0.05
    assert false_alarms / 400 < 0.09


@pytest.mark.parametrize("name", ["compare_auroc", "compare_fpr_at_id_recall", "compare_fpr_at_ood_recall"])
def test_a_better_method_is_found(name):
    rng = np.random.default_rng(6)
    ids, oods = rng.normal(1.5, 1, 800), rng.normal(0, 1, 800)
    worse = ids + rng.normal(0, 2, 800), oods + rng.normal(0, 2, 800)
    found = getattr(intervals, name)(ids, oods, *worse)
    assert found.p_value < 0.01
    assert found.low <= found.value <= found.high
    assert (found.low > 0) if name == "compare_auroc" else (found.high < 0)


@pytest.mark.parametrize("name", ["fpr_at_id_recall", "fpr_at_ood_recall"])
def test_the_paired_bootstrap_is_two_sided_and_draws_the_same_images_for_both(name):
    """Against a bootstrap that draws one sample after another."""
    rng, metric = np.random.default_rng(12), getattr(metrics, name)
    ids, oods = rng.normal(1.5, 1, 200), rng.normal(0, 1, 150)
    other_ids, other_oods = ids + rng.normal(0, 0.7, 200), oods + rng.normal(0, 0.7, 150)
    gaps = []
    for _ in range(1000):
        i, o = rng.integers(200, size=200), rng.integers(150, size=150)
        gaps.append(metric(ids[i], oods[o], 0.9) - metric(other_ids[i], other_oods[o], 0.9))
    found = getattr(intervals, f"compare_{name}")(ids, oods, other_ids, other_oods, recall=0.9)
    share = min(np.mean(np.array(gaps) <= 0), np.mean(np.array(gaps) >= 0))
    assert found.p_value == pytest.approx(2 * share, abs=0.03)
    assert (found.low, found.high) == pytest.approx(np.quantile(gaps, [0.025, 0.975]), abs=0.02)


def test_pairing_is_sharper_than_not_pairing():
    rng = np.random.default_rng(7)
    ids, oods = draw(rng, 400)
    other = ids + rng.normal(0, 0.1, len(ids)), oods + rng.normal(0, 0.1, len(oods))
    paired = intervals.compare_auroc(ids, oods, *other)
    alone = intervals.auroc_interval(ids, oods)
    assert paired.high - paired.low < (alone.high - alone.low) / 3


def test_the_p_value_is_where_the_interval_reaches_zero():
    """Of two sides: an interval of level 1 - p ends at zero."""
    rng = np.random.default_rng(10)
    ids, oods = draw(rng, 400)
    noisy = ids + rng.normal(0, 0.4, len(ids)), oods + rng.normal(0, 0.4, len(oods))
    for pair in ((ids, oods, *noisy), (*noisy, ids, oods)):
        found = intervals.compare_auroc(*pair)
        assert 1e-6 < found.p_value < 0.5
        at = intervals.compare_auroc(*pair, level=1 - found.p_value)
        assert min(abs(at.low), abs(at.high)) == pytest.approx(0, abs=1e-9)


def test_a_method_does_not_differ_from_itself():
    rng = np.random.default_rng(8)
    ids, oods = draw(rng)
    for name in ("compare_auroc", "compare_fpr_at_id_recall", "compare_fpr_at_ood_recall"):
        assert getattr(intervals, name)(ids, oods, ids, oods) == (0.0, 0.0, 0.0, 1.0)


def test_one_image_a_side_gives_a_wide_interval():
    low, high = intervals.auroc_interval([1.0], [0.0])
    assert low < 0.05
    assert high == 1.0


@pytest.mark.parametrize("weights", [None, (1.0, 2.0, 3.0, 4.0)])
def test_the_paired_difference_of_means_over_sets_is_as_sure_as_it_says(weights):
    """The interval must be as wide as the differences scatter; nearly all of that comes from the four small sets."""
    rng = np.random.default_rng(9)
    values, widths = [], []
    for _ in range(300):
        ids, oods = rng.normal(1, 1, 2000), [rng.normal(0, 1, 30) for _ in range(4)]
        other = ids + rng.normal(0, 0.5, 2000), [part + rng.normal(0, 0.5, 30) for part in oods]
        found = mean_auroc_difference(ranks(ids, oods, weights), ranks(*other, weights))
        values.append(found.value)
        widths.append(found.high - found.low)
    assert np.mean(widths) / (2 * 1.96) == pytest.approx(np.std(values), rel=0.15)


def test_the_mean_over_sets_weighs_them_as_asked():
    ids, oods = [1.0, 3.0], [np.array([0.0, 2.0]), np.array([2.0, 2.0, 4.0])]
    assert ranks(np.array(ids), oods).auroc == pytest.approx((3 / 4 + 2 / 6) / 2)
    assert ranks(np.array(ids), oods, (2, 3)).auroc == pytest.approx((2 * 3 / 4 + 3 * 2 / 6) / 5)
    with pytest.raises(InputError, match="at least one OOD set"):
        ranks(np.array(ids), [])


def test_unpaired_scores_are_refused():
    with pytest.raises(InputError, match="same ID images, got 2 and 1"):
        intervals.compare_auroc([1.0, 2.0], [0.0], [1.0], [0.0])


def test_runs_are_compared_by_welchs_test():
    """Against the textbook's formula."""
    first, second = np.array([0.91, 0.93, 0.90, 0.95]), np.array([0.88, 0.89, 0.89])
    parts = [side.var(ddof=1) / len(side) for side in (first, second)]
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True)
    )
    value, error = first.mean() - second.mean(), np.sqrt(sum(parts))
    reach = t.ppf(0.95, freedom) * error
    expected = (value, value - reach, value + reach, 2 * t.sf(value / error, freedom))
    assert intervals.compare_runs(first, second, level=0.9) == pytest.approx(expected)


def test_runs_without_spread_are_equal_or_not():
    assert intervals.compare_runs([1.0, 1.0], [1.0, 1.0]) == (0.0, 0.0, 0.0, 1.0)
    assert intervals.compare_runs([2.0, 2.0], [1.0, 1.0]).p_value == 0.0
    assert intervals.compare_runs([0.9, 0.9 + 1e-16], [0.8, 0.8]).p_value < 1e-6
