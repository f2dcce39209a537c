"""Prometheus metrics of the service, including drift away from the calibration images."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from idness.guard.drift import LEVEL, DriftWatch
from idness.guard.verdict import LOWEST

WINDOW = 200
"""Number of recent images in the reported share of OOD images."""
SHARES = (0.001, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99)
"""Quantiles of the calibration scores at which the buckets of the scores end."""
PATHS = (
    "/v1/score", "/v1/guard", "/v1/calibration", "/v1/samples", "/v2/models", "/v2/health",
    "/healthz", "/readyz", "/metrics", "/",
)  # fmt: skip


class Monitor:
    """The metrics of one server.

    Args:
        groups: the calibration scores of each group.
        waiting: returns the number of waiting images, at each scrape.
    """

    def __init__(self, groups: Sequence[Sequence[float]], waiting: Callable[[], float] = lambda: 0) -> None:
        self.registry = CollectorRegistry()
        named: dict[str, Any] = {"registry": self.registry}
        self.drift = DriftWatch(groups)
        self._requests = Counter("idness_requests", "Requests by path and status.", ["path", "status"], **named)
        self._seconds = Histogram("idness_request_seconds", "Time to answer a request.", ["path"], **named)
        self._images = Counter("idness_images", "Images judged.", **named)
        self._ood = Counter("idness_ood_images", "Images flagged as out-of-distribution.", **named)
        self._batch = Histogram("idness_batch_images", "Images per batch.", buckets=(1, 2, 4, 8, 16, 32, 64), **named)
        quantiles = sorted(set(np.quantile(np.concatenate(groups), SHARES).tolist()))
        self._score = Histogram("idness_score", "ID-ness of the images.", buckets=quantiles, **named)
        self._share = Gauge("idness_ood_share", f"Share of OOD images among the last {WINDOW}.", **named)
        self._evidence = Gauge("idness_drift_evidence", "Evidence of drift: 1 is none, 100 raises the alarm.", **named)
        self._chance = Gauge("idness_drift_p_value", "Bound on the chance of it without drift.", **named)
        self._alarm = Gauge("idness_drift_alarm", f"1 if the p-value is at most {LEVEL:g}.", **named)
        Gauge("idness_queue_images", "Images waiting or being judged.", **named).set_function(waiting)
        self._evidence.set(1.0)
        self._chance.set(1.0)
        self._last: deque[bool] = deque(maxlen=WINDOW)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count one request; unknown paths share one label, so that clients cannot create series."""
        known = next((each for each in PATHS if path == each or (each != "/" and path.startswith(f"{each}/"))), "other")
        self._requests.labels(known, str(status)).inc()
        self._seconds.labels(known).observe(seconds)

    def batch(self, size: int) -> None:
        """Count one batch."""
        self._batch.observe(size)

    def images(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Count judged images and update the drift statistics."""
        listed = list(records)
        self._images.inc(len(listed))
        self._ood.inc(sum(record["is_ood"] for record in listed))
        for record in listed:
            if record["score"] is not None:
                self._score.observe(record["score"])
        self._last.extend(bool(record["is_ood"]) for record in listed)
        self._share.set(sum(self._last) / len(self._last))
        lowest = [LOWEST if record["score"] is None else record["score"] for record in listed]
        found = self.drift.observe(lowest, [max(record["label"], 0) for record in listed])
        self._evidence.set(found.evidence)
        self._chance.set(found.p_value)
        self._alarm.set(float(found.alarm))
