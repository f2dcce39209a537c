import pytest
import torch

from idness.detectors import gaussian
from idness.detectors import sharing as module
from idness.detectors.detector import fit_many, score_many
from idness.detectors.gaussian import principal_axes
from idness.detectors.sharing import grouped, shared, sharing
from idness.methods import MDS, MDSPP, RMDS, RMDSPP, Residual, ViM
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


def test_what_is_known_of_a_tensor_is_looked_up_while_it_lives(calls, monkeypatch):
    twice, made = calls
    hashed, digest = [], module.hashlib.sha256
    monkeypatch.setattr(module.hashlib, "sha256", lambda *given, **named: hashed.append(1) or digest(*given, **named))
    values = torch.ones(3)
    with sharing():
        twice(values)
        twice(values)
        assert len(hashed) == 1
        twice(values.mul_(2))
        assert len(hashed) == len(made) == 2
        with torch.inference_mode():
            uncounted = torch.ones(3)  # torch does not count the changes of such a tensor
            twice(uncounted)
            assert torch.equal(twice(uncounted.add_(4)), torch.full((3,), 10.0))


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
    principal_axes(torch.eye(3).double())
    assert len(solved) == 9


def test_methods_that_need_the_same_distances_compute_them_once(monkeypatch):
    world = make_world(seed=3)
    asked, nearest = [], gaussian.nearest_squared
    monkeypatch.setattr(gaussian, "nearest_squared", lambda *given: asked.append(1) or nearest(*given))
    together = [MDS(), RMDS(), MDSPP(), RMDSPP()]
    fit_many(together, world.head, world.train)
    with sharing():
        found = score_many(together, world.test)
    assert len(asked) == 2  # of features as they are, and of their directions
    for one, scores in zip(together, found, strict=True):
        assert torch.equal(scores, one.score(world.test))


def test_groups_keep_their_order():
    assert grouped([3, 1, 4, 1, 5], lambda number: number % 2) == [[3, 1, 1, 5], [4]]
