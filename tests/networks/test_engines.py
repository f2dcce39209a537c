from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from idness.core.errors import IdnessWarning, ModelError, OptionError
from idness.data import Preprocessing
from idness.networks import engines
from idness.networks.engines import CLOSE, EXACT, ChosenEngine, EngineRunner, batch_for, choose_precision, distance
from idness.networks.modules import module_fingerprint
from idness.networks.open import Network
from idness.networks.split import SplitModel

IMAGES = torch.randn(20, 3, 12, 12, generator=torch.Generator().manual_seed(1))


class Small(nn.Module):
    """Has two BatchNorms behind convolutions; `again` uses the first pair twice, which folding does not expect."""

    def __init__(self, *, again: bool = False) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16)
        self.fc, self.again = nn.Linear(16, 5), again
        for norm in (self.bn1, self.bn2):
            norm.running_mean.normal_(generator=torch.Generator().manual_seed(2))  # type: ignore[union-attr]
            norm.running_var.uniform_(0.5, 2, generator=torch.Generator().manual_seed(3))  # type: ignore[union-attr]

    def forward(self, images: Tensor) -> Tensor:
        x = self.bn1(self.conv1(images))
        x = torch.relu(x + self.bn1(self.conv1(2 * images)) if self.again else x)
        return self.fc(torch.relu(self.bn2(self.conv2(x))).mean((2, 3)))


def small(**options: bool) -> Small:
    torch.manual_seed(0)
    return Small(**options).train()


def plain(model: nn.Module) -> Tensor:
    return SplitModel(model, example=IMAGES[:2]).split(IMAGES).features


@pytest.mark.parametrize("engine", ["eager", "onnxruntime"])
def test_networks_made_in_inference_mode_run(engine: str) -> None:
    with torch.inference_mode():
        model = small()
    split = SplitModel(model, example=IMAGES[:2])
    split.runner = EngineRunner(engine)
    assert distance(split.split(IMAGES).features, plain(small())) <= CLOSE


@pytest.mark.parametrize("again", [False, True])
def test_eager_folds_a_copy_if_that_is_exact_and_leaves_the_network_as_it_was(again: bool) -> None:
    model = small(again=again)
    before, layout = module_fingerprint(model), model.conv1.weight.stride()
    split = SplitModel(model, example=IMAGES[:2], engine="eager")
    assert distance(split.split(IMAGES).features, plain(model)) <= EXACT
    made = split.runner._run.__self__.model  # type: ignore[union-attr]
    assert hasattr(made, "bn1") == again
    assert made.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    assert (module_fingerprint(model), model.conv1.weight.stride(), model.training) == (before, layout, True)


def test_weights_that_change_are_noticed() -> None:
    model = small()
    split = SplitModel(model, example=IMAGES[:2], engine="eager")
    split.split(IMAGES)
    with torch.no_grad():
        model.conv1.weight.mul_(2.0)
        model.bn2.running_mean.add_(1.0)  # type: ignore[union-attr]
    assert distance(split.split(IMAGES).features, plain(model)) <= EXACT
    model.conv2 = nn.Conv2d(8, 16, 3, stride=2)
    assert distance(split.split(IMAGES).features, plain(model)) <= EXACT


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
    assert split.runner is not None
    assert split.runner.chosen is not None
    assert split.runner.chosen.used == name
    first = split.split(IMAGES[:2]).features
    kept = first.clone()
    split.split(IMAGES[2:4])
    assert torch.equal(first, kept)  # no memory that the next batch overwrites
    larger = torch.rand(2, 3, 16, 16)
    assert torch.equal(split.split(larger).logits, SplitModel(model, example=larger).split(larger).logits)


def missing(split: SplitModel, images: Tensor) -> engines.Features:
    raise ModelError("engine onnxruntime: needs onnxruntime; run pip install 'idness[onnx]'")


def wrong(split: SplitModel, images: Tensor) -> engines.Features:
    return lambda batch: split.run(batch)[0] + 0.01


@pytest.mark.parametrize(("broken", "why"), [(missing, "needs onnxruntime"), (wrong, r"its features differ by 0.0\d+")])
def test_an_engine_that_cannot_run_it_leaves_it_to_eager(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[..., engines.Features], why: str
) -> None:
    monkeypatch.setitem(engines.ENGINES, "onnxruntime", broken)
    split = SplitModel(small(), example=IMAGES[:2], engine="onnxruntime")
    with pytest.warns(IdnessWarning, match=f"engine onnxruntime cannot run the network, so eager is used: .*{why}"):
        found = split.split(IMAGES)
    assert distance(found.features, plain(small())) <= EXACT
    auto = EngineRunner("auto", 10**9)  # silently
    for runner in (split.runner, auto):
        assert runner is not None
        chosen = runner.prepare(split, IMAGES)
        assert chosen.used == "eager"
        assert "onnxruntime is not used: " in chosen.why
    with pytest.raises(ModelError, match="engine onnxruntime: cannot be used here"):
        EngineRunner.adopting(ChosenEngine("auto", "onnxruntime", "1", 16, "", 10**9), split, IMAGES)


@pytest.mark.parametrize(("images", "used"), [(100, "eager"), (300_000, "eager"), (400_000, "onnxruntime")])
def test_auto_uses_onnxruntime_if_there_is_enough_work(monkeypatch: pytest.MonkeyPatch, images: int, used: str) -> None:
    monkeypatch.setitem(engines.ENGINES, "onnxruntime", lambda split, images: lambda batch: split.run(batch)[0])
    chosen = EngineRunner("auto", images).prepare(SplitModel(small(), example=IMAGES[:2]), IMAGES)
    assert (chosen.used, chosen.batch, chosen.images) == (used, 64, images)
    assert chosen.describe().startswith(f"{used}, batches of 64 (")


def test_batch_size_depends_on_the_image_size() -> None:
    sizes = ((), 64), ((32, 32), 64), ((224, 224), 16), ((384, 384), 9), ((4096, 4096), 1)
    assert [batch_for(size) for size, _ in sizes] == [batch for _, batch in sizes]


def test_the_cache_knows_engines_apart() -> None:
    split = SplitModel(small(), example=IMAGES[:2])
    keys = [
        Network(split, Preprocessing(), engine=engine and ChosenEngine("auto", engine, "1", 16, "")).identity
        for engine in (None, "eager", "onnxruntime", "openvino")
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_engine_and_precision_are_one_of_a_few() -> None:
    with pytest.raises(OptionError, match="engine must be one of auto, eager, onnxruntime, openvino, got 'fast'"):
        SplitModel(small(), example=IMAGES[:2], engine="fast")
    assert [choose_precision(asked, "cpu").used for asked in ("fp32", "bf16", "auto")] == ["fp32", "bf16", "fp32"]
    assert choose_precision("auto", "cuda").used == "bf16"
    with pytest.raises(OptionError, match="fp32, bf16, auto"):
        choose_precision("fp16", "cpu")
