"""Networks that end in more than a linear layer: the true logits and head are recovered, or the network is refused."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from idness import Guard
from idness.core.errors import ModelError
from idness.networks.split import SplitModel

CLASSES, WIDTH = 5, 12


class Ends(nn.Module):
    """Computes features of an image, and then what a function makes of the module and them."""

    def __init__(self, end: Callable[[Any, Tensor], Any], classes: int = CLASSES) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, WIDTH, 3), nn.BatchNorm2d(WIDTH), nn.ReLU())
        self.fc, self.other = nn.Linear(WIDTH, classes), nn.Linear(WIDTH, classes)
        self.conv = nn.Conv2d(WIDTH, classes, 1)
        self.register_parameter("prototypes", nn.Parameter(torch.randn(classes, WIDTH)))
        self.end = end

    def maps(self, images: Tensor) -> Tensor:
        return self.body(images)

    def forward(self, images: Tensor) -> Any:
        return self.end(self, self.maps(images))


def pooled(maps: Tensor) -> Tensor:
    return maps.mean(dim=(2, 3))


def logits(net: Any, maps: Tensor) -> Tensor:
    return net.fc(pooled(maps))


def cosine(net: Any, maps: Tensor) -> Tensor:
    return 16 * functional.linear(functional.normalize(pooled(maps)), functional.normalize(net.prototypes))


@dataclass
class Answer:
    """Holds what some networks return."""

    scores: Tensor
    embedding: Tensor


def adjusted(net: Any, maps: Tensor) -> Tensor:
    return logits(net, maps) - torch.linspace(-1, 1, net.fc.out_features)


# Each with what its logits are: the output before a softmax or a sigmoid, and else the output itself.
TAKEN: dict[str, tuple[Callable[[Any, Tensor], Any], Callable[[Any, Tensor], Tensor]]] = {
    "softmax": (lambda net, maps: logits(net, maps).softmax(dim=1), logits),
    "log-softmax": (lambda net, maps: functional.log_softmax(logits(net, maps), dim=-1), logits),
    "sigmoid": (lambda net, maps: logits(net, maps).sigmoid(), logits),
    "temperature": (lambda net, maps: logits(net, maps) / 2.5, lambda net, maps: logits(net, maps) / 2.5),
    "temperature in place": (lambda net, maps: logits(net, maps).div_(3), lambda net, maps: logits(net, maps) / 3),
    "temperature, softmax": (
        lambda net, maps: (logits(net, maps) / 2).softmax(dim=1),
        lambda net, maps: logits(net, maps) / 2,
    ),
    "logit adjustment": (adjusted, adjusted),
    "cosine": (cosine, cosine),
    "cosine, softmax": (lambda net, maps: cosine(net, maps).softmax(dim=1), cosine),
    "1x1 convolution, then mean": (
        lambda net, maps: net.conv(maps).mean(dim=(2, 3)),
        lambda net, maps: pooled(net.conv(maps)),
    ),
    "mean, then 1x1 convolution": (
        lambda net, maps: net.conv(maps.mean(dim=(2, 3), keepdim=True)),
        lambda net, maps: pooled(net.conv(maps)),
    ),
    "matmul": (
        lambda net, maps: pooled(maps) @ net.prototypes.t(),
        lambda net, maps: pooled(maps) @ net.prototypes.t(),
    ),
    "matmul and bias": (
        lambda net, maps: pooled(maps) @ net.prototypes.t() + net.fc.bias,
        lambda net, maps: pooled(maps) @ net.prototypes.t() + net.fc.bias,
    ),
    "functional": (
        lambda net, maps: functional.linear(pooled(maps), net.prototypes, net.fc.bias),
        lambda net, maps: pooled(maps) @ net.prototypes.t() + net.fc.bias,
    ),
    "addmm": (
        lambda net, maps: torch.addmm(net.fc.bias, pooled(maps), net.prototypes.t()),
        lambda net, maps: pooled(maps) @ net.prototypes.t() + net.fc.bias,
    ),
    "features and logits": (lambda net, maps: (pooled(maps), logits(net, maps)), logits),
    "logits and features": (lambda net, maps: (logits(net, maps), pooled(maps)), logits),
    "dictionary": (lambda net, maps: {"embedding": pooled(maps), "prediction": logits(net, maps)}, logits),
    "dictionary with logits": (
        lambda net, maps: {"auxiliary": net.other(pooled(maps)), "logits": logits(net, maps)},
        logits,
    ),
    "dataclass": (lambda net, maps: Answer(logits(net, maps), pooled(maps)), logits),
    "two heads, averaged": (
        lambda net, maps: (logits(net, maps) + net.other(maps.amax(dim=(2, 3)))) / 2,
        lambda net, maps: (logits(net, maps) + net.other(maps.amax(dim=(2, 3)))) / 2,
    ),
    "two heads, averaged, softmax": (
        lambda net, maps: (0.3 * logits(net, maps) + 0.7 * net.other(maps.amax(dim=(2, 3)))).softmax(dim=1),
        lambda net, maps: 0.3 * logits(net, maps) + 0.7 * net.other(maps.amax(dim=(2, 3))),
    ),
    "one layer, two looks": (
        lambda net, maps: (net.fc(pooled(maps)) + net.fc(maps.amax(dim=(2, 3)))) / 2,
        lambda net, maps: (net.fc(pooled(maps)) + net.fc(maps.amax(dim=(2, 3)))) / 2,
    ),
    "every place, then mean": (
        lambda net, maps: net.fc(maps.flatten(2).transpose(1, 2)).mean(dim=1),
        logits,
    ),
}


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


BINARY: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "logit": logits,
    "squeezed": lambda net, maps: logits(net, maps).squeeze(1),
    "sigmoid": lambda net, maps: logits(net, maps).sigmoid(),
    "sigmoid, squeezed": lambda net, maps: logits(net, maps).sigmoid().squeeze(1),
    "convolution": lambda net, maps: pooled(net.conv(maps)),
}


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


def test_a_guard_of_a_single_output_names_two_classes_and_flags() -> None:
    guard = Guard(Ends(logits, classes=1), "gen", class_names=("no", "yes")).calibrate([torch.randn(60, 3, 9, 9)])
    assert guard.calibration is not None
    assert len(guard.calibration.scores.unique()) > 50
    assert guard(torch.randn(400, 3, 9, 9)).is_ood.any()
    assert set(guard(50 * torch.randn(40, 3, 9, 9)).label.tolist()) <= {0, 1}


@pytest.mark.parametrize("first", ["head", "images"])
def test_a_named_layer_is_checked_against_the_output(first: str) -> None:
    class Cosine(Ends):
        """Normalises features and weights itself, and calls its layer by module."""

        def forward(self, images: Tensor) -> Tensor:
            return 16 * self.fc(functional.normalize(pooled(self.maps(images))))

    model, images = Cosine(logits).eval(), torch.randn(6, 3, 9, 9)
    split = SplitModel(model, "fc")
    head = split.head if first == "head" else None
    acts = split.split(images)
    head = head or split.head
    torch.testing.assert_close(acts.logits, model(images).detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(head(acts.features), acts.logits, rtol=1e-5, atol=1e-5)
    assert split.ending == "times 16"


def test_a_named_layer_that_is_not_the_output_is_refused() -> None:
    squashed = Ends(lambda net, maps: torch.tanh(net.other(torch.relu(net.fc(pooled(maps)) @ net.prototypes))))
    for layer in ("other", "fc"):
        with pytest.raises(
            ModelError, match=rf"Ends does not give the output of layer='{layer}'.*drop layer=, or add two"
        ):
            SplitModel(squashed, layer).split(torch.randn(2, 3, 9, 9))
    with pytest.raises(ModelError, match="the layer 'other' was not used for this batch"):
        SplitModel(Ends(logits), "other").split(torch.randn(2, 3, 9, 9))


class Averaged(nn.Module):
    """Averages the probabilities of several networks."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList([Ends(logits) for _ in range(3)])
        for seed, net in enumerate(self.nets):
            torch.manual_seed(seed)
            net.fc.reset_parameters()

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([net(images).softmax(dim=1) for net in self.nets]).mean(dim=0)


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(plain().eval(), torch.rand(1, 3, 9, 9))


def quantized() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(plain().eval(), {nn.Linear})


def plain() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, CLASSES)
    )


def distances(net: Any, maps: Tensor) -> Tensor:
    return -torch.cdist(pooled(maps), net.prototypes)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "squashed": (
        lambda: Ends(lambda net, maps: torch.tanh(logits(net, maps))),
        "changes what its last linear layer 'fc'",
    ),
    "ReLU": (
        lambda: Ends(lambda net, maps: logits(net, maps).relu()),
        "puts a ReLU or the like behind its last layer 'fc'",
    ),
    "convolution, ReLU": (
        lambda: Ends(lambda net, maps: pooled(net.conv(maps).relu_())),
        "puts a ReLU or the like behind its last layer 'conv'",
    ),
    "largest place": (
        lambda: Ends(lambda net, maps: net.conv(maps).amax(dim=(2, 3))),
        "changes what its last linear layer 'conv'",
    ),
    "distances": (lambda: Ends(distances), "ends in no linear layer that gives its 5 outputs"),
    "mean of probabilities": (Averaged, "averages the probabilities of 3 heads.*average their logits"),
    "TorchScript": (
        scripted,
        "the network is TorchScript, whose layers cannot be watched; give the network that it was made of",
    ),
    "int8": (quantized, r"has int8 layers \(the last is '4'\).*leave its last layer in float"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_others_are_refused_with_the_lines_that_help(kind: str) -> None:
    make, says = REFUSED[kind]
    model = make()
    with pytest.raises(ModelError, match=says) as caught:
        SplitModel(model)
    lines = re.search(r"add two lines: (.*) and (.*) \(methods then", str(caught.value))
    assert lines is not None
    names: dict[str, Any] = {"nn": nn, "torch": torch, "model": model.eval(), "C": CLASSES}
    exec(f"{lines[1]}\n{lines[2]}", names)
    images = torch.randn(4, 3, 9, 9)
    acts = SplitModel(names["model"]).split(images)
    torch.testing.assert_close(acts.logits, model(images).detach())


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (
            lambda net, maps: net.conv(maps),
            r"returns shape \(\d+, 5, \d+, \d+\), not one row of logits per image; pool it",
        ),
        (lambda net, maps: logits(net, maps).argmax(dim=1), "one row of logits per image"),
        (
            lambda net, maps: [str(logits(net, maps))],
            "returns list without a tensor that has one row of logits per image",
        ),
        (
            lambda net, maps: (logits(net, maps), net.other(pooled(maps))),
            r"2 heads; name one: layer='fc', layer='other'",
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
    with pytest.raises(ModelError, match="output for these images is not what its layer 'fc' gives"):
        split.split(1e4 * torch.randn(8, 3, 9, 9))


def test_images_that_overflow_are_left_to_the_guard() -> None:
    model, images = Ends(lambda net, maps: logits(net, maps) / 2), torch.randn(4, 3, 9, 9)
    images[1] = torch.inf
    acts = SplitModel(model).split(images)
    assert acts.finite.tolist() == [True, False, True, True]


def test_features_that_are_overwritten_are_told() -> None:
    def overwriting(net: Any, maps: Tensor) -> Tensor:
        features = pooled(maps)
        answer = net.fc(features)
        features.mul_(0)
        return answer

    with pytest.raises(ModelError, match=r"changes in place what has entered 'fc'; copy it first"):
        SplitModel(Ends(overwriting)).split(torch.randn(2, 3, 9, 9))


def test_weights_are_read_as_they_are_now() -> None:
    for end in (logits, cosine):
        model = Ends(end).eval()
        split = SplitModel(model)
        with torch.no_grad():
            for own in (model.fc.weight, model.prototypes):
                own[0] += 1
        acts = split.split(torch.randn(4, 3, 9, 9))
        torch.testing.assert_close(split.head(acts.features), acts.logits, rtol=1e-5, atol=1e-5)


class Remembering(nn.Module):
    """Adapts itself to the first size that it sees, and takes no other from then on, as some transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = plain()
        self.sizes: list[int] = []
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        self.sizes.append(images.shape[-1])
        if len(set(self.sizes)) > 1:
            raise RuntimeError(f"made for {self.sizes[0]} pixels")
        return self.net(images)


def test_probing_leaves_what_a_network_remembers_as_it_was() -> None:
    model = Remembering()
    split = SplitModel(model)
    assert (model.sizes, int(model.seen)) == ([], 0)
    assert split.split(torch.rand(2, 3, 20, 20)).logits.shape == (2, CLASSES)
    assert model.sizes == [20]


def test_old_weight_norm_is_probed_on_a_copy_too() -> None:
    class Normed(Remembering):
        def __init__(self) -> None:
            super().__init__()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                nn.utils.weight_norm(self.net[4])

    model = Normed()
    acts = SplitModel(model).split(torch.rand(2, 3, 20, 20))
    torch.testing.assert_close(acts.logits, model.eval()(torch.rand(2, 3, 20, 20)) * 0 + acts.logits)
    assert model.sizes == [20, 20]


def test_a_network_that_cannot_be_copied_is_probed_itself() -> None:
    model = plain()
    model.lock = threading.Lock()
    assert SplitModel(model).layer == "4"


def test_the_size_is_taken_from_where_networks_say_it() -> None:
    class Fixed(nn.Module):
        """Takes images of one size, and says so in its configuration, inside another module."""

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
