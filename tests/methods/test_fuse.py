import warnings

import numpy as np
import pytest
import torch

from idness.core.errors import IdnessWarning, OptionError
from idness.detectors.registry import parse, short
from idness.methods import EBO, KNN, VRA, Fuse
from idness.methods.fuse import FOR_FEW, FOR_MANY, FOR_SIGNED, MANY, RECIPES
from tests.worlds import make_world


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


@pytest.mark.parametrize(
    ("kind", "recipe", "parts"),
    [
        ({}, FOR_FEW, "vra+ras+actsub+vim"),
        ({"classes": MANY, "count": 300}, FOR_MANY, "vra+actsub+vim+nci"),
        ({"signed": True}, FOR_SIGNED, "nnguide+ras+knn+vim"),
    ],
)
def test_the_parts_are_chosen_by_the_network_and_saved(kind, recipe, parts):
    known, other = make_world(**kind), make_world(signed="signed" not in kind)
    fuse = Fuse().fit(other.head, other.train, val=other.val).fit(known.head, known.train, val=known.val)
    assert ("+".join(part.name for part in fuse.used), short(fuse)) == (parts, "fuse")
    slow = np.zeros(len(known.test))
    for text, (weight, cap) in RECIPES[recipe].items():  # a place in RECIPES is saved
        part = parse(text).fit(known.head, known.train, val=known.val)
        seen, scores = (part.score(acts).double() for acts in (known.val, known.test))
        slow += weight * ((scores - seen.mean()) / seen.std(correction=0)).clamp(max=cap).numpy()
    np.testing.assert_allclose(fuse.score(known.test).numpy(), slow, rtol=1e-3, atol=1e-3)
    again = Fuse().load_state(known.head, fuse.state())
    assert torch.equal(again.score(known.test), fuse.score(known.test))


@pytest.mark.parametrize(("signed", "part"), [(False, VRA(low=60, high=99)), (True, EBO())])
def test_with_few_images_one_part_is_used_alone(signed, part):
    known = make_world(signed=signed)
    few = known.val[:60]
    with pytest.warns(IdnessWarning, match=f"30 ID images to learn from are too few.* more than {part.name}"):
        fuse = Fuse().fit(known.head, few)
    alone = part.fit(known.head, few[::2], val=few[1::2]).score(known.test)
    assert torch.equal(fuse.score(known.test).argsort(), alone.argsort())


def test_images_of_one_class_are_too_few_classes(world):
    one_class = world.train[world.train.logits.argmax(dim=1) == 0]
    with pytest.warns(IdnessWarning, match="of too few classes, for more than vra"):
        Fuse().fit(world.head, one_class)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Fuse().fit(world.head, world.train)
        Fuse(parts="knn(k=5)").fit(world.head, one_class)
