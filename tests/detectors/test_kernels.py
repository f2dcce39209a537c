from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from idness.detectors import kernels

KINDS = {
    "relu": lambda rng: torch.randn(300, 512, generator=rng).clamp(min=0),
    "positive": lambda rng: torch.rand(300, 512, generator=rng) + 0.01,
    "tied": lambda rng: torch.randint(0, 3, (300, 512), generator=rng).float(),
    "sparse": lambda rng: (torch.rand(300, 512, generator=rng) > 0.99).float(),
}


@pytest.mark.parametrize(
    ("width", "percentile", "kept"),
    [(2048, p, k) for p, k in zip(range(65, 100, 5), (717, 614, 512, 410, 307, 205, 102), strict=True)]
    + [(10, 15, 8), (10, 25, 8), (4, 95, 1), (1, 99, 1), (342, 0, 342)],
)
def test_kept_counts_are_the_authors_rounding(width, percentile, kept):
    assert kernels.kept_count(width, percentile) == kept


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("percentile", [0.0, 50.0, 85.0, 99.0])
def test_the_fast_ratio_is_the_plain_one(kind, percentile):
    features = KINDS[kind](torch.Generator().manual_seed(0))
    fast = kernels.scale_ratio(features, percentile)
    exact = kernels.ratio_plain(features.double(), kernels.kept_count(512, percentile))
    torch.testing.assert_close(fast.double(), exact, rtol=2e-6, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_many_percentiles_at_once_are_the_plain_ones(kind):
    features = KINDS[kind](torch.Generator().manual_seed(1))
    percentiles = [95.0, 65.0, 85.0, 85.0, 0.0, 99.9]
    for percentile, ratio in zip(percentiles, kernels.scale_ratios(features, percentiles), strict=True):
        exact = kernels.ratio_plain(features.double(), kernels.kept_count(512, percentile))
        torch.testing.assert_close(ratio.double(), exact, rtol=2e-6, atol=0)


@given(st.integers(1, 12), st.integers(0, 99), st.lists(st.floats(-10, 10, width=32), min_size=12, max_size=12))
def test_any_row_has_a_finite_ratio_within_its_bounds(width, percentile, values):
    features = torch.tensor([values[:width]])
    ratio = kernels.scale_ratio(features, float(percentile))
    assert ratio.isfinite().all()
    limit = width / kernels.kept_count(width, percentile)
    assert float(ratio.abs()) <= limit + 1e-6
    rectified = kernels.scale_ratio(features.clamp(min=0), float(percentile))
    assert float(rectified) >= 1 - 1e-5


def test_the_ratio_of_signed_rows_is_held_at_its_bound():
    features = torch.tensor([[0.001, -5.0, -5.0, -5.0], [3.0, 1.0, 0.0, 0.0]])
    assert kernels.scale_ratio(features, 75.0).tolist() == pytest.approx([-4.0, 4 / 3])
    assert kernels.ratio_plain(features, 1).tolist() == pytest.approx([-4.0, 4 / 3])


def test_no_ratio_is_so_high_that_its_factor_overflows():
    """Level rows of 1,000 features have a ratio of 1,000 at the 99.9th percentile; exp of it is no float32."""
    level = torch.full((1, 1000), 5.0)
    found = [
        kernels.scale_ratio(level, 99.9),
        kernels.ratio_plain(level, 1),
        kernels.scale_ratios(level, [99.9, 50])[0],
    ]
    for ratio in found:
        assert float(ratio) == 80.0
        assert (1000 * ratio.exp()).isfinite().all()
    assert float(kernels.scale_ratio(level, 98.0)) == pytest.approx(50.0)  # below the cap it is as it is


@pytest.mark.parametrize("factor", [1e-30, 1e-6, 1e30])
def test_the_ratio_does_not_depend_on_the_strength_of_a_row(factor):
    features = KINDS["relu"](torch.Generator().manual_seed(4))
    torch.testing.assert_close(
        kernels.ratio_plain(features * factor, 77), kernels.ratio_plain(features, 77), rtol=1e-5, atol=0
    )


def test_rows_without_positive_features_are_not_scaled():
    features = torch.tensor([[0.0, 0.0, 0.0, 0.0], [-1.0, -2.0, -3.0, -4.0]])
    assert kernels.scale_ratio(features, 50.0).tolist() == [1.0, 1.0]
    assert kernels.ratio_plain(features, 2).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("size", [7, 300, 40_000])
def test_the_blocked_neighbour_search_is_the_plain_one(size):
    rng = torch.Generator().manual_seed(2)
    bank, queries = torch.randn(size, 8, generator=rng), torch.randn(600, 8, generator=rng)
    ks = [k for k in (5, 1, 50, 5) if k <= size]
    for fast, plain in zip(
        kernels.kth_largest_products(queries, bank, ks), kernels.kth_plain(queries, bank, ks), strict=True
    ):
        torch.testing.assert_close(fast, plain)
    means = zip(kernels.mean_largest_products(queries, bank, ks), kernels.mean_plain(queries, bank, ks), strict=True)
    for fast, plain in means:
        torch.testing.assert_close(fast, plain)


def test_strided_features_are_taken_too():
    features = torch.rand(64, 100, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(kernels.scale_ratio(features[:, ::2], 80.0), kernels.ratio_plain(features[:, ::2], 10))


@pytest.mark.parametrize("kind", KINDS)
def test_a_percentile_for_each_row_gives_what_it_gives_for_all(kind):
    features = KINDS[kind](torch.Generator().manual_seed(0))
    percents = torch.tensor([0.0, 15.0, 65.0, 85.0, 99.9])
    expected = torch.stack(kernels.scale_ratios(features, percents.tolist()), dim=1)
    own = torch.arange(len(features)) % len(percents)
    found = kernels.ratio_each(features, percents[own])
    torch.testing.assert_close(found, expected[torch.arange(len(features)), own], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_is_that_of_a_stable_sort(kind):
    features = KINDS[kind](torch.Generator().manual_seed(5))
    features[:5] = (3 * features[:5]).round() - 0.0  # equals
    features[5:7] *= torch.where(torch.arange(features.shape[1]) % 2 == 0, 0.0, -0.0)  # zeros of either sign
    features[8, :4] = torch.tensor([torch.inf, -torch.inf, -1e-40, 1e-40])
    assert torch.equal(kernels.stable_order(features), features.sort(dim=1, stable=True).indices)
