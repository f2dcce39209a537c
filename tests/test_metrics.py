from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as oracle

from idness import metrics
from idness.core.errors import InputError, OptionError

finite = st.floats(-1e6, 1e6, allow_nan=False)
tied = st.integers(-3, 3).map(float)
extreme = st.sampled_from([-3e38, -1e30, -1e-40, 0.0, 1e-40, 150.0, 151.0, 1e30, 3e38])
scores = st.one_of(*(st.lists(kind, min_size=1, max_size=40) for kind in (finite, tied, extreme)))


def by_oracle(ids, oods, recall=0.95):
    """The same numbers from scikit-learn, the way OpenOOD and the ASH code compute them."""
    inside = np.r_[np.ones(len(ids)), np.zeros(len(oods))]
    s = np.r_[ids, oods].astype(float)
    fpr, tpr, _ = oracle.roc_curve(1 - inside, -s, drop_intermediate=False)
    precision_in, recall_in, _ = oracle.precision_recall_curve(inside, s)
    precision_out, recall_out, _ = oracle.precision_recall_curve(1 - inside, -s)
    threshold = np.sort(ids)[min(round((1 - recall) * len(ids)), len(ids) - 1)]
    return {
        "auroc": oracle.roc_auc_score(inside, s),
        "fpr_at_id_recall": float(np.mean(np.asarray(oods) >= threshold)),
        "fpr_at_ood_recall": fpr[np.argmax(tpr >= recall)],
        "aupr_in": oracle.auc(recall_in, precision_in),
        "aupr_out": oracle.auc(recall_out, precision_out),
    }


@given(scores, scores, st.one_of(st.sampled_from([0.5, 0.55, 0.9, 0.95, 0.99]), st.floats(0.01, 0.99)))
def test_all_agree_with_scikit_learn(ids, oods, recall):
    ours = metrics.all_metrics(ids, oods, recall)
    assert list(ours) == list(metrics.NAMES)
    assert ours == pytest.approx(by_oracle(ids, oods, recall), abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_sets_agree_too(dtype):
    rng = np.random.default_rng(0)
    ids, oods = rng.normal(120, 30, 20_000).astype(dtype), rng.normal(100, 30, 5_000).astype(dtype).round()
    assert metrics.all_metrics(ids, oods) == pytest.approx(by_oracle(ids, oods), abs=1e-12)


@pytest.mark.parametrize("recall", [0.05, 0.07, 0.28, 1 / 3, math.nextafter(1 / 3, 1), 0.55, 0.57, 0.7, 0.95, 0.99])
def test_the_recall_is_reached_with_as_few_images_as_can_be(recall):
    """As a share, the way a ROC curve counts: 11 of 20 are 0.55, though 0.55 * 20 is a little more than 11."""
    for count in range(1, 400):
        needed = metrics.count_at_recall(count, recall)
        assert needed / count >= recall
        assert needed == 1 or (needed - 1) / count < recall


@pytest.mark.parametrize(
    ("count", "recall", "rank"), [(10, 0.9, 1), (18, 0.95, 1), (29, 0.95, 1), (31, 0.95, 2), (3, 0.01, 2)]
)
def test_the_threshold_is_the_score_nearest_to_the_share_that_may_be_lost(count, recall, rank):
    """(1 - 0.9) * 10 is a little less than 1, and must not become 0."""
    assert metrics.id_threshold(range(count), recall) == rank
    assert metrics.fpr_at_id_recall(range(count), [rank - 0.5, rank], recall) == 0.5


def test_constant_scores_are_chance_and_degenerate():
    ours = metrics.all_metrics([1.0] * 5, [1.0] * 3)
    assert [ours[name] for name in metrics.WITH_INTERVAL] == [0.5, 1.0, 1.0]  # ties count against a detector
    assert metrics.degenerate([3.0] * 90 + list(range(10)), [3.0, 3.0, 1.0])
    assert not metrics.degenerate([3.0] * 80 + list(range(20)), [3.0, 3.0, 1.0])
    assert not metrics.degenerate([3.0] * 90 + list(range(10)), [3.0, 2.0, 1.0])  # of use where OOD images score less


@pytest.mark.parametrize(
    "kind", [list, tuple, np.int64, torch.tensor, lambda v: torch.tensor(v).bfloat16(), np.float32]
)
def test_any_kind_of_sequence_is_taken(kind):
    assert metrics.auroc(kind([3.0, 2.0]), kind([1.0, 2.0])) == 0.875
    assert metrics.auroc([float("inf"), 0.0], [-float("inf")]) == 1.0


@pytest.mark.parametrize("bad", [[], [[1.0]], [float("nan"), 1.0]])
def test_what_is_no_list_of_scores_is_refused(bad):
    with pytest.raises(InputError, match="metrics: ID scores must"):
        metrics.auroc(bad, [1.0])
    with pytest.raises(InputError, match="metrics: OOD scores must"):
        metrics.aupr_out([1.0], bad)


@pytest.mark.parametrize("recall", [0, 1, 95, -0.1, "0.95"])
def test_a_recall_outside_its_range_is_refused(recall):
    with pytest.raises(OptionError, match=r"recall must be in \(0, 1\)"):
        metrics.fpr_at_id_recall([1.0], [0.0], recall=recall)


def test_accuracy_counts_the_largest_logit():
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert metrics.accuracy(logits, torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)
    with pytest.raises(InputError, match="as many labels as logits"):
        metrics.accuracy(logits, torch.tensor([0]))


@given(
    st.lists(st.tuples(st.integers(0, 2).map(float), st.booleans()), min_size=1, max_size=4),
    st.lists(st.integers(0, 2).map(float), max_size=2),
)
def test_aurc_is_the_mean_risk_over_all_orders_of_tied_images(ids, oods):
    scored = [(score, not right) for score, right in ids] + [(score, True) for score in oods]
    areas = []
    for order in itertools.permutations(scored):
        if [score for score, _ in order] == sorted((score for score, _ in scored), reverse=True):
            errors = [error for _, error in order]
            areas.append(np.mean([np.mean(errors[:accepted]) for accepted in range(1, len(errors) + 1)]))
    scores, right = zip(*ids, strict=True)
    assert metrics.aurc(scores, right, oods) == pytest.approx(np.mean(areas))


@given(scores, st.integers(0, 99), scores, st.floats(0.01, 0.99))
def test_the_accuracy_of_accepted_images_counts_ood_images_as_errors(ids, seed, oods, recall):
    right = np.random.default_rng(seed).random(len(ids)) < 0.7
    threshold = metrics.id_threshold(ids, recall)
    kept = [good for score, good in zip(ids, right, strict=True) if score >= threshold]
    passed = sum(score >= threshold for score in oods)
    found = metrics.accepted_accuracy(ids, right, oods, recall)
    assert found == pytest.approx(sum(kept) / (len(kept) + passed))


def test_predictions_of_other_images_are_refused():
    for function in (metrics.aurc, metrics.accepted_accuracy):
        with pytest.raises(InputError, match=r"correct must have one value per ID score \(2\), got shape \(1,\)"):
            function([1.0, 2.0], [True], [0.0])
