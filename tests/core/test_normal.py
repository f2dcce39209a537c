import math

import pytest
from scipy import special

from idness.core import normal


@pytest.mark.parametrize("share", [1e-300, 1e-12, 0.025, 0.3, 0.5, 0.975, 1 - 1e-12])
def test_shares_become_numbers_as_scipy_has_them(share):
    assert normal.normal_quantile(share) == pytest.approx(float(special.ndtri(share)), rel=1e-12, abs=1e-15)
    assert normal.logit(share) == pytest.approx(float(special.logit(share)), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("value", [-800.0, -37.0, -3.0, -1e-9, 0.0, 0.7, 9.0, 800.0])
def test_numbers_become_shares_as_scipy_has_them(value):
    assert normal.normal_share(value) == pytest.approx(float(special.ndtr(value)), rel=1e-12, abs=0)
    assert normal.expit(value) == pytest.approx(float(special.expit(value)), rel=1e-12, abs=0)


def test_nothing_lies_below_minus_infinity():
    for function in (normal.normal_quantile, normal.logit):
        assert (function(0.0), function(1.0)) == (-math.inf, math.inf)
    assert (normal.expit(-math.inf), normal.expit(math.inf)) == (0.0, 1.0)
