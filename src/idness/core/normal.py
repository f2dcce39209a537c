"""The normal law and the logistic function, of single numbers: SciPy's take longer to import than most commands to answer."""

from __future__ import annotations

import math
from statistics import NormalDist


def normal_quantile(share: float) -> float:
    """Find below what number this share of a standard normal law lies."""
    if share in (0, 1):
        return math.inf if share else -math.inf
    return NormalDist().inv_cdf(share)


def normal_share(value: float) -> float:
    """Compute the share of a standard normal law below a number; exact far out on the left, too."""
    return math.erfc(-value / math.sqrt(2)) / 2


def logit(share: float) -> float:
    """Compute log(p / (1 - p))."""
    if share in (0, 1):
        return math.inf if share else -math.inf
    return math.log(share) - math.log1p(-share)


def expit(value: float) -> float:
    """Compute the share of which this is the logit."""
    small = math.exp(-abs(value))
    return (1 if value >= 0 else small) / (1 + small)
