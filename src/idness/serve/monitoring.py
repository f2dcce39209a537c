"""Counts what is served, and watches whether it still looks like the calibration images."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from idness.detectors.detector import LARGEST
from idness.guard.conformal import Calibration
from idness.guard.drift import LEVEL, DriftWatch

WINDOW = 200
"""Images of which the share that is called OOD is told."""
PATHS = ("/v1/score", "/v1/guard", "/v1/calibration", "/v1/samples", "/healthz", "/readyz", "/metrics", "/")


class Monitor:
    """Holds the counters of one server, as Prometheus reads them."""

    def __init__(self, calibration: Calibration) -> None:
        self.registry = CollectorRegistry()
        named: dict[str, Any] = {"registry": self.registry}
        self.drift = DriftWatch(calibration)
        self._requests = Counter("idness_requests", "Requests by path and status.", ["path", "status"], **named)
        self._seconds = Histogram("idness_request_seconds", "Time to answer a request.", ["path"], **named)
        self._images = Counter("idness_images", "Images judged.", **named)
        self._ood = Counter("idness_ood_images", "Images called out-of-distribution.", **named)
        self._batch = Histogram("idness_batch_images", "Images per batch.", buckets=(1, 2, 4, 8, 16, 32, 64), **named)
        self._score = Histogram("idness_score", "ID-ness of the images.", buckets=_buckets(calibration.scores), **named)
        self._share = Gauge(
            "idness_ood_share", f"Share of the last {WINDOW} images called out-of-distribution.", **named
        )
        self._evidence = Gauge(
            "idness_drift_evidence",
            "How much speaks against that nothing has changed: 1 is nothing, 100 an alarm.",
            **named,
        )
        self._chance = Gauge("idness_drift_p_value", "How likely that is, at most, when nothing has changed.", **named)
        self._alarm = Gauge("idness_drift_alarm", f"1 when that was below {LEVEL:g} a short while ago.", **named)
        self._evidence.set(1.0)
        self._chance.set(1.0)
        self._last: deque[bool] = deque(maxlen=WINDOW)

    def watch_queue(self, waiting: Any) -> None:
        """Report how many images wait, asked for at each reading."""
        Gauge("idness_queue_images", "Images that wait or are worked on.", registry=self.registry).set_function(waiting)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count one request; unknown paths are counted together, so that strangers cannot make up series."""
        known = next((each for each in PATHS if path == each or (each != "/" and path.startswith(f"{each}/"))), "other")
        self._requests.labels(known, str(status)).inc()
        self._seconds.labels(known).observe(seconds)

    def batch(self, size: int) -> None:
        """Count one batch."""
        self._batch.observe(size)

    def images(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Count judged images, and look for drift."""
        listed = list(records)
        self._images.inc(len(listed))
        self._ood.inc(sum(record["is_ood"] for record in listed))
        for record in listed:
            if record["score"] is not None:
                self._score.observe(record["score"])
        self._last.extend(bool(record["is_ood"]) for record in listed)
        self._share.set(sum(self._last) / len(self._last))
        lowest = [-LARGEST if record["score"] is None else record["score"] for record in listed]
        found = self.drift.observe(lowest, [max(record["label"], 0) for record in listed])
        self._evidence.set(found.evidence)
        self._chance.set(found.p_value)
        self._alarm.set(float(found.alarm))


def _buckets(scores: torch.Tensor) -> list[float]:
    """Place bucket edges at quantiles of the calibration scores."""
    shares = torch.tensor([0.001, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99])
    edges = torch.quantile(scores[:: max(1, len(scores) // 100_000)].cpu().double(), shares.double())
    return sorted(set(edges.tolist()))
