"""What a guard says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from idness.guard.conformal import Calibration, false_alarm_rate

if TYPE_CHECKING:
    from idness.guard.guard import Guard


def facts(guard: Guard) -> Iterator[tuple[str, str]]:
    """Tell a guard's network, method, calibration, thresholds and promise, each with its name."""
    yield "network", guard.spec or type(guard.model).__name__
    yield "method", guard.detector.label()
    calibration = guard.calibration
    if calibration is None:
        yield "state", "not calibrated"
        return
    yield "calibrated on", f"{len(calibration):,} images" + (", per class" if calibration.per_class else "")
    for recall in guard.recalls:
        limits = guard.threshold(recall)
        low, high = float(limits.min()), float(limits.max())
        yield f"recall {recall:g}", f"out when ID-ness is below {low:.4g}" + (f" to {high:.4g}" if high > low else "")
    yield "promise", guard.promise()


def promise(calibration: Calibration, recall: float) -> str:
    """Say in one sentence what a calibration guarantees."""
    rate = false_alarm_rate(recall)
    low, high = calibration.spread(recall)
    whom = "images of each predicted class" if calibration.per_class else "images"
    return (
        f"On average at most {100 * rate:.4g} % of in-distribution {whom} are flagged, as long as they come from where the"
        f" {len(calibration):,} calibration images came from; a single calibration of this size has a rate between"
        f" {100 * low:.1f} and {100 * high:.1f} % in 95 of 100 cases."
    )
