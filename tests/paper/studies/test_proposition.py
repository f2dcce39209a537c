from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import erfinv, ndtr
from scipy.stats import norm

from idness.paper.studies.proposition import c_factor, exact_range, kept_share, simulated_share

GAMMAS = (-1.5, -0.5, 0.0, 0.4, 1.0, 2.5)


def test_c_is_as_printed_and_rises_strictly() -> None:
    assert float(c_factor(0.85)) == pytest.approx(1.554, abs=1e-3)
    assert float(c_factor(0.95)) == pytest.approx(2.063, abs=1e-3)
    p = np.linspace(0.001, 0.99999, 5000)
    m = np.sqrt(2) * erfinv(2 * p - 1)
    np.testing.assert_allclose(c_factor(p), norm.pdf(m) / (1 - norm.cdf(m)), rtol=1e-6)
    assert bool((np.diff(c_factor(p)) > 0).all())


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("p", [0.3, 0.65, 0.85, 0.95])
def test_the_closed_form_is_the_integral_and_the_simulation(p: float, gamma: float) -> None:
    threshold = max(float(norm.ppf(p)) + gamma, 0.0)
    kept = quad(lambda x: x * norm.pdf(x - gamma), threshold, np.inf, epsabs=1e-12)[0]
    total = quad(lambda x: x * norm.pdf(x - gamma), 0, np.inf, epsabs=1e-12)[0]
    assert float(kept_share(p, gamma)) == pytest.approx(kept / total, rel=1e-6)
    assert simulated_share(p, gamma, images=150) == pytest.approx(float(kept_share(p, gamma)), abs=0.01)


@given(st.floats(-2, 3), st.floats(0.01, 2), st.floats(0.02, 0.98))
def test_a_higher_gamma_always_keeps_less_above_the_zeros(gamma: float, more: float, p: float) -> None:
    low, high = float(kept_share(p, gamma + more)), float(kept_share(p, gamma))
    inside = exact_range(gamma + more, gamma)
    if p > inside[0] + 1e-9:
        assert low < high
    else:
        assert low == high == 1.0


def test_the_exact_range_begins_at_the_share_of_zeros() -> None:
    assert exact_range(0.5, 0.0) == pytest.approx((float(ndtr(-0.5)), 1.0))
    assert exact_range(0.0, 0.5) == (1.0, 1.0)


@given(st.floats(0.01, 4), st.floats(0.01, 3))
def test_the_printed_condition_excludes_no_p(gamma_ood: float, more: float) -> None:
    """The proof's quadratic in C is positive for every C above 0."""
    gamma_id = gamma_ood + more
    share = ndtr(gamma_id) / ndtr(gamma_ood)
    for c in (0.01, 0.5, 1.5, 5.0):
        assert share - 1 - c * (1 / gamma_id - 1 / gamma_ood) + c**2 / (gamma_id * gamma_ood) > 0


def test_the_approximation_is_good_for_large_gamma_and_not_for_small() -> None:
    def error(gamma: float) -> float:
        return float(kept_share(0.85, gamma, printed=True) / kept_share(0.85, gamma) - 1)

    assert error(3.0) < 0.01
    assert error(1.0) > 0.2
    assert error(0.3) > 2
