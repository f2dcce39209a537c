"""Counts what is served, and watches whether it still looks like the calibration images."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from scipy.stats import kstest

from idness.guard.conformal import Calibration

WINDOW = 200
"""Images that are compared with the calibration images: enough to see a change of a tenth of the traffic or so."""
EVERY = 50
"""New images between two comparisons; fewer would raise more false alarms and see nothing sooner."""
LEVEL = 1e-4
"""How unlikely a difference must be for the alarm: with a look every 50 images, about one false alarm in half a million images."""
PATHS = ("/v1/score", "/v1/guard", "/v1/calibration", "/v1/samples", "/healthz", "/readyz", "/metrics", "/")


@dataclass(frozen=True)
class Drift:
    """Holds the last comparison: largest gap between distributions, how likely it is by chance, and whether that is alarming."""

    statistic: float
    p_value: float
    alarm: bool


class DriftWatch:
    """Compares the p-values of the last images with the uniform distribution that they have on images like the calibration's.

    A Kolmogorov-Smirnov test; that the calibration set is itself a sample is allowed for by its effective size.
    """

    def __init__(self, calibration_size: int, window: int = WINDOW) -> None:
        self._recent: deque[float] = deque(maxlen=window)
        self._new, self._size = 0, calibration_size
        self.last: Drift | None = None

    def observe(self, p_values: Iterable[float]) -> Drift | None:
        """Take p-values of images as they come, and compare when it is time."""
        for value in p_values:
            self._recent.append(value)
            self._new += 1
            if len(self._recent) == self._recent.maxlen and self._new >= EVERY:
                self._new = 0
                self.last = self._compare()
        return self.last

    def _compare(self) -> Drift:
        from scipy.special import kolmogorov

        count = len(self._recent)
        statistic = float(kstest(np.fromiter(self._recent, float), "uniform").statistic)
        # p-values of a calibration of n have steps of 1 / (n + 1): a gap of one step means nothing.
        beyond = max(0.0, statistic - 1 / (self._size + 1))
        effective = count * self._size / (count + self._size)
        p_value = float(kolmogorov(np.sqrt(effective) * beyond))
        return Drift(statistic, p_value, p_value < LEVEL)


class Monitor:
    """Holds the counters of one server, as Prometheus reads them."""

    def __init__(self, calibration: Calibration) -> None:
        self.registry = CollectorRegistry()
        named: dict[str, Any] = {"registry": self.registry}
        self.drift = DriftWatch(int(calibration.sizes.min()))
        self._requests = Counter("idness_requests", "Requests by path and status.", ["path", "status"], **named)
        self._seconds = Histogram("idness_request_seconds", "Time to answer a request.", ["path"], **named)
        self._images = Counter("idness_images", "Images judged.", **named)
        self._ood = Counter("idness_ood_images", "Images called out-of-distribution.", **named)
        self._batch = Histogram("idness_batch_images", "Images per batch.", buckets=(1, 2, 4, 8, 16, 32, 64), **named)
        self._score = Histogram("idness_score", "ID-ness of the images.", buckets=_buckets(calibration.scores), **named)
        self._share = Gauge(
            "idness_ood_share", f"Share of the last {WINDOW} images called out-of-distribution.", **named
        )
        self._gap = Gauge(
            "idness_drift_statistic", f"Largest gap between the last {WINDOW} images and the calibration.", **named
        )
        self._chance = Gauge("idness_drift_p_value", "How likely such a gap is when nothing has changed.", **named)
        self._alarm = Gauge("idness_drift_alarm", f"1 when that is below {LEVEL:g}.", **named)
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
        found = self.drift.observe(record["p_value"] for record in listed)
        if found is not None:
            self._gap.set(found.statistic)
            self._chance.set(found.p_value)
            self._alarm.set(float(found.alarm))


def _buckets(scores: torch.Tensor) -> list[float]:
    """Place bucket edges at quantiles of the calibration scores."""
    shares = torch.tensor([0.001, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99])
    edges = torch.quantile(scores[:: max(1, len(scores) // 100_000)].cpu().double(), shares.double())
    return sorted(set(edges.tolist()))
