from __future__ import annotations

import numpy as np
import pytest
import torch

from idness.core.errors import InputError
from idness.core.types import Activations, Head, check_match


def test_arrays_and_any_float_become_float32_tensors():
    acts = Activations(np.ones((2, 3)), torch.ones(2, 4).bfloat16(), np.array([1, 0]))
    assert acts.features.dtype == acts.logits.dtype == torch.float32
    assert acts.labels is not None
    assert acts.labels.dtype == torch.int64
    assert len(acts) == 2


@pytest.mark.parametrize(
    ("features", "logits", "labels", "message"),
    [
        (torch.ones(2, 3).long(), torch.ones(2, 4), None, "features must be floating point, got torch.int64"),
        (torch.ones(3), torch.ones(2, 4), None, r"features must be a matrix .* got shape \(3,\)"),
        (torch.ones(2, 0), torch.ones(2, 4), None, "features must be a matrix"),
        (torch.ones(2, 3), torch.ones(3, 4), None, "logits must have 2 rows, like features, got 3"),
        (torch.ones(2, 3), torch.ones(2, 4), torch.ones(2), "labels must be 2 integers, got torch.float32"),
        (torch.ones(2, 3), torch.ones(2, 4), torch.ones(3).long(), r"2 integers, got torch.int64 of shape \(3,\)"),
        (torch.ones(2, 3), torch.ones(2, 4), torch.ones(2).bool(), "labels must be 2 integers, got torch.bool"),
    ],
)
def test_what_does_not_fit_is_refused(features, logits, labels, message):
    with pytest.raises(InputError, match=message):
        Activations(features, logits, labels)


def test_rows_can_be_selected_and_joined():
    acts = Activations(torch.arange(10.0).reshape(5, 2), torch.zeros(5, 3), torch.arange(5))
    parts = list(acts.batches(2))
    assert [len(part) for part in parts] == [2, 2, 1]
    again = Activations.concat(parts)
    assert torch.equal(again.features, acts.features)
    assert torch.equal(again.labels, acts.labels)
    assert acts[acts.labels > 2].labels.tolist() == [3, 4]
    unlabelled = Activations.concat([parts[0], Activations(torch.zeros(1, 2), torch.zeros(1, 3))])
    assert unlabelled.labels is None
    with pytest.raises(InputError, match="is the data set empty"):
        Activations.concat([])


def test_a_head_is_the_linear_layer():
    linear = torch.nn.Linear(3, 2)
    head = Head(linear.weight, linear.bias)
    features = torch.rand(4, 3)
    assert torch.equal(head(features), linear(features).detach())
    assert (head.classes, head.width) == (2, 3)
    assert Head(linear.weight).offset.tolist() == [0.0, 0.0]
    with pytest.raises(InputError, match=r"bias must have one value per class \(2\)"):
        Head(linear.weight, torch.zeros(3))
    with pytest.raises(InputError, match="weight and bias must be finite"):
        Head(torch.full((2, 3), float("nan")))


def test_activations_of_edited_images_are_kept():
    plain, changed = torch.rand(6, 4), torch.rand(6, 4)
    acts = Activations(plain, plain[:, :2], torch.arange(6), Activations(changed, changed[:, :2]))
    parts = list(acts.batches(4))
    again, picked = Activations.concat(parts), acts[torch.tensor([3, 1])].to("cpu")
    assert again.edited is not None
    assert torch.equal(again.edited.features, changed)
    assert picked.edited is not None
    assert torch.equal(picked.edited.features, changed[[3, 1]])
    assert Activations.concat([*parts, Activations(plain, plain[:, :2])]).edited is None
    changed[4, 0] = float("nan")
    assert acts.finite.tolist() == [True, True, True, True, False, True]
    with pytest.raises(InputError, match="edited must have 6 rows, like features, got 5"):
        Activations(plain, plain[:, :2], edited=Activations(changed[:5], changed[:5, :2]))


def test_a_head_that_is_wrong_in_some_classes_is_refused():
    rng = torch.Generator().manual_seed(0)
    head = Head(torch.randn(9, 20, generator=rng), torch.randn(9, generator=rng))
    features = torch.rand(5, 20, generator=rng)
    check_match("fit", "train", Activations(features, head(features).bfloat16()), head)
    wrong = head(features)
    wrong[:, 1:-1] = wrong[:, 1:-1].flip(0)
    with pytest.raises(InputError, match="train logits must match the head's output for these features"):
        check_match("fit", "train", Activations(features, wrong), head)
