from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import erfinv, ndtr
from scipy.stats import chisquare, kstest, norm

from idness.core.errors import InputError
from idness.detectors.kernels import scale_ratio
from idness.paper.studies import count_larger, plot_chances
from idness.paper.studies.gaussian import (
    c_factor,
    chi_square_p_values,
    exact_range,
    kept_share,
)
from idness.report.style import figure_svg


def test_p_values_are_those_of_a_slow_re_derivation() -> None:
    values = torch.randn(5, 300, generator=torch.Generator().manual_seed(0)) ** 3
    values[0] = torch.linspace(-1, 1, 300)
    for row, found in zip(values.double().numpy(), chi_square_p_values(values), strict=True):
        edges = norm(row.mean(), row.std()).ppf(np.linspace(0, 1, 11))
        counts = np.histogram(row, edges)[0]
        assert counts.sum() == 300
        assert found == pytest.approx(chisquare(counts, ddof=2).pvalue, rel=1e-9, abs=1e-300)


def test_gaussians_pass_and_rectified_ones_do_not() -> None:
    values = 3 * torch.randn(800, 2048, generator=torch.Generator().manual_seed(1)) - 5
    p = chi_square_p_values(values)
    # Estimating the parameters from unbinned values makes p-values a little smaller than uniform ones.
    assert 0.42 < p.mean() < 0.52
    assert (p > 0.05).mean() > 0.9
    assert kstest(p, "uniform").statistic < 0.12
    assert chi_square_p_values(values.add(5).clamp(min=0)).max() < 1e-6


def test_constant_rows_have_p_zero_and_bad_shapes_are_refused() -> None:
    assert chi_square_p_values(torch.full((2, 100), 3.0)).tolist() == [0.0, 0.0]
    with pytest.raises(InputError, match="at least 50 values"):
        chi_square_p_values(torch.randn(3, 20))


def test_chances_are_those_that_id_is_higher() -> None:
    generator = torch.Generator().manual_seed(0)
    high, low = torch.randn(200, generator=generator) + 5, torch.randn(100, generator=generator)
    figure, chances = plot_chances(high, {"low": low, "same": high}, "higher", x="number")
    assert chances["low"] > 0.99
    assert chances["same"] == pytest.approx(0.5)
    assert len(figure.axes) == 2
    assert "same: ID higher 50 %" in figure_svg(figure)
    assert count_larger({"a": 0.61, "b": 0.4}) == "1 of 2 sets (a 61 %, b 40 % of pairs)"


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
    rows = (torch.randn(150, 2048, generator=torch.Generator().manual_seed(0)) + gamma).clamp(min=0)
    assert float((1 / scale_ratio(rows, 100 * p)).mean()) == pytest.approx(float(kept_share(p, gamma)), abs=0.01)


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


def test_the_approximation_is_good_for_large_gamma_and_not_for_small() -> None:
    def error(gamma: float) -> float:
        return float(kept_share(0.85, gamma, printed=True) / kept_share(0.85, gamma) - 1)

    assert error(3.0) < 0.01
    assert error(1.0) > 0.2
    assert error(0.3) > 2
