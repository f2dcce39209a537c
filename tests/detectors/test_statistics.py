"""Statistics in parts are those of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from idness.core.errors import IdnessWarning, InputError
from idness.core.types import Activations, Whole
from idness.detectors.detector import Detector
from idness.detectors.registry import available, build, rows
from idness.detectors.statistics import (
    CLASSES,
    DIRECTIONS,
    FEATURES,
    PREDICTED,
    PROFILE,
    RECOGNISED,
    VALUES,
    Counts,
    Moments,
)
from idness.detectors.summary import Summary, summarise
from tests.worlds import World, make_world

EVERY = (VALUES, FEATURES, CLASSES, DIRECTIONS, PREDICTED, RECOGNISED, PROFILE)
STEP = 2.0**-12
LEARNS_ALL = sorted(name for name, method in available().items() if method.statistics)


def hashes(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (count, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def in_parts(acts: Activations, digests: Tensor, cuts: list[int], keep: int = 10**6) -> Summary:
    ends = [0, *sorted(cut % (len(acts) - 1) + 1 for cut in cuts), len(acts)]
    spans = [slice(low, high) for low, high in pairwise(ends) if high > low]
    found = summarise(((acts[span], digests[span]) for span in spans), EVERY, keep=keep)
    assert found is not None
    return found


@pytest.fixture(autouse=True, scope="module")
def few_at_once() -> Iterator[None]:
    """Let rows be taken in several portions, as those of large sets are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("idness.detectors.statistics.AT_ONCE", 32)
        yield


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(1)


@pytest.fixture(scope="module")
def signed() -> World:
    return make_world(2, signed=True)


@given(st.lists(st.integers(0, 10_000), max_size=6))
def test_moments_of_parts_are_those_of_the_whole(cuts: list[int]) -> None:
    rows_, labels = torch.randn(90, 7, generator=torch.Generator().manual_seed(3)) * 5 + 40, torch.arange(90) % 4
    acts = Activations(rows_, torch.zeros(90, 6), labels)
    found = CLASSES.of(in_parts(acts, hashes(90), cuts).activations)
    exact = rows_.double().numpy()
    means = np.stack([exact[labels.numpy() == label].mean(axis=0) for label in range(4)])
    centred = exact - means[labels.numpy()]
    assert found.count == 90
    assert found.present.tolist() == [True] * 4 + [False] * 2
    assert np.allclose(found.means[:4], means, rtol=1e-12)
    assert np.allclose(found.mean, exact.mean(axis=0), rtol=1e-12)
    assert np.allclose(found.within(), centred.T @ centred / 90, rtol=1e-9, atol=1e-9)
    assert np.allclose(found.around(found.mean), np.cov(exact.T, ddof=0), rtol=1e-9, atol=1e-9)
    shifted = exact - 3.0
    assert np.allclose(found.around(torch.full((7,), 3.0)), shifted.T @ shifted / 90, rtol=1e-9)


@given(
    st.lists(st.floats(-(2.0**90), 2.0**90, width=32), min_size=1, max_size=60),
    st.lists(st.floats(-(2.0**90), 2.0**90, width=32), min_size=1, max_size=60),
    st.floats(0, 100),
)
def test_percentiles_of_counts_are_near_a_value_of_that_rank(
    one: list[float], other: list[float], percent: float
) -> None:
    merged = Counts.of(torch.tensor(one)).merged(Counts.of(torch.tensor(other)))
    together = Counts.of(torch.tensor(one + other))
    assert torch.equal(merged.bins, together.bins)
    assert torch.equal(merged.counts, together.counts)
    [found] = merged.percentiles([percent])
    values = np.array(one + other, dtype=np.float64)
    exact = np.percentile(values, percent)
    assert abs(float(found) - exact) <= STEP * np.abs(values).max() + 1e-37


def test_percentiles_of_many_values_are_those_of_numpy(world: World, signed: World) -> None:
    percents = [1.0, 10.0, 60.0, 85.0, 90.0, 99.0, 99.9]
    for acts in (world.train, signed.train):
        found = torch.stack(Counts.of(acts.features).percentiles(percents)).numpy()
        exact = np.percentile(acts.features.numpy(), percents)
        assert np.allclose(found, exact, rtol=STEP, atol=1e-6)
    assert Counts.of(torch.tensor([0.0, 0.0, 0.0, 5.0])).percentiles([50.0])[0] == 0


@given(st.lists(st.integers(0, 10_000), max_size=5))
def test_a_sample_is_the_same_however_the_set_is_divided(cuts: list[int]) -> None:
    acts, digests = make_world(4, count=40).train, hashes(120)
    whole, parts = in_parts(acts, digests, [], keep=20), in_parts(acts, digests, cuts, keep=20)
    assert torch.equal(whole.sample.features, parts.sample.features)
    assert torch.equal(whole.digests, parts.digests)
    assert whole.sample.labels is not None
    assert torch.bincount(whole.sample.labels).tolist() == [4] * 5  # as many of each class
    order = digests[:, :8].contiguous().view(torch.int64).squeeze(1)
    for label in range(5):
        own = order[acts.labels == label].sort().values[:4]
        kept = whole.digests[whole.sample.labels == label][:, :8].contiguous().view(torch.int64).squeeze(1)
        assert torch.equal(kept.sort().values, own)


def test_without_labels_the_sample_is_of_all() -> None:
    acts = make_world(4, count=40).train
    found = in_parts(Activations(acts.features, acts.logits), hashes(120), [50], keep=20)
    assert len(found.sample) == 20
    assert {"features", "values", "predicted", "profile"} == set(found.statistics)


@pytest.mark.parametrize("method", LEARNS_ALL)
def test_methods_learn_the_same_from_statistics_in_parts(method: str, world: World) -> None:
    train = world.train
    kept = in_parts(train, hashes(len(train)), [100, 300, 301]).activations
    direct, summed = (build(method).fit(world.head, acts).score(world.test).double() for acts in (train, kept))
    # Percentiles have a stated error, all else is exact.
    close = 3e-3 if VALUES in available()[method].statistics else 1e-6
    assert (direct - summed).abs().max() <= close * direct.abs().max()


ONLY = [name for name in LEARNS_ALL if name not in ("cadref", "vim")]


@pytest.mark.parametrize("method", ONLY)
def test_a_method_learns_what_it_declares_and_nothing_else(method: str, world: World) -> None:
    """Whatever the kept images are, methods that learn statistics do not look at them; two take one number from them."""
    summary = in_parts(world.train, hashes(len(world.train)), [200]).activations
    noise = torch.rand(50, summary.features.shape[1], generator=torch.Generator().manual_seed(0))
    labels = None if summary.labels is None else torch.arange(50) % 5
    other = Activations(noise, world.head(noise), labels, whole=summary.whole)
    direct, blind = (build(method).fit(world.head, acts).score(world.test) for acts in (summary, other))
    assert torch.equal(direct, blind)


@pytest.mark.parametrize("row", [name for name, detector in rows().items() if detector.needs_train])
def test_every_method_takes_a_sample_that_knows_the_whole(row: str, world: World) -> None:
    detector: Detector = rows()[row]
    kept = in_parts(world.train, hashes(len(world.train)), [200], keep=300).activations
    scores = detector.fit(world.head, kept).score(world.test)
    assert torch.isfinite(scores).all()
    assert kept.sampled(slice(10)).whole is kept.whole
    assert kept[:10].whole is None


def test_a_statistic_that_was_not_kept_is_told(world: World) -> None:
    bare = replace(world.train, whole=Whole(1000, {}))
    with pytest.warns(IdnessWarning, match="classes: is not among the statistics that were kept"):
        found = CLASSES.of(bare)
    assert torch.equal(found.means, CLASSES.of(world.train).means)


def test_unlike_summaries_are_not_merged(world: World) -> None:
    one = Summary.of(world.train, hashes(len(world.train)), [VALUES])
    other = Summary.of(world.val, hashes(len(world.val)), [FEATURES])
    with pytest.raises(InputError, match="of one network, with the same statistics"):
        one.merged(other)


def test_what_is_saved_is_read_back(world: World) -> None:
    found = in_parts(world.train, hashes(len(world.train)), [77])
    again = Summary.of_sample(found.activations, found.digests, EVERY, keep=found.keep)
    assert again.count == found.count == len(world.train)
    assert set(again.tensors()) == set(found.tensors())
    assert all(torch.equal(again.tensors()[name], value) for name, value in found.tensors().items())
    assert torch.equal(
        Moments.of_tensors(found.statistics["profile"].tensors()).means, PROFILE.of(found.activations).means
    )
