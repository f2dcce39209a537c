from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from idness.core.errors import IdnessWarning, ModelError, OptionError
from idness.data import Preprocessing
from idness.networks.engines import driver, engine
from idness.networks.engines.driver import Driver
from idness.networks.engines.engine import CLOSE, EXACT, Eager, distance
from idness.networks.engines.folding import fold
from idness.networks.engines.memory import bytes_per_image, keep_memory, largest_batch
from idness.networks.opening import Network
from idness.networks.probing import copied
from idness.networks.split import SplitModel, fingerprint

IMAGES = torch.randn(20, 3, 12, 12, generator=torch.Generator().manual_seed(1))


class Small(nn.Module):
    """Has a BatchNorm behind a convolution, one before a convolution, and one whose input is used again."""

    def __init__(self, *, again: bool = False) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16)
        self.fc, self.again = nn.Linear(16, 5), again
        for norm in (self.bn1, self.bn2):
            norm.running_mean.normal_(generator=torch.Generator().manual_seed(2))  # type: ignore[union-attr]
            norm.running_var.uniform_(0.5, 2, generator=torch.Generator().manual_seed(3))  # type: ignore[union-attr]

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv1(images)
        x = torch.relu(self.bn1(x) + x if self.again else self.bn1(x))
        return self.fc(torch.relu(self.bn2(self.conv2(x))).mean((2, 3)))


def small(**options: bool) -> Small:
    torch.manual_seed(0)
    return Small(**options).train()


def test_folding_gives_the_same_features_from_fewer_layers() -> None:
    model = small().eval()
    other = copied(model)
    assert fold(other, IMAGES[:2]) == 2
    assert isinstance(other.bn1, nn.Identity)
    assert torch.allclose(other(IMAGES), model(IMAGES), atol=1e-5)
    assert isinstance(model.bn1, nn.BatchNorm2d)  # the copy alone was changed


def test_eager_folds_a_copy_and_leaves_the_network_as_it_was() -> None:
    model = small()
    before, layout = fingerprint(model), model.conv1.weight.stride()
    split = SplitModel(model, example=IMAGES[:2], engine="eager")
    expected = SplitModel(model, example=IMAGES[:2]).split(IMAGES)
    found = split.split(IMAGES)
    assert distance(found.features, expected.features) <= EXACT
    assert torch.allclose(found.logits, expected.logits, atol=1e-5)
    assert split.driver is not None
    assert isinstance(split.driver._engine, Eager)
    assert split.driver._engine.split.model is not model
    assert isinstance(split.driver._engine.split.model.bn1, nn.Identity)
    assert (fingerprint(model), model.conv1.weight.stride(), model.training) == (before, layout, True)


def test_what_cannot_be_folded_exactly_is_not() -> None:
    model = small(again=True)
    split = SplitModel(model, example=IMAGES[:2], engine="eager")
    expected = SplitModel(model, example=IMAGES[:2]).split(IMAGES)
    assert distance(split.split(IMAGES).features, expected.features) <= EXACT
    assert split.driver is not None
    assert isinstance(split.driver._engine, Eager)
    assert isinstance(split.driver._engine.split.model.bn1, nn.BatchNorm2d)


def test_weights_that_change_are_noticed() -> None:
    model = small()
    split = SplitModel(model, example=IMAGES[:2], engine="eager")
    split.split(IMAGES)
    with torch.no_grad():
        model.conv1.weight.mul_(2.0)
        model.bn2.running_mean.add_(1.0)  # type: ignore[union-attr]
    expected = SplitModel(model, example=IMAGES[:2]).split(IMAGES)
    assert distance(split.split(IMAGES).features, expected.features) <= EXACT
    model.conv2 = nn.Conv2d(8, 16, 3, stride=2)
    expected = SplitModel(model, example=IMAGES[:2]).split(IMAGES)
    assert distance(split.split(IMAGES).features, expected.features) <= EXACT


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_other_engines_give_features_and_logits(name: str) -> None:
    pytest.importorskip(name)
    model = small()
    split = SplitModel(model, example=IMAGES[:2], engine=name)
    expected = SplitModel(model, example=IMAGES[:2]).split(IMAGES)
    for count in (20, 1, 7):
        found = split.split(IMAGES[:count])
        assert distance(found.features, expected.features[:count]) <= CLOSE
        assert torch.allclose(found.logits, split.head(found.features))  # the head in float32, by torch
        assert torch.allclose(found.logits, expected.logits[:count], atol=1e-4)
    first = split.split(IMAGES[:2]).features
    kept = first.clone()
    split.split(IMAGES[2:4])
    assert torch.equal(first, kept)  # no memory that the next batch overwrites
    larger = torch.rand(2, 3, 16, 16)
    assert torch.equal(split.split(larger).logits, SplitModel(model, example=larger).split(larger).logits)


@pytest.mark.slow
def test_the_compiled_engine_gives_the_same() -> None:
    split = SplitModel(small(), example=IMAGES[:2], engine="compiled")
    expected = SplitModel(small(), example=IMAGES[:2]).split(IMAGES)
    assert distance(split.split(IMAGES).features, expected.features) <= CLOSE
    assert split.driver is not None
    assert split.driver.chosen is not None
    assert split.driver.chosen.used == "compiled"


def test_an_engine_is_one_of_a_few() -> None:
    with pytest.raises(
        OptionError, match="engine must be one of auto, eager, compiled, onnxruntime, openvino; got 'fast'"
    ):
        SplitModel(small(), example=IMAGES[:2], engine="fast")


def missing(split: SplitModel, images: Tensor, form: str) -> None:
    raise ModelError("engine onnxruntime: needs onnxruntime; run pip install 'idness[onnx]'")


class Wrong(engine.Plain):
    """Gives other features than the network."""

    def run(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features, logits = super().run(images)
        return features + 0.01, logits


@pytest.mark.parametrize(("broken", "why"), [(missing, "needs onnxruntime"), (Wrong, r"its features are 0.0\d+ off")])
def test_an_engine_that_cannot_run_it_leaves_it_to_eager(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[..., object], why: str
) -> None:
    monkeypatch.setitem(engine.ENGINES, "onnxruntime", broken)
    split = SplitModel(small(), example=IMAGES[:2], engine="onnxruntime")
    with pytest.warns(IdnessWarning, match=f"engine onnxruntime cannot run the network, so eager does: .*{why}"):
        found = split.split(IMAGES)
    assert distance(found.features, SplitModel(small(), example=IMAGES[:2]).split(IMAGES).features) <= EXACT
    assert split.driver is not None
    assert split.driver.chosen is not None
    assert (split.driver.chosen.used, split.driver.chosen.key()) == ("eager", "")


class Clock:
    """Tells the seconds that engines are made to take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def paced(clock: Clock, seconds: float) -> type[engine.Plain]:
    class Paced(engine.Plain):
        """Takes so many seconds an image."""

        def run(self, images: Tensor) -> tuple[Tensor, Tensor]:
            clock.now += seconds * len(images)
            return super().run(images)

    return Paced


def fake(monkeypatch: pytest.MonkeyPatch, clock: Clock, **seconds: float) -> None:
    monkeypatch.setattr(engine, "ENGINES", {name: paced(clock, pace) for name, pace in seconds.items()})
    monkeypatch.setattr(driver, "version", lambda name: "1.0" if name in seconds else "")


@pytest.mark.parametrize(
    ("onnxruntime", "openvino", "images", "used"),
    [
        (0.005, 0.02, 10_000, "onnxruntime"),
        (0.005, 0.004, 10_000, "openvino"),
        (0.005, 0.0049, 10_000, "onnxruntime"),  # not clearly faster than what was tried first
        (0.02, 0.02, 10_000, "eager"),
        (0.0001, 0.0001, 500, "eager"),  # the set-up would take longer
        (0.0001, 0.0001, 100, "eager"),
    ],
)
def test_auto_takes_the_fastest_that_is_worth_its_set_up(
    monkeypatch: pytest.MonkeyPatch, onnxruntime: float, openvino: float, images: int, used: str
) -> None:
    clock = Clock()
    fake(monkeypatch, clock, eager=0.01, onnxruntime=onnxruntime, openvino=openvino)
    split = SplitModel(small(), example=IMAGES[:2])
    split.driver = Driver("auto", images, clock=clock)
    chosen = split.driver.decide(split, IMAGES)
    assert chosen.used == used
    assert chosen.batch >= 1
    if images == 10_000:
        assert f"onnxruntime is {0.01 / onnxruntime:.1f} times as fast as eager" in chosen.why
        best = 0.01 / min(onnxruntime, openvino)
        assert (f"({best:.1f} times as fast as eager)" in chosen.describe()) == (used != "eager")
        assert ("compiled is not installed" in chosen.why) == (used == "eager")  # else it would not be worth its set-up
    split.split(IMAGES)


def test_auto_remembers_beside_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock()
    fake(monkeypatch, clock, eager=0.01, onnxruntime=0.001)
    split = SplitModel(small(), example=IMAGES[:2])

    def choose(images: int = 10_000) -> tuple[str, float]:
        clock.now = 0.0
        return Driver("auto", images, tmp_path, clock).decide(split, IMAGES).used, clock.now

    first, took = choose()
    assert (first, took > 0) == ("onnxruntime", True)
    assert choose() == ("onnxruntime", 0.0)
    assert choose(1_000_000)[1] > 0  # for far more images the choice is made anew
    [file] = tmp_path.iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": "0.9"}))
    assert choose()[1] > 0  # another version may be another program
    file.write_text("{")
    assert choose()[0] == "onnxruntime"


def test_a_batch_size_that_is_clearly_better_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    class Overheated(engine.Plain):
        """Is slow for many images at once."""

        def run(self, images: Tensor) -> tuple[Tensor, Tensor]:
            clock.now += len(images) * (0.001 if len(images) <= 16 else 0.01)
            return super().run(images)

    monkeypatch.setattr(engine, "ENGINES", {"eager": Overheated})
    split = SplitModel(small(), example=IMAGES[:2])
    many = IMAGES.repeat(4, 1, 1, 1)[:64]
    assert Driver("eager", 5_000, clock=clock).decide(split, many).batch == 64  # half as many are as slow
    monkeypatch.setattr(driver, "default_batch", lambda images: 32)
    assert Driver("eager", 5_000, clock=clock).decide(split, many).batch == 16
    assert Driver("eager", 500, clock=clock).decide(split, many).batch == 32  # too few to measure for


def test_the_cache_knows_engines_apart() -> None:
    split = SplitModel(small(), example=IMAGES[:2])
    split.driver = Driver("eager")
    plain = Network(split, Preprocessing())
    keys = [
        Network(split, Preprocessing(), engine=driver.ChosenEngine("auto", used, number, 16, "")).identity
        for used, number in (("eager", "1"), ("onnxruntime", "1"), ("onnxruntime", "2"), ("openvino", "1"))
    ]
    assert keys[0] == plain.identity
    assert len(set(keys)) == 4


def test_memory_bounds_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    widest = 4 * (8 * 12 * 12 + 8 * 12 * 12)  # what enters and leaves the first BatchNorm
    assert bytes_per_image(model, IMAGES) == 3 * widest
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    monkeypatch.setattr("idness.networks.engines.memory.MOST", 10 * 3 * widest)
    assert largest_batch(model, IMAGES) == 10
    assert keep_memory() in (True, False)
