"""Networks that end in more than a linear layer: the true logits and head are recovered, or the network is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from idness import Guard
from idness.core.errors import InputError, ModelError
from idness.networks.split import SplitModel
from tests.networks.endings import BINARY, CLASSES, REFUSED, TAKEN, Ends, cosine, logits, pooled


@pytest.mark.parametrize("kind", TAKEN)
@pytest.mark.parametrize("classes", [CLASSES, 2])
def test_logits_and_head_are_recovered(kind: str, classes: int) -> None:
    end, expected = TAKEN[kind]
    model = Ends(end, classes).eval()
    images = torch.randn(6, 3, 9, 9)
    split = SplitModel(model)
    acts = split.split(images)
    with torch.no_grad():
        wanted = expected(model, model.maps(images))
    torch.testing.assert_close(acts.logits, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(split.head(acts.features), wanted, rtol=1e-5, atol=1e-5)
    assert split.classes == classes
    assert split.width == acts.features.shape[1] == split.head.width


@pytest.mark.parametrize("kind", BINARY)
def test_a_single_output_is_shown_as_two_classes(kind: str) -> None:
    model = Ends(BINARY[kind], classes=1).eval()
    images = 2 * torch.randn(8, 3, 9, 9)
    split = SplitModel(model)
    acts = split.split(images)
    with torch.no_grad():
        answer = pooled(model.conv(model.maps(images))) if kind == "convolution" else logits(model, model.maps(images))
    assert split.classes == 2
    torch.testing.assert_close(acts.logits.softmax(dim=1)[:, 1:], answer.sigmoid())
    torch.testing.assert_close(split.head(acts.features), acts.logits, rtol=1e-5, atol=1e-6)
    # A sure no is as sure as a sure yes.
    torch.testing.assert_close(acts.logits.sum(dim=1), torch.zeros(8), rtol=0, atol=1e-6)


def test_a_named_layer_that_is_not_the_output_is_refused() -> None:
    squashed = Ends(lambda net, maps: torch.tanh(net.other(torch.relu(net.fc(pooled(maps)) @ net.prototypes))))
    for layer in ("other", "fc"):
        with pytest.raises(ModelError, match=f"Ends returns 5 outputs that are not those of layer '{layer}'"):
            SplitModel(squashed, layer)
    with pytest.raises(ModelError, match="Ends returns 5 outputs that are not those of layer 'other'"):
        SplitModel(Ends(logits), "other")


@pytest.mark.parametrize("kind", REFUSED)
def test_other_endings_are_refused_unless_their_output_is_taken_as_features(kind: str, tmp_path: Path) -> None:
    model = REFUSED[kind]().eval()
    with pytest.raises(ModelError, match=r"5 outputs that are not those of a linear layer.*; pass layer='@logits'"):
        SplitModel(model)
    images = torch.randn(60, 3, 9, 9)
    acts = SplitModel(model, "@logits").split(images)
    torch.testing.assert_close(acts.logits, model(images).detach())
    assert torch.equal(acts.features, acts.logits)
    guard = Guard(model, "mls", layer="@logits").calibrate([images])
    again = Guard.load(guard.save(tmp_path / "guard", bundle=True), model)
    assert torch.equal(again(images).score, model(images).amax(dim=1).detach())


NO_LOGITS = "does not return one row of logits per image"


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (lambda net, maps: net.conv(maps), NO_LOGITS),
        (lambda net, maps: logits(net, maps).argmax(dim=1), NO_LOGITS),
        (lambda net, maps: [str(logits(net, maps))], NO_LOGITS),
        (
            lambda net, maps: (logits(net, maps), net.other(pooled(maps))),
            "2 heads; choose one: layer='fc', layer='other'",
        ),
    ],
    ids=["map", "label", "text", "two tasks"],
)
def test_what_holds_no_logits_is_refused(end: Callable[[Any, Tensor], Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        SplitModel(Ends(end))


def test_of_several_heads_one_can_be_named() -> None:
    model, images = Ends(lambda net, maps: (logits(net, maps), net.other(pooled(maps)))).eval(), torch.randn(4, 3, 9, 9)
    for place, layer in enumerate(("fc", "other")):
        torch.testing.assert_close(SplitModel(model, layer).split(images).logits, model(images)[place].detach())


def test_an_output_that_is_not_as_it_was_when_probed_is_told() -> None:
    model = Ends(lambda net, maps: logits(net, maps).clamp(max=10))
    split = SplitModel(model)
    with pytest.raises(ModelError, match="output for these images does not follow from its layer 'fc'"):
        split.split(1e4 * torch.randn(8, 3, 9, 9))


def test_weights_are_read_as_they_are_now() -> None:
    for end in (logits, cosine):
        model = Ends(end).eval()
        split = SplitModel(model)
        with torch.no_grad():
            for own in (model.fc.weight, model.prototypes):
                own[0] += 1
        acts = split.split(torch.randn(4, 3, 9, 9))
        torch.testing.assert_close(split.head(acts.features), acts.logits, rtol=1e-5, atol=1e-5)


class Remembering(Ends):
    """Remembers the sizes of the images it has seen, as some transformers do."""

    def forward(self, images: Tensor) -> Tensor:
        self.sizes.append(images.shape[-1])
        return super().forward(images)


def test_probing_leaves_what_a_network_remembers_as_it_was() -> None:
    model = Remembering(logits)
    model.sizes = []
    split = SplitModel(model)
    assert model.sizes == []
    split.split(torch.rand(2, 3, 20, 20))
    assert model.sizes == [20]


def test_the_size_is_taken_from_where_networks_say_it() -> None:
    class Fixed(nn.Module):
        """A network for images of one size, which its configuration declares."""

        def __init__(self, **said: Any) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Flatten(), nn.Linear(2 * 40 * 48, CLASSES))
            self.first = nn.Conv2d(2, 2, 1)
            for name, value in said.items():
                setattr(self, name, value)

        def forward(self, images: Tensor) -> Tensor:
            return self.inner(self.first(images))

    hugging = SimpleNamespace(image_size=[40, 48], num_channels=2)
    for said in ({"config": hugging}, {"default_cfg": {"input_size": (2, 40, 48)}}, {"image_size": (40, 48)}):
        assert SplitModel(nn.Sequential(Fixed(**said))).layer == "0.inner.1"
    with pytest.raises(ModelError, match="could not be probed"):
        SplitModel(Fixed())
    assert SplitModel(Fixed(), example=torch.rand(2, 2, 40, 48)).layer == "inner.1"


def test_several_labels_are_noticed_or_named() -> None:
    several, one = Ends(lambda net, maps: logits(net, maps).sigmoid()), Ends(logits)
    assert SplitModel(several).head.multi_label
    assert not SplitModel(several, multi_label=False).head.multi_label
    assert not SplitModel(one).head.multi_label
    assert SplitModel(one, multi_label=True).head.multi_label
    one.config = SimpleNamespace(problem_type="multi_label_classification")
    assert SplitModel(nn.Sequential(one)).head.multi_label
    assert not SplitModel(Ends(BINARY["sigmoid"], classes=1), multi_label=True).head.multi_label


def test_a_guard_of_several_labels_reads_each_for_itself(tmp_path: Path) -> None:
    model, images = Ends(lambda net, maps: logits(net, maps).sigmoid()), torch.randn(60, 3, 9, 9)
    guard = Guard(model, "ebo").calibrate([images])
    answers = logits(model.eval(), model.maps(images)).detach()
    expected = [sum(math.log1p(math.exp(answer)) for answer in row) for row in answers.tolist()]
    torch.testing.assert_close(guard(images).score, torch.tensor(expected), rtol=1e-5, atol=1e-5)
    again = Guard.load(guard.save(tmp_path / "guard"), model)
    assert again.split.multi_label
    with pytest.raises(ModelError, match="was calibrated with another network"):
        Guard.load(tmp_path / "guard", Ends(logits))
    torch.testing.assert_close(again(images).score, guard(images).score)
    for method, read in (("msp", lambda rows: rows.sigmoid().amax(dim=1)), ("mls", lambda rows: rows.amax(dim=1))):
        found = Guard(model, method).calibrate([images])(images).score
        torch.testing.assert_close(found, read(answers), rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="GEN: requires one class per image, but the network is multi-label"):
        Guard(model, "gen").calibrate([images])


@pytest.mark.parametrize("classes", [1, CLASSES])
def test_scores_that_are_all_the_same_stop_calibration(classes: int) -> None:
    model = Ends(lambda net, maps: net.fc(0 * pooled(maps)), classes)
    said = r"calibrate: msp gives all 60 in-distribution images nearly the same score .* no image could be flagged"
    guard = Guard(model, "msp", layer="fc")
    with pytest.raises(InputError, match=said):
        guard.calibrate([torch.randn(60, 3, 9, 9)])
    assert guard.calibration is None
