import warnings

import numpy as np
import pytest
import torch

from idness.core.errors import IdnessWarning, InputError, OptionError
from idness.methods import EBO, KNN, VRA, Fuse


@pytest.mark.parametrize("given", ["both", "train", "val"])
def test_each_part_counts_in_standard_deviations_of_images_it_did_not_learn_from(world, given):
    one, other = {
        "both": (world.train, world.val),
        "train": (world.train[::2], world.train[1::2]),
        "val": (world.val[::2], world.val[1::2]),
    }[given]
    slow = np.zeros(len(world.test))
    for part in (EBO(), KNN(k=7)):
        part.fit(world.head, one, val=other)
        seen = part.score(other).double().numpy()
        slow += (part.score(world.test).double().numpy() - seen.mean()) / seen.std()
    train = world.train if given != "val" else None
    fuse = Fuse(parts="ebo+knn(k=7)").fit(world.head, train, val=world.val if given != "train" else None)
    np.testing.assert_allclose(fuse.score(world.test).numpy(), slow, rtol=1e-3, atol=1e-3)


def test_parts_may_be_texts_or_detectors_and_are_copied(world):
    part = KNN(k=7)
    fuse = Fuse(parts=(EBO(), part)).fit(world.head, world.train, val=world.val)
    assert not part.fitted
    assert fuse.options() == {"parts": "ebo(temperature=1)+knn(k=7)"}
    same = Fuse(parts=["ebo", "knn(k=7)"]).fit(world.head, world.train, val=world.val)
    assert torch.equal(fuse.score(world.test), same.score(world.test))


@pytest.mark.parametrize("bad", ["", "fuse", "ebo+fuse", 3, ("ebo", 3), "nosuch"])
def test_what_is_no_method_is_refused(bad):
    with pytest.raises((OptionError, KeyError), match=r"Fuse|unknown method"):
        Fuse(parts=bad)


def test_with_few_images_only_parts_that_need_next_to_none_are_used(world):
    few = world.val[:60]
    with pytest.warns(IdnessWarning, match="30 ID images to learn from are too few.* for actsub, vim"):
        fuse = Fuse().fit(world.head, few)
    # One part alone orders images as it does by itself.
    alone = VRA(low=60, high=99).fit(world.head, few[::2], val=few[1::2]).score(world.test)
    assert torch.equal(fuse.score(world.test).argsort(), alone.argsort())
    again = Fuse().load_state(world.head, fuse.state())
    assert torch.equal(again.score(world.test), fuse.score(world.test))


def test_images_of_one_class_are_too_few_classes(world):
    rows = world.train.logits.argmax(dim=1) == 0
    one_class = world.train[rows]
    assert len(one_class) >= 100
    with pytest.warns(IdnessWarning, match="of too few classes, for actsub, vim"):
        Fuse().fit(world.head, one_class)
    with pytest.raises(
        InputError,
        match=r"needs at least 100 ID images of all classes, got \d+ images that the network assigns to 1 of",
    ):
        Fuse(parts="knn(k=5)").fit(world.head, one_class)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Fuse().fit(world.head, world.train)
