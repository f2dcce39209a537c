import numpy as np
import pytest
import torch

from idness.core.types import Head
from idness.detectors import pruning

WIDTH = 40


def rows(seed):
    """Signed rows, rows with many zeros, rows with many equals, also at the limit."""
    found = torch.randn(300, WIDTH, generator=torch.Generator().manual_seed(seed))
    found[100:200] = found[100:200].clamp(min=0)
    found[200:] = (3 * found[200:]).round()
    return found


def a_head(classes, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return Head(torch.randn(classes, WIDTH, generator=rng), torch.randn(classes, generator=rng))


def sets(mask):
    return [set(np.flatnonzero(row)) for row in mask.numpy()]


def test_the_mask_keeps_exactly_so_many():
    features = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 3.0]])
    assert pruning.top_mask(features, 2).sum(dim=1).tolist() == [2, 2]
    assert bool(pruning.top_mask(features, 2)[1, 3])


@pytest.mark.parametrize("kept", [1, 7, 39, 40])
def test_the_mask_is_that_of_top_k_wherever_the_largest_are_clear(kept):
    features = rows(kept)
    found, expected = pruning.top_mask(features, kept), pruning.mask_plain(features, kept)
    assert found.sum(dim=1).tolist() == [kept] * len(features)
    assert torch.equal(found[:100], expected[:100])
    kept_values = [torch.where(mask, features, -99.0).sort(dim=1).values for mask in (found, expected)]
    assert torch.equal(*kept_values)


@pytest.mark.parametrize("kept", [1, 7, 39, 40])
def test_pruning_keeps_as_many_as_top_k_also_among_equals(kept):
    features = rows(kept)
    found = pruning.pruned(features, kept)
    expected = torch.where(pruning.mask_plain(features, kept), features, 0.0)
    torch.testing.assert_close(found.sort(dim=1).values, expected.sort(dim=1).values, rtol=0, atol=0)
    torch.testing.assert_close(found[:100], expected[:100], rtol=0, atol=0)


@pytest.mark.parametrize("classes", [5, pruning.CLASSES])
@pytest.mark.parametrize("counts", [[4], [1, 4, 10, 11, 40]])
def test_products_of_what_is_kept_are_those_of_the_pruned_rows(classes, counts, monkeypatch):
    """Whether columns are added up, for few features and many classes, or not; in one part or in several."""
    features, head = rows(1).abs(), a_head(classes)
    features[:, 0] += 1e-3 * torch.arange(len(features))  # the signed rows have no equals
    monkeypatch.setattr(pruning, "AT_ONCE", 64 * WIDTH)
    for part in pruning.blocks(features):
        found = pruning.kept_products(part, head, counts)
        assert list(found) == counts
        for kept, (product, top) in found.items():
            rest = pruning.pruned(part, kept).double()
            torch.testing.assert_close(product.double(), rest @ head.weight.double().T, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(top.double(), rest.sum(dim=1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "row", [[3.0, 3.0, 3.0, 2.0], [5.0, 0.0, 0.0, 0.0], [5.0, 3.0, 3.0, 2.0], [5.0, 4.0, 2.0, 2.0]]
)
@pytest.mark.parametrize("other", [[9.0, 8.0, 7.0, 6.0], [9.0, 8.0, 8.0, 6.0], [9.0, 8.0, 7.0, 7.0]])
def test_a_row_with_equals_or_zeros_at_its_limit_does_not_shift_the_others(row, other):
    """One has more between two limits, another fewer: counted together they may be as many as are wanted."""
    features = torch.zeros(2, WIDTH)
    features[0, :4], features[1, 4:8] = torch.tensor(row), torch.tensor(other)
    head = a_head(pruning.CLASSES)
    for kept, (product, top) in pruning.kept_products(features, head, [2, 3, 1]).items():
        rest = pruning.pruned(features, kept)
        # Of equals any may be kept: the sums say how many were, and the products that each row has its own.
        torch.testing.assert_close(top, rest.sum(dim=1))
        alone = [pruning.kept_products(each, head, [kept])[kept][0] for each in features.split(1)]
        torch.testing.assert_close(product, torch.cat(alone))


def test_columns_are_added_up_where_that_is_less_work(monkeypatch):
    calls = []
    plain = pruning.embedding_bag
    monkeypatch.setattr(pruning, "embedding_bag", lambda *words, **more: calls.append(1) or plain(*words, **more))
    features = torch.rand(50, WIDTH, generator=torch.Generator().manual_seed(0))
    for classes, kept, times in ((pruning.CLASSES, 10, 1), (pruning.CLASSES, 11, 0), (pruning.CLASSES - 1, 10, 0)):
        calls.clear()
        pruning.kept_products(features, a_head(classes), [kept])
        assert len(calls) == times
    calls.clear()
    pruning.kept_products(features, a_head(pruning.CLASSES), [4, 8, 18, 28, 39])  # the last is too much more
    assert len(calls) == 4


def test_what_exceeds_a_limit_is_multiplied_with_the_head(monkeypatch):
    features, head = rows(2), a_head(pruning.CLASSES)
    features[7] = 0.0  # nothing of it does
    monkeypatch.setattr(pruning, "AT_ONCE", 64 * WIDTH)
    found = pruning.excess_products(features, head, torch.tensor(3.0))
    expected = (features - 3.0).clamp(min=0).double() @ head.weight.double().T
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    none = pruning.excess_products(features, head, torch.tensor(1e3))
    assert torch.equal(none, torch.zeros(len(features), pruning.CLASSES))


def test_much_that_exceeds_a_limit_or_exceeds_it_far_is_left_to_the_whole_product():
    head, features = a_head(pruning.CLASSES), torch.rand(20, WIDTH, generator=torch.Generator().manual_seed(0))
    assert pruning.excess_products(features, head, torch.tensor(0.9)) is not None
    assert pruning.excess_products(features, head, torch.tensor(0.5)) is None
    assert pruning.excess_products(features, a_head(5), torch.tensor(0.9)) is None
    features[3, 3] = 0.9 * pruning.FAR + 0.1
    assert pruning.excess_products(features, head, torch.tensor(0.9)) is None
    features[3, 3] = torch.inf
    assert pruning.excess_products(features, head, torch.tensor(0.9)) is None


def test_where_gradients_flow_torch_alone_is_used():
    features, head = rows(3).requires_grad_(), a_head(pruning.CLASSES)
    assert pruning.excess_products(features, head, torch.tensor(1.5)) is None
    product, _ = pruning.kept_products(features, head, [5])[5]
    product.sum().backward()
    assert (features.grad != 0).sum(dim=1).max() <= 5
