from __future__ import annotations

import numpy as np
import pytest

from idness.guard.drift import HELD, DriftWatch, _events, _odds, _Urn, drift_warning

RNG = np.random.default_rng(0)


def calibration(scores: np.ndarray) -> list[list[float]]:
    return [np.sort(scores).tolist()]


def first_alarm(watch: DriftWatch, scores: np.ndarray) -> int | None:
    return next((place for place, score in enumerate(scores) if watch.observe([float(score)]).alarm), None)


@pytest.mark.fault(
    "no drift: images come from the same source as the calibration images, whatever their scores",
    does="false alarms in at most 1 of 100 periods (a conformal test martingale)",
)
@pytest.mark.parametrize("kind", ["normal", "ties", "heavy tails", "few"])
def test_false_alarms_are_rare_without_drift(kind: str) -> None:
    draw = {
        "normal": lambda count: RNG.normal(size=count),
        "ties": lambda count: RNG.integers(0, 4, count).astype(float),
        "heavy tails": RNG.standard_cauchy,
        "few": lambda count: RNG.normal(size=count),
    }[kind]
    size, runs = (12 if kind == "few" else 150), 200
    alarms = sum(first_alarm(DriftWatch(calibration(draw(size))), draw(120)) is not None for _ in range(runs))
    assert alarms <= 6  # 2 expected at most; more than 6 of 200 has a chance of 1 in 200


@pytest.mark.fault(
    "images change so that scores fall, rise or become constant",
    does="the service and `score` warn after few images",
)
@pytest.mark.parametrize(
    ("change", "most"),
    [
        (lambda count: RNG.normal(-3, 1, count), 25),
        (lambda count: RNG.normal(3, 1, count), 25),
        (lambda count: np.where(RNG.random(count) < 0.3, RNG.normal(-4, 1, count), RNG.normal(size=count)), 120),
        (lambda count: RNG.normal(0, 0.2, count), 120),
        (lambda count: np.full(count, -1e30), 25),
    ],
)
def test_changes_raise_an_alarm_after_few_images(change, most: int) -> None:
    for calm in (0, 300):
        watch = DriftWatch(calibration(RNG.normal(size=1_000)))
        watch.observe(RNG.normal(size=calm).tolist())
        found = first_alarm(watch, change(400))
        assert found is not None
        assert found < most


def test_alarm_ends_after_its_cause() -> None:
    watch = DriftWatch(calibration(RNG.normal(size=500)))
    assert watch.observe([-9.0] * 60).alarm
    assert watch.observe(RNG.normal(size=20).tolist()).alarm
    assert not watch.observe(RNG.normal(size=2 * HELD).tolist()).alarm


@pytest.mark.parametrize(("size", "least"), [(50, 5), (100, 22), (200, 25)])
def test_small_calibration_sets_detect_a_fifth_of_ood_images(size: int, least: int) -> None:
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(25):
        watch = DriftWatch(calibration(rng.normal(size=size)))
        found += first_alarm(watch, rng.normal(size=300) - 3 * (rng.random(300) < 0.2)) is not None
    assert found >= least


@pytest.mark.parametrize("size", [0, 3, 60])
def test_every_bet_is_fair(size: int) -> None:
    """The probabilities are those of the next rank, with and without ties, so that no bet wins on average."""
    rng = np.random.default_rng(1)
    before, after, paid = [], [], []
    for _ in range(4_000 if size == 3 else 1_500):
        scores = rng.integers(0, 3, size + 3) if size == 3 else rng.normal(size=size + 3)
        urn = _Urn([float(score) for score in scores[:size]], rng)
        for score in scores[size:]:
            chances = urn.shares()
            below = urn.add(float(score), rng)
        before.append(chances)
        after.append(below)
        paid.append(_odds(_events(chances), _events(below.astype(float)) > 0))
    assert np.mean(before, axis=0) == pytest.approx(np.mean(after, axis=0), abs=0.03)
    assert np.mean(paid, axis=0) == pytest.approx(1, abs=0.25)


def test_thresholds_per_class_rank_within_the_class() -> None:
    watch = DriftWatch([np.sort(RNG.normal(mean, 1, 200)).tolist() for mean in (0, 100)])
    assert not watch.observe((100 + RNG.normal(size=150)).tolist(), [1] * 150).alarm
    assert watch.observe(RNG.normal(size=40).tolist(), [1] * 40).alarm


def test_sorted_scores_are_no_drift() -> None:
    scores = RNG.normal(size=400)
    known = calibration(RNG.normal(size=400))
    assert not drift_warning(known, [(float(score), 0) for score in np.sort(scores)])
    assert drift_warning(known, [(float(score) - 3, 0) for score in np.sort(scores)])
