from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("prometheus_client")
from idness.guard.conformal import Calibration
from idness.serve.monitoring import EVERY, WINDOW, DriftWatch, Monitor

UNIFORM = np.random.default_rng(1).permutation((np.arange(WINDOW) + 0.5) / WINDOW)
FOREIGN = UNIFORM / 50


def test_drift_alarm_sounds_for_foreign_traffic_and_not_for_known() -> None:
    rng = np.random.default_rng(0)
    false_alarms = 0
    for _ in range(40):
        size = int(rng.choice([100, 1_000]))
        calibration = np.sort(rng.normal(size=size))
        p_values = (1 + np.searchsorted(calibration, rng.normal(size=1_000), side="right")) / (size + 1)
        watch = DriftWatch(size)
        false_alarms += any(
            watch.observe([value]) is not None and watch.last is not None and watch.last.alarm for value in p_values
        )
    assert false_alarms <= 1
    for share in (0.3, 1.0):
        watch = DriftWatch(1_000)
        values = np.where(rng.random(400) < share, rng.uniform(0, 0.02, 400), rng.uniform(0, 1, 400))
        found = watch.observe(values)
        assert found is not None
        assert found.alarm


def test_no_word_of_drift_before_the_window_is_full() -> None:
    watch = DriftWatch(1_000)
    assert watch.observe(FOREIGN[:-1]) is None
    found = watch.observe(FOREIGN[-1:])
    assert found is not None
    assert found.alarm


def test_the_alarm_ends_when_the_foreign_images_have_left_the_window() -> None:
    watch = DriftWatch(1_000)
    for values, alarm in ((UNIFORM, False), (FOREIGN, True), (UNIFORM, False)):
        found = watch.observe(values)
        assert found is not None
        assert found.alarm is alarm
    # Half of the window is foreign again: the gap is that half.
    found = watch.observe(FOREIGN[: WINDOW // 2])
    assert found is not None
    assert found.alarm
    assert found.statistic == pytest.approx(0.5, abs=0.1)


def test_a_narrower_window_sees_less() -> None:
    watch = DriftWatch(1_000, window=100)
    assert watch.observe(FOREIGN[:99]) is None
    assert watch.observe(FOREIGN[99:100]) is not None
    found = watch.observe(np.linspace(0.005, 0.995, 100))
    assert found is not None
    assert not found.alarm


def test_a_comparison_is_made_every_so_many_images() -> None:
    watch = DriftWatch(1_000)
    first = watch.observe(UNIFORM)
    assert watch.observe(FOREIGN[: EVERY - 1]) is first
    assert watch.observe(FOREIGN[EVERY - 1 : EVERY]) is not first


def test_a_small_calibration_set_makes_the_alarm_slower() -> None:
    """A gap that is sure against a thousand calibration images may be chance against twenty."""
    shifted = UNIFORM**1.6
    surely, perhaps = DriftWatch(100_000).observe(shifted), DriftWatch(20).observe(shifted)
    assert surely is not None
    assert perhaps is not None
    assert surely.alarm
    assert not perhaps.alarm
    assert surely.p_value < perhaps.p_value


def test_the_counters_are_of_the_last_images() -> None:
    monitor = Monitor(Calibration.pooled(torch.arange(100.0)))

    def value(name: str) -> float | None:
        return monitor.registry.get_sample_value(name)

    def judge(count: int, is_ood: bool) -> None:
        record = {"is_ood": is_ood, "score": 1.0, "p_value": 0.001 if is_ood else 0.5}
        monitor.images([record] * count)

    judge(100, True)
    assert value("idness_ood_share") == 1.0
    judge(100, False)
    assert value("idness_ood_share") == 0.5
    judge(50, False)
    assert value("idness_ood_share") == 0.25
    assert value("idness_images_total") == 250
    assert value("idness_ood_images_total") == 100
    assert value("idness_score_count") == 250
