from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from idness.detectors import kernels
from idness.detectors.detector import fit_many
from idness.methods import MDS, RMDS, Residual, ViM
from tests.worlds import make_world

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
@pytest.mark.parametrize("percentile", [0.0, 85.0, 99.9])
def test_the_ratio_is_the_sum_over_the_sum_of_the_largest(kind, percentile):
    features = KINDS[kind](torch.Generator().manual_seed(0))
    kept = kernels.kept_count(512, percentile)
    top = features.double().sort(dim=1, descending=True).values[:, :kept].sum(dim=1)
    expected = (features.double().sum(dim=1) / top).nan_to_num(1.0).clamp(max=kernels.HIGHEST)
    torch.testing.assert_close(kernels.scale_ratio(features, percentile).double(), expected, rtol=2e-6, atol=0)


@given(st.integers(1, 12), st.integers(0, 99), st.lists(st.floats(-10, 10, width=32), min_size=12, max_size=12))
def test_any_row_has_a_finite_ratio_within_its_bounds(width, percentile, values):
    features = torch.tensor([values[:width]])
    ratio = kernels.scale_ratio(features, float(percentile))
    assert ratio.isfinite().all()
    limit = width / kernels.kept_count(width, percentile)
    assert float(ratio.abs()) <= limit + 1e-6
    rectified = kernels.scale_ratio(features.clamp(min=0), float(percentile))
    assert float(rectified) >= 1 - 1e-5


def test_the_ratio_of_signed_rows_is_clamped_that_of_weak_rows_is_not_and_rows_without_positive_features_have_none():
    features = torch.tensor([[0.001, -5.0, -5.0, -5.0], [3.0, 1.0, 0.0, 0.0], [3e-9, 1e-9, 0.0, 0.0]])
    assert kernels.scale_ratio(features, 75.0).tolist() == pytest.approx([-4.0, 4 / 3, 4 / 3])
    assert kernels.scale_ratio(torch.tensor([[0.0] * 4, [-1.0, -2.0, -3.0, -4.0]]), 50.0).tolist() == [1.0, 1.0]


def test_no_ratio_is_so_high_that_its_factor_overflows():
    """Level rows of 1,000 features have a ratio of 1,000 at the 99.9th percentile; exp of it is no float32."""
    level = torch.full((1, 1000), 5.0)
    ratio = kernels.scale_ratio(level, 99.9)
    assert float(ratio) == 80.0
    assert (1000 * ratio.exp()).isfinite().all()
    assert float(kernels.scale_ratio(level, 98.0)) == pytest.approx(50.0)  # below the cap it is as it is


@pytest.mark.parametrize("size", [7, 300, 40_000])
def test_the_blocked_neighbour_search_is_that_of_top_k(size):
    rng = torch.Generator().manual_seed(2)
    bank, queries = torch.randn(size, 8, generator=rng), torch.randn(600, 8, generator=rng)
    ks = [k for k in (5, 1, 2000, 50, 5) if k <= size]
    largest = (queries @ bank.T).topk(max(ks), dim=1).values
    picks = (lambda top: top[:, 0], lambda top: top.mean(dim=1))
    kth, means = (kernels.largest_products(queries, bank, ks, pick) for pick in picks)
    for k, one, mean in zip(ks, kth, means, strict=True):
        torch.testing.assert_close(one, largest[:, k - 1])
        torch.testing.assert_close(mean, largest[:, :k].mean(dim=1))


@pytest.fixture
def calls():
    """A shared function, and a list that grows with each computation."""
    made = []

    @kernels.shared
    def times(values, by=2.0):
        made.append(1)
        return values * by

    return times, made


def test_within_a_block_results_are_computed_once_and_outside_each_time(calls):
    times, made = calls
    ones = torch.ones(3)
    with kernels.sharing():
        assert times(ones) is times(ones)
        with kernels.sharing():  # part of the outer block
            times(ones)
        assert len(made) == 1
        assert torch.equal(times(torch.ones(3), 3.0), torch.full((3,), 3.0))
        assert torch.equal(times(ones, 3.0), torch.full((3,), 3.0))
        assert len(made) == 3
    times(ones)
    times(ones)
    assert len(made) == 5


def test_the_number_of_cached_results_is_limited_each_ends_with_its_argument_and_an_error_ends_the_block(
    calls, monkeypatch
):
    times, made = calls
    with kernels.sharing():
        for value in range(9):  # at the address of a freed object there may be another
            assert float(times(torch.tensor(float(value)))) == 2 * value
        assert not kernels._results.get()
    made.clear()
    monkeypatch.setattr(kernels, "CACHED", 2)
    with pytest.raises(KeyError), kernels.sharing():
        for value in (1.0, 2.0, 3.0, 3.0, 1.0):
            times(value)
        raise KeyError
    assert len(made) == 4
    times(1.0)
    assert len(made) == 5


def test_methods_that_need_the_same_axes_find_them_and_score_as_alone(monkeypatch):
    world = make_world(seed=3)
    solved = []
    for how in (torch.linalg.eigh, torch.linalg.cholesky_ex):
        name = how.__name__.removeprefix("linalg_")
        monkeypatch.setattr(torch.linalg, name, lambda matrix, how=how: solved.append(1) or how(matrix))
    together = [MDS(), RMDS(), Residual(), ViM()]
    fit_many(together, world.head, world.train)
    assert len(solved) == 3  # around class means, around the common mean, and around the origin
    alone = [type(detector)().fit(world.head, world.train) for detector in together]
    assert len(solved) == 3 + 1 + 2 + 1 + 1
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.score(world.test), other.score(world.test))
