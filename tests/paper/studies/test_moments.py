from __future__ import annotations

import numpy as np
import pytest
import torch

from idness.core.errors import InputError
from idness.paper.studies.moments import gap, moments, plot_gamma, plot_moments
from idness.report.style import figure_svg


def test_moments_are_those_of_each_row() -> None:
    values = torch.tensor([[1.0, 3.0], [2.0, 2.0], [-4.0, 0.0]])
    found = moments("x", values)
    np.testing.assert_allclose(found.mean, [2, 2, -2])
    np.testing.assert_allclose(found.variance, [1, 0, 4])
    np.testing.assert_allclose(found.gamma, [2, 0, -1])
    assert found.typical == pytest.approx(1 / 3)


def test_gap_is_the_chance_that_id_is_higher() -> None:
    generator = torch.Generator().manual_seed(0)
    high = moments("id", torch.randn(200, 300, generator=generator) + 0.5)
    low = moments("ood", torch.randn(100, 300, generator=generator))
    assert gap(high, low) > 0.99
    assert gap(low, high) == pytest.approx(1 - gap(high, low))
    assert gap(high, high) == pytest.approx(0.5)


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2"):
        moments("x", torch.randn(4, 1))


def test_figures() -> None:
    parts = [moments(name, torch.randn(30, 60)) for name in ("ID", "one", "two")]
    assert "two" in figure_svg(plot_moments(parts[0], parts[1:]))
    assert "one" in figure_svg(plot_gamma(parts[0], parts[1]))
