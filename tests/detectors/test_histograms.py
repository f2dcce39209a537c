import numpy as np
import pytest
import torch

from idness.detectors.histograms import shares, smoothed


def test_shares_are_those_of_numpy_and_lack_what_lies_outside():
    values = torch.randn(7, 300, generator=torch.Generator().manual_seed(0)).double()
    ours = shares(values, torch.tensor([-1.0, 2.0]).double(), 20)
    for row, found in zip(values.numpy(), ours.numpy(), strict=True):
        np.testing.assert_allclose(found, np.histogram(row, bins=20, range=(-1, 2))[0] / 300)
    assert (ours.sum(dim=1) < 1).all()


def test_both_ends_are_inside_and_a_span_without_width_has_one_full_bin():
    span = torch.tensor([-3.0, 5.0]).double()
    assert shares(span.unsqueeze(0), span, 8)[0].tolist() == [0.5, 0, 0, 0, 0, 0, 0, 0.5]
    same = torch.full((1, 4), 2.5).double()
    assert shares(same, torch.tensor([2.5, 2.5]).double(), 5)[0].tolist() == [1, 0, 0, 0, 0]
    assert shares(same * 1e30, span, 5).sum() == 0


@pytest.mark.parametrize("window", [1, 2, 5, 40])
def test_smoothing_is_torchs_padded_convolution(window):
    rows = torch.rand(3, 30, generator=torch.Generator().manual_seed(1))
    layer = torch.nn.Conv1d(1, 1, window, padding="same", padding_mode="replicate", bias=False)
    layer.weight.data.fill_(1 / window)
    with torch.no_grad():
        expected = layer(rows.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(smoothed(rows, window), expected)
