from __future__ import annotations

import pytest
import torch

pytest.importorskip("prometheus_client")
from idness.guard.conformal import Calibration
from idness.serve.monitoring import Monitor


def test_the_counters_are_of_the_last_images() -> None:
    monitor = Monitor(Calibration.pooled(torch.arange(100.0)))

    def value(name: str) -> float | None:
        return monitor.registry.get_sample_value(name)

    def judge(count: int, is_ood: bool) -> None:
        record = {"is_ood": is_ood, "score": -1.0 if is_ood else 50.0, "p_value": 0.001 if is_ood else 0.5, "label": 0}
        monitor.images([record] * count)

    assert value("idness_drift_alarm") == 0.0
    judge(100, True)
    assert value("idness_ood_share") == 1.0
    assert value("idness_drift_alarm") == 1.0
    assert value("idness_drift_evidence") >= 1.0
    judge(100, False)
    assert value("idness_ood_share") == 0.5
    judge(50, False)
    assert value("idness_ood_share") == 0.25
    assert value("idness_images_total") == 250
    assert value("idness_ood_images_total") == 100
    assert value("idness_score_count") == 250


def test_images_without_a_score_count_as_the_lowest() -> None:
    monitor = Monitor(Calibration.pooled(torch.arange(-50.0, 50.0)))
    monitor.images([{"is_ood": True, "score": None, "p_value": 0.01, "label": -1}] * 20)
    assert monitor.registry.get_sample_value("idness_drift_alarm") == 1.0
