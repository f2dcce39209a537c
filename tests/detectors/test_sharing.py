import pytest
import torch

from idness.detectors import sharing as module
from idness.detectors.detector import fit_many
from idness.detectors.gaussian import principal_axes
from idness.detectors.sharing import shared, sharing
from idness.methods import MDS, RMDS, Residual, ViM
from tests.worlds import make_world


@pytest.fixture
def calls(monkeypatch):
    """Counts the calls of a shared function."""
    made = []

    @shared
    def twice(values, by=2):
        made.append(1)
        return values * by

    return twice, made


def test_within_a_block_the_same_values_are_computed_once_and_outside_each_time(calls):
    twice, made = calls
    with sharing():
        assert twice(torch.ones(3)) is twice(torch.ones(3))
        with sharing():  # a block in a block is part of it
            twice(torch.ones(3))
        twice(torch.ones(3))
    assert len(made) == 1
    for count in (2, 3):
        twice(torch.ones(3))
        assert len(made) == count


@pytest.mark.parametrize("other", [torch.zeros(3), torch.ones(3, 1), torch.ones(3).double()])
def test_other_values_shapes_and_types_are_not_the_same(calls, other):
    twice, made = calls
    with sharing():
        twice(torch.ones(3))
        assert torch.equal(twice(other), other * 2)
        assert torch.equal(twice(torch.ones(3), by=3), torch.full((3,), 3.0))
    assert len(made) == 3


def test_lists_are_the_same_where_their_parts_are():
    made = []

    @shared
    def total(values, weights):
        made.append(1)
        return sum(value * weight for value, weight in zip(values, weights, strict=True))

    with sharing():
        total([torch.ones(2), torch.ones(3)[:2]], [1, 2])
        total((torch.ones(2), torch.ones(2)), (1, 2))
        assert len(made) == 1
        total([torch.ones(2), torch.zeros(2)], [1, 2])
        total([torch.ones(2), torch.ones(2)], [2, 1])
    assert len(made) == 3


def test_values_that_were_changed_in_place_are_others(calls):
    twice, _ = calls
    values = torch.ones(3)
    with sharing():
        twice(values)
        assert torch.equal(twice(values.add_(1)), torch.full((3,), 4.0))


def test_only_so_many_results_are_kept_and_an_error_ends_the_block(calls, monkeypatch):
    twice, made = calls
    monkeypatch.setattr(module, "MOST", 2)
    with pytest.raises(KeyError), sharing():
        for value in (1.0, 2.0, 3.0, 3.0, 1.0):
            twice(torch.tensor(value))
        raise KeyError
    assert len(made) == 4
    twice(torch.tensor(1.0))
    assert len(made) == 5


def test_methods_that_need_the_same_axes_find_them_and_score_as_alone(monkeypatch):
    world = make_world(seed=3)
    solved = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: solved.append(1) or eigh(matrix))
    together = [MDS(), RMDS(), Residual(), ViM()]
    fit_many(together, world.head, world.train)
    assert len(solved) == 3  # around class means, around the common mean, and around the origin
    alone = [type(detector)().fit(world.head, world.train) for detector in together]
    assert len(solved) == 3 + 1 + 2 + 1 + 1
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.score(world.test), other.score(world.test))
    principal_axes(torch.eye(3).double())
    assert len(solved) == 9
