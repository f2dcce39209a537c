from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest, norm

from idness.core.errors import InputError
from idness.paper.studies import count_larger, plot_chances
from idness.paper.studies.gaussian import DEGREES, chi_square_p_values, gaussianity, moments
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
    result = gaussianity("noise", values)
    # Estimating the parameters from unbinned values makes p-values a little smaller than uniform ones.
    assert 0.42 < result.mean_p < 0.52
    assert result.accepted > 0.9
    assert DEGREES == 7
    assert kstest(chi_square_p_values(values), "uniform").statistic < 0.12
    rectified = gaussianity("relu", values.add(5).clamp(min=0))
    assert rectified.mean_p < 1e-6
    assert rectified.accepted == 0


def test_constant_rows_have_p_zero_and_bad_shapes_are_refused() -> None:
    assert chi_square_p_values(torch.full((2, 100), 3.0)).tolist() == [0.0, 0.0]
    with pytest.raises(InputError, match="at least 50 values"):
        chi_square_p_values(torch.randn(3, 20))


def test_moments_are_those_of_each_row() -> None:
    values = torch.tensor([[1.0, 3.0], [2.0, 2.0], [-4.0, 0.0]])
    found = moments("x", values)
    np.testing.assert_allclose(found.mean, [2, 2, -2])
    np.testing.assert_allclose(found.variance, [1, 0, 4])
    np.testing.assert_allclose(found.gamma, [2, 0, -1])
    assert found.typical == pytest.approx(1 / 3)


def test_chances_are_those_that_id_is_higher() -> None:
    generator = torch.Generator().manual_seed(0)
    high = moments("id", torch.randn(200, 300, generator=generator) + 0.5)
    low = moments("ood", torch.randn(100, 300, generator=generator))
    figure, chances = plot_chances(high.gamma, {"low": low.gamma, "same": high.gamma}, "higher", x="number")
    assert chances["low"] > 0.99
    assert chances["same"] == pytest.approx(0.5)
    assert len(figure.axes) == 2
    assert "same: ID higher 50 %" in figure_svg(figure)
    assert count_larger({"a": 0.61, "b": 0.4}) == "1 of 2 sets (a 61 %, b 40 % of pairs)"
