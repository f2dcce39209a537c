from __future__ import annotations

import pytest
import torch

from idness.core.errors import InputError
from idness.core.types import Activations, Head
from idness.detectors.registry import rows
from idness.metrics import auroc
from idness.selection.auto import compare
from tests.worlds import World, make_world


def beside_the_head(count: int = 200) -> World:
    """A world in which OOD images differ only where the head does not look: logits say nothing, distances all."""
    rng = torch.Generator().manual_seed(0)
    patterns = torch.cat([4 * torch.eye(5), torch.zeros(5, 11)], dim=1)
    head = Head(patterns)

    def acts(number: int, elsewhere: float) -> Activations:
        labels = torch.arange(number) % 5
        features = patterns[labels] + torch.rand(number, 16, generator=rng)
        features[:, 5:] += elsewhere
        return Activations(features, head(features), labels)

    return World(head, acts(3 * count, 0.0), acts(count, 0.0), acts(count, 0.0), acts(count, 3.0))


def test_the_method_that_separates_best_is_taken() -> None:
    world = beside_the_head()
    found = compare(world.head, world.train, world.test, world.ood)
    assert found.detector.needs_train  # logits alone say nothing here
    found.detector.fit(world.head, world.train)
    assert auroc(found.detector.score(world.test), found.detector.score(world.ood)) > 0.99


@pytest.mark.parametrize("seed", [0, 1])
def test_no_method_as_it_comes_would_have_been_better(seed: int) -> None:
    world = make_world(seed)
    found = compare(world.head, world.train, world.test, world.ood)
    reached = {}
    for name, detector in {**rows(), "chosen": found.detector}.items():
        detector.fit(world.head, world.train, val=world.test)
        reached[name] = auroc(detector.score(world.test), detector.score(world.ood))
    assert reached["chosen"] == max(reached.values())
    assert reached["chosen"] > min(reached.values())
    assert f"AUROC {100 * reached['chosen']:.2f} %" in found.why


def test_what_cannot_be_tried_is_said() -> None:
    world = make_world()
    bare = Activations(world.train.features, world.train.logits)
    found = compare(world.head, bare, world.test, world.ood)
    unlabelled = {name for name, detector in rows().items() if detector.needs_labels and not detector.needs_val}
    assert {"mds", "rmds"} <= {text.partition(":")[0] for text in found.left_out} == unlabelled
    with pytest.raises(InputError, match="at least one image"):
        compare(world.head, world.train, world.test, world.ood[:0])
