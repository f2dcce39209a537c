"""Networks of every kind that people bring, small and with random weights.

`python -m tests.networks.zoo` writes the table of `docs/networks.md`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from idness.core.errors import ModelError
from idness.networks.head_search import example_inputs
from idness.networks.modules import copied
from idness.networks.split import SplitModel
from tests.networks.endings import BINARY, REFUSED, TAKEN, Ends, plain

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
COLUMNS = ("family", "network", "", "final layer", "what follows it, or why it is refused")


@dataclass(frozen=True)
class Network:
    """A network's family, name and maker."""

    family: str
    name: str
    make: Callable[[], nn.Module]

    @property
    def id(self) -> str:
        return f"{self.family}: {self.name}"


def zoo() -> list[Network]:
    """List all networks."""
    families = {
        "torchvision": dict(torchvision()),
        "timm": dict(timm()),
        "Hugging Face": dict(hugging_face()),
        "wrapped or converted": WRAPPED,
        "what it ends in": {kind: partial(Ends, end) for kind, (end, _) in TAKEN.items()},
        "one output": {kind: partial(Ends, end, classes=1) for kind, end in BINARY.items()},
        "refused": REFUSED,
    }
    return [Network(family, name, make) for family, made in families.items() for name, make in made.items()]


def judged(network: Network) -> tuple[str, ...]:
    """Return a network's row of the table: whether it works, and how its output follows from its head."""
    model = made(network)
    try:
        split = SplitModel(model)
    except ModelError as error:
        reason = str(error).removeprefix("SplitModel: ").removeprefix(f"{type(model).__name__} ")
        return network.family, network.name, "refused", "", reason.partition("; ")[0]
    layer = f"`{split.layer}`"
    undone = "; ".join(filter(None, (split.ending, "multi-label" if split.multi_label else "")))
    return network.family, network.name, "works", layer, undone


def made(network: Network) -> nn.Module:
    """Return a network, the same each time."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return network.make()


def images_for(model: nn.Module, count: int = 3) -> Tensor:
    """Return images of the first size that a network takes."""
    for images in example_inputs(model):
        own = images[:count].to(next(model.parameters()).dtype)
        with torch.no_grad(), suppress(Exception):
            copied(model)(own)
            return own
    raise AssertionError("it takes no images")


def line(row: tuple[str, ...]) -> str:
    """Return a row as text."""
    return f"| {' | '.join(row)} |"


def torchvision() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Yield torchvision's families, with few and narrow layers if their class allows it."""
    from torchvision import models
    from torchvision.models.convnext import CNBlockConfig
    from torchvision.models.resnet import BasicBlock

    yield "ResNet", lambda: models.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=7)
    yield "DenseNet", lambda: models.DenseNet(8, (2, 2), 16, num_classes=7)
    yield "MobileNetV3 (large)", lambda: models.mobilenet_v3_large(num_classes=7)
    yield "MobileNetV2", lambda: models.MobileNetV2(num_classes=7, width_mult=0.25)
    yield "MobileNetV3", lambda: models.mobilenet_v3_small(num_classes=7)
    yield "MNASNet", lambda: models.MNASNet(0.25, num_classes=7)
    yield "ShuffleNetV2", lambda: models.ShuffleNetV2([1, 1, 1], [24, 24, 48, 96, 128], num_classes=7)
    yield "EfficientNet", lambda: models.efficientnet_b0(num_classes=7)
    yield "RegNet", lambda: models.regnet_y_400mf(num_classes=7)
    yield "GoogLeNet", lambda: models.GoogLeNet(num_classes=7, init_weights=False)
    yield "ConvNeXt", lambda: models.ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)], num_classes=7)
    yield "Vision Transformer", lambda: models.VisionTransformer(32, 8, 1, 2, 16, 32, num_classes=7)
    yield (
        "Swin Transformer",
        lambda: models.SwinTransformer([2, 2], 16, [1, 1], [2, 2], [4, 4], num_classes=7),
    )
    yield "SqueezeNet", lambda: models.SqueezeNet("1_1", num_classes=7)


def timm() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Yield timm's families: its own small test networks, and others made small."""
    import timm

    def make(name: str, **options: Any) -> Callable[[], nn.Module]:
        return lambda: timm.create_model(name, pretrained=False, num_classes=7, **options)

    for kind in ("byobnet", "convnext", "efficientnet", "mambaout", "nfnet", "resnet", "vit", "vit2"):
        yield f"test_{kind}", make(f"test_{kind}")
    small = {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 2}
    yield "deit (distilled)", make("deit_tiny_distilled_patch16_224", **small)
    yield "beit", make("beit_base_patch16_224", **small)
    yield "eva", make("eva02_tiny_patch14_224", **(small | {"img_size": 28}))
    yield "cait", make("cait_xxs24_224", **small)
    yield "mixer", lambda: timm.models.MlpMixer(7, 32, patch_size=8, num_blocks=1, embed_dim=16)
    yield (
        "levit (distilled)",
        make("levit_128s", img_size=64, embed_dim=(16, 32), depth=(1, 1), num_heads=(2, 2), key_dim=8),
    )
    yield "swin", make("swin_tiny_patch4_window7_224", img_size=56, embed_dim=16, depths=(1, 1), num_heads=(2, 2))
    yield "resnetv2 (BiT)", lambda: timm.models.ResNetV2((1, 1), (128, 128), num_classes=7, stem_chs=32)
    yield "mobilenetv4", make("mobilenetv4_conv_small_035")
    yield "ghostnet", make("ghostnet_050")


def hugging_face() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Yield the families of Hugging Face's transformers, each with a configuration of few layers."""
    import transformers as hf

    def make(kind: str, head: str = "ForImageClassification", **options: Any) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            config = getattr(hf, f"{kind}Config")(num_labels=7, **options)
            model: nn.Module = getattr(hf, f"{kind}{head}")(config)
            return model

        return build

    vit = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
           "intermediate_size": 32}  # fmt: skip
    swin = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
    yield "ViT", make("ViT", **vit)
    yield "DeiT", make("DeiT", **vit)
    yield "DeiT (distilled)", make("DeiT", "ForImageClassificationWithTeacher", **vit)
    yield "BEiT", make("Beit", **vit)
    yield "Data2VecVision", make("Data2VecVision", **vit)
    yield "DINOv2", make("Dinov2", **vit)
    yield "ViT-MSN", make("ViTMSN", **vit)
    yield "Swin", make("Swin", **swin)
    yield "Swin V2", make("Swinv2", **swin)
    yield "ConvNeXt", make("ConvNext", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
    yield "ConvNeXt V2", make("ConvNextV2", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
    yield "ResNet", make("ResNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    yield "RegNet", make("RegNet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=8)
    yield "BiT", make("Bit", embedding_size=8, hidden_sizes=[32, 64], depths=[1, 1], num_groups=4)
    yield "MobileNetV2", make("MobileNetV2", depth_multiplier=0.25)
    yield "PoolFormer", make("PoolFormer", hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1])
    yield (
        "SegFormer",
        make("Segformer", hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2]),
    )
    yield "FocalNet", make("FocalNet", image_size=32, embed_dim=8, hidden_sizes=[8, 16], depths=[1, 1])
    yield "ViT, several labels", make("ViT", problem_type="multi_label_classification", **vit)


class Adapted(nn.Module):
    """Adds a product of two narrow layers to a frozen one, as LoRA does."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen, self.down = frozen, nn.Linear(frozen.in_features, 2, bias=False)
        self.up = nn.Linear(2, frozen.out_features, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        adapted: Tensor = self.frozen(features) + self.up(self.down(features))
        return adapted


class Holding(nn.Module):
    """A network as an attribute, as in training frameworks."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, images: Tensor) -> Tensor:
        answer: Tensor = self.network(images)
        return answer


def with_last(change: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    model = plain()
    model[4] = change(model[4])
    return model


def compiled_in_place() -> nn.Module:
    model = plain()
    model.compile(backend="eager")
    return model


def traced_body() -> nn.Module:
    model = plain().eval()
    return nn.Sequential(torch.jit.trace(model[:4], torch.rand(1, 3, 9, 9)), model[4])


WRAPPED: dict[str, Callable[[], nn.Module]] = {
    "DataParallel": lambda: nn.DataParallel(plain()),
    "torch.compile": lambda: torch.compile(plain(), backend="eager"),
    "model.compile()": compiled_in_place,
    "averaged weights (EMA)": lambda: torch.optim.swa_utils.AveragedModel(plain()),
    "inside another module": lambda: Holding(plain()),
    "half precision": lambda: plain().half(),
    "bfloat16": lambda: plain().bfloat16(),
    "double precision": lambda: plain().double(),
    "channels last": lambda: plain().to(memory_format=torch.channels_last),
    "one channel": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    "multilayer perceptron": lambda: nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3)),
    "weight norm": lambda: with_last(nn.utils.parametrizations.weight_norm),
    "weight norm (old)": lambda: with_last(nn.utils.weight_norm),
    "spectral norm": lambda: with_last(nn.utils.parametrizations.spectral_norm),
    "no bias": lambda: with_last(lambda old: nn.Linear(old.in_features, old.out_features, bias=False)),
    "pruned": lambda: with_last(lambda old: prune.l1_unstructured(old, "weight", 0.5)),
    "LoRA at the head": lambda: with_last(Adapted),
    "fx graph": lambda: torch.fx.symbolic_trace(plain()),
    "TorchScript body, own head": traced_body,
}


if __name__ == "__main__":
    before = PAGE.read_text().splitlines()
    first = before.index(line(COLUMNS)) + 2
    last = next(place for place in range(first, len(before)) if not before[place].startswith("| "))
    PAGE.write_text("\n".join([*before[:first], *(line(judged(each)) for each in zoo()), *before[last:], ""]))
