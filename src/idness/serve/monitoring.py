"""Prometheus metrics of the service, including drift from the calibration images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from idness.guard.drift import LEVEL, DriftWatch
from idness.guard.verdict import LOWEST

SHARES = (0.001, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99)
"""Quantiles of the calibration scores that bound the buckets of the score histogram."""
PATHS = (
    "/v1/score", "/v1/guard", "/v1/calibration", "/v1/samples", "/v2/models", "/v2/health",
    "/healthz", "/readyz", "/metrics", "/",
)  # fmt: skip


class Monitor:
    """The metrics of one server.

    Args:
        groups: the calibration scores of each group.
        waiting: called at each scrape to get the number of waiting images.
    """

    def __init__(self, groups: Sequence[Sequence[float]], waiting: Callable[[], float] = lambda: 0) -> None:
        self.registry = CollectorRegistry()
        named: dict[str, Any] = {"registry": self.registry}
        self.drift = DriftWatch(groups)
        self._requests = Counter("idness_requests", "Requests by path and status.", ["path", "status"], **named)
        self._seconds = Histogram("idness_request_seconds", "Time to answer a request.", ["path"], **named)
        self._images = Counter("idness_images", "Images judged.", **named)
        self._ood = Counter("idness_ood_images", "Images flagged as out-of-distribution.", **named)
        quantiles = sorted(set(np.quantile(np.concatenate(groups), SHARES).tolist()))
        self._score = Histogram("idness_score", "ID-ness of the images.", buckets=quantiles, **named)
        self._evidence = Gauge("idness_drift_evidence", "Evidence of drift: 1 is none, 100 raises the alarm.", **named)
        self._alarm = Gauge("idness_drift_alarm", f"1 if the evidence reached {1 / LEVEL:g}.", **named)
        Gauge("idness_queue_images", "Images waiting or being judged.", **named).set_function(waiting)
        self._evidence.set(1.0)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count one request; unknown paths share one label, so that clients cannot create time series."""
        known = next((each for each in PATHS if path == each or (each != "/" and path.startswith(f"{each}/"))), "other")
        self._requests.labels(known, str(status)).inc()
        self._seconds.labels(known).observe(seconds)

    def images(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Count judged images and update the drift statistics."""
        listed = list(records)
        self._images.inc(len(listed))
        self._ood.inc(sum(record["is_ood"] for record in listed))
        for record in listed:
            if record["score"] is not None:
                self._score.observe(record["score"])
        lowest = [LOWEST if record["score"] is None else record["score"] for record in listed]
        found = self.drift.observe(lowest, [max(record["label"], 0) for record in listed])
        self._evidence.set(found.evidence)
        self._alarm.set(float(found.alarm))
