"""Batches, connections and metrics."""

from __future__ import annotations

import socket

import numpy as np
import pytest
from colour_world import HOW, known

pytest.importorskip("fastapi")
from idness.guard import Guard
from idness.serve.app import Server
from idness.serve.monitoring import Monitor
from idness.serve.schemas import Limits
from idness.serve.service import Service, Worker

IMAGE = np.array(HOW.pixels(known("red", 3)))


def test_a_batch_has_at_most_its_size_and_a_stop_judges_what_waits(guard: Guard) -> None:
    batches: list[int] = []
    worker = Worker(guard, size=2)
    counting = guard.model.register_forward_pre_hook(lambda _, inputs: batches.append(len(inputs[0])))
    answers = [worker.submit(IMAGE) for _ in range(5)]
    answers[0].cancel()
    worker.thread.start()
    worker.stop()
    counting.remove()
    assert all(answer.result(0)[0]["class"] == "red" for answer in answers[1:])
    assert batches == [1, 2, 1]


def test_connections_do_not_delay_small_packets(guard: Guard) -> None:
    """Nagle's algorithm would delay the body of a response by 40 ms."""
    with Server(Service(guard, Limits())).listener as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_metrics_of_an_alarm_are_those_that_raised_it_while_it_lasts() -> None:
    monitor = Monitor([np.arange(100.0).tolist()])
    value = monitor.registry.get_sample_value

    def judge(count: int, is_ood: bool) -> None:
        record = {"is_ood": is_ood, "score": -1.0 if is_ood else 50.0, "p_value": 0.001 if is_ood else 0.5, "label": 0}
        monitor.images([record] * count)

    assert value("idness_drift_alarm") == 0.0
    judge(100, True)
    assert value("idness_drift_alarm") == 1.0
    judge(150, False)
    assert value("idness_drift_alarm") == 1.0
    assert (value("idness_drift_evidence") or 0) >= 100.0
    assert value("idness_images_total") == 250
    assert value("idness_ood_images_total") == 100
    assert value("idness_score_count") == 250
    for score in np.random.default_rng(0).integers(0, 100, 1000):
        monitor.images([{"is_ood": False, "score": float(score), "p_value": 0.5, "label": 0}])
    assert value("idness_drift_alarm") == 0.0
    assert (value("idness_drift_evidence") or 0) < 100.0


def test_images_without_a_score_count_as_the_lowest() -> None:
    monitor = Monitor([np.arange(-50.0, 50.0).tolist()])
    monitor.images([{"is_ood": True, "score": None, "p_value": 0.01, "label": -1}] * 20)
    assert monitor.registry.get_sample_value("idness_drift_alarm") == 1.0
