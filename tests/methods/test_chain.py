import numpy as np
import pytest
import torch

from idness.core.errors import OptionError
from idness.detectors.detector import fit_many
from idness.methods import DICE, Chain, ReAct, Scale, chain
from tests.methods.slow import check_shaped


def test_dice_after_react_learns_from_clipped_features(world):
    detector = Chain(steps="react(percentile=80)+dice(percentile=40)").fit(world.head, world.train, val=world.val)
    clip = np.percentile(world.val.features.numpy(), 80)
    seen = world.train.features.numpy().clip(max=clip)
    contribution = seen.mean(axis=0) * world.head.weight.numpy()
    weight = np.where(contribution > np.percentile(contribution, 40), world.head.weight.numpy(), 0)
    check_shaped(detector, world, lambda row: [min(a, clip) for a in row], weight=weight)
    alone = DICE(percentile=40).fit(world.head, world.train)
    assert not torch.equal(detector.steps[1].weight_, alone.weight_)


def test_steps_come_as_text_detectors_or_configurations(world):
    given = [
        "react(percentile=80)+scale(percentile=65)",
        [ReAct(percentile=80), Scale(percentile=65)],
        [ReAct(percentile=80).config(), "scale(percentile=65)"],
    ]
    scores = [Chain(steps=steps).fit(world.head, world.train).score(world.test) for steps in given]
    assert torch.equal(scores[0], scores[1])
    assert torch.equal(scores[0], scores[2])


def test_chains_that_begin_alike_share_what_comes_after_and_score_as_alone(world, monkeypatch):
    texts = [f"react(percentile={clip})+dice(percentile={cut})+scale" for clip in (80, 95) for cut in (30, 60)]
    texts += ["react(percentile=80)", "ash+react(percentile=80)"]
    alone = [Chain(steps=text).fit(world.head, world.train, val=world.val).score(world.test) for text in texts]
    seen = []
    after = chain._seen_after
    monkeypatch.setattr(chain, "_seen_after", lambda *words: seen.append(1) or after(*words))
    together = [Chain(steps=text) for text in texts]
    fit_many(together, world.head, world.train, val=world.val)
    for detector, expected in zip(together, alone, strict=True):
        assert torch.equal(detector.score(world.test), expected)
    assert len(seen) == 2 * (2 + 4 + 1)  # of training and validation images: two clips, four cuts, one ASH


def test_two_chains_do_not_share_their_steps(world):
    step = ReAct(percentile=90)
    one, two = Chain(steps=[step]), Chain(steps=[step])
    one.fit(world.head, world.train)
    two.fit(world.head, world.val)
    assert not torch.equal(one.score(world.test), two.score(world.test))


@pytest.mark.parametrize("steps", ["knn", "react+msp", 5, "chain"])
def test_what_edits_nothing_is_no_step(steps):
    with pytest.raises(OptionError, match="Chain: "):
        Chain(steps=steps)
