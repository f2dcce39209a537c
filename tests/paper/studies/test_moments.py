from __future__ import annotations

import numpy as np
import pytest
import torch

from idness.core.errors import InputError
from idness.paper.studies.moments import moments, plot_moments
from idness.paper.studies.specimen import counted, plot_chances
from idness.report.style import figure_svg


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
    assert counted({"a": 0.61, "b": 0.4}) == "1 of 2 sets (a 61 %, b 40 % of pairs)"


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2"):
        moments("x", torch.randn(4, 1))


def test_figures() -> None:
    parts = [moments(name, torch.randn(30, 60)) for name in ("ID", "one", "two")]
    assert "two" in figure_svg(plot_moments(parts[0], parts[1:]))
