"""Engines that run a network, and the choice of engine, batch size and precision."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from idness.core.errors import IdnessWarning, ModelError, OptionError, needed
from idness.networks.modules import inference

if TYPE_CHECKING:
    from idness.networks.split import SplitModel

Precision = Literal["fp32", "bf16"]
Run = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A function that runs a batch of the network's input and returns features and logits."""
Features = Callable[[Tensor], Tensor]

FEW = 16
"""Number of images on which an engine's features are checked."""
EXACT, CLOSE = 1e-5, 1e-4
"""Maximum difference from the features of the unchanged network, relative to the largest one: by torch, and by other engines."""
SMALL = 256
"""Number of images below which `auto` runs the unchanged network."""
MUCH = 50_000_000
"""Number of input pixels from which `auto` uses onnxruntime: with 1,000 images of 224 x 224, the export pays off."""
UNKNOWN = 2_000
"""Number of images assumed if unknown."""
OPSET = 17
AT_ONCE = 4
"""Images per thread in a call of onnxruntime, so few that the activations of the layers stay in the cache."""
SIDE, LARGE_BATCH, SMALL_BATCH = 64, 64, 16
"""Maximum height and width of images that run in large batches."""
PIXELS = 1_400_000
"""Maximum number of input pixels of a batch; about 1 GB with 64 float32 channels per pixel and three layers in memory at once."""
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


@dataclass(frozen=True)
class ChosenEngine:
    """The requested engine, the engine used, its version, the batch size, the reason, and the expected number of images."""

    asked: str
    used: str
    version: str
    batch: int
    why: str
    images: int = UNKNOWN

    def describe(self) -> str:
        """Return the choice in one line."""
        return f"{self.used}, batches of {self.batch} ({self.why})"


class EngineRunner:
    """A runner of a network with an engine that is built for the first batch, and rebuilt if the weights change.

    `auto` is onnxruntime on a CPU if it is installed and `images` are enough for the export to pay off, else eager. If the engine cannot
    run the network, eager is used; a warning gives the reason unless the engine was chosen by `auto`.
    """

    def __init__(self, asked: str = "auto", images: int = UNKNOWN) -> None:
        if asked not in CHOICES:
            raise OptionError(f"engine must be one of {', '.join(CHOICES)}, got {asked!r}")
        self.asked, self.images = asked, images
        self.chosen: ChosenEngine | None = None
        self._run: Run | None = None
        self._stamp: object = None
        self._lock = Lock()

    @classmethod
    def adopting(cls, chosen: ChosenEngine, split: SplitModel, images: Tensor) -> EngineRunner:
        """Return a runner with the engine that another process chose, built for the same images."""
        runner = cls(chosen.asked, chosen.images)
        found = runner.prepare(split, images)
        if found.used != chosen.used:
            raise ModelError(f"engine {chosen.used}: cannot be used here ({found.why}); use engine='eager'")
        return runner

    def run(self, split: SplitModel, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits of a batch."""
        self.prepare(split, images)
        assert self._run is not None
        return self._run(images)

    def prepare(self, split: SplitModel, images: Tensor) -> ChosenEngine:
        """Choose and build the engine for these images, unless it is already built for the current weights."""
        with self._lock:
            values = (*split.model.parameters(), *split.model.buffers())
            stamp = [(id(value), 0 if value.is_inference() else value._version) for value in values]
            if self.chosen is None or stamp != self._stamp:
                self.chosen, self._run = self._built(split, images)
                self._stamp = stamp
            return self.chosen

    def _built(self, split: SplitModel, images: Tensor) -> tuple[ChosenEngine, Run]:
        used, why = self.asked, "as requested"
        if split.device.type == "cpu":
            keep_memory()
        if used == "auto":
            used, why = "eager", f"{self.images:,} images are too few for another engine to pay off"
            if self.images * prod(images.shape[2:]) >= MUCH:
                used, why = "onnxruntime", f"for {self.images:,} images"
        try:
            run = split.run if self.asked == "auto" and self.images < SMALL else build_engine(used, split, images)
        except ModelError as error:
            why = f"{used} is not used: {str(error).removeprefix(f'engine {used}: ')}"
            if self.asked != "auto":
                text = f"engine {used} cannot run the network, so eager is used: {error}"
                warnings.warn(text, IdnessWarning, stacklevel=4)
            used, run = "eager", build_engine("eager", split, images)
        package = "torch" if used == "eager" else used
        version = next((found.version for found in importlib.metadata.distributions(name=package)), "")
        return ChosenEngine(self.asked, used, version, batch_for(images.shape[2:]), why, self.images), run


def batch_for(size: Sequence[int]) -> int:
    """Return the batch size for inputs of this height and width, such that layers fit in the CPU cache or at least in memory."""
    usual = LARGE_BATCH if max(size, default=0) <= SIDE else SMALL_BATCH
    return max(1, min(usual, PIXELS // max(1, prod(size))))


@cache
def keep_memory() -> None:
    """Configure malloc so that this process keeps freed memory.

    glibc returns every large block to the kernel, which clears it page by page for the next layer; for MobileNetV2, that takes
    longer than the network itself.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # not glibc
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_MAX, 0)
        library.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def build_engine(name: str, split: SplitModel, images: Tensor) -> Run:
    """Build an engine and check that it reproduces the network's features for some of these images, batched and one by one.

    Torch applies the head in float32; images of another size run through the unchanged network.
    """
    few = images[:FEW]
    if name == "eager":
        return _eager(split, few)
    try:
        if split.device.type != "cpu":
            raise ModelError(f"it runs on the CPU, but the network is on {split.device.type}")
        features, head, expected = ENGINES[name](split, few), split.head, split.run(few)[0]
        for count in {len(few), 1}:
            far = distance(features(few[:count]), expected[:count])
            if not far <= CLOSE:
                raise ModelError(f"its features differ by {far:.1g} (relative, allowed {CLOSE:g})")
    except Exception as error:  # exporters can raise anything
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ModelError((lines[0] if lines else type(error).__name__)[:200]) from error

    def run(batch: Tensor) -> tuple[Tensor, Tensor]:
        if batch.shape[1:] != few.shape[1:]:
            return split.run(batch)
        found = features(batch)
        return found, head(found)

    return run


def distance(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference of features, relative to the largest feature; images that yield NaN or Inf are ignored."""
    finite = torch.isfinite(expected).all(dim=1)
    if found.shape != expected.shape or not bool(finite.any()):
        return float("inf")
    apart = (found - expected)[finite].abs().max()
    return float(apart / expected[finite].abs().max().clamp(min=1e-12))


# Engines


def _eager(split: SplitModel, images: Tensor) -> Run:
    """Return a run of a copy with channels-last weights and, if torch.fx can trace it with the same features, folded BatchNorm."""
    from torch.fx.experimental.optimization import fuse

    expected = split.run(images)[0]
    for folded in (True, False):
        own = split.copy()
        if own.model is split.model:  # it cannot be copied
            break
        with contextlib.suppress(Exception), inference(own.model):  # tracing can raise anything
            if folded:
                own.model = fuse(own.model, inplace=True)
            for module in own.model.modules():
                if type(module) is nn.Conv2d and "weight" in module._parameters:
                    weight = module.weight.detach().clone(memory_format=torch.channels_last)  # it is shared
                    module.weight = nn.Parameter(weight, requires_grad=False)
            if distance(own.run(images)[0], expected) <= EXACT:
                return own.run
    return split.run


def _onnxruntime(split: SplitModel, images: Tensor) -> Features:
    onnxruntime = needed("onnxruntime", "engine onnxruntime", "onnx", ModelError)
    options, threads = onnxruntime.SessionOptions(), torch.get_num_threads()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Spinning threads would take the CPU from those that decode the next images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(exported(split, images), options, providers=["CPUExecutionProvider"])

    def features(batch: Tensor) -> Tensor:
        parts = torch.split(batch.contiguous(), AT_ONCE * threads)
        found = [session.run(["features"], {"images": part.numpy()})[0] for part in parts]
        return torch.from_numpy(found[0] if len(found) == 1 else np.concatenate(found))

    return features


def _openvino(split: SplitModel, images: Tensor) -> Features:
    """Return the network's features as run by OpenVINO, in float32 even if the CPU supports bfloat16."""
    core = needed("openvino", "engine openvino", "openvino", ModelError).Core()
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    graph = core.compile_model(core.read_model(exported(split, images)), "CPU", settings)
    return lambda batch: torch.from_numpy(graph(batch.contiguous().numpy())[0])


ENGINES: dict[str, Callable[[SplitModel, Tensor], Features]] = {"onnxruntime": _onnxruntime, "openvino": _openvino}
CHOICES = ("auto", "eager", *ENGINES)


class _FeaturesModule(nn.Module):
    """A traceable module that computes a network's features."""

    def __init__(self, split: SplitModel) -> None:
        super().__init__()
        self.split, self.model = split, split.model

    def forward(self, images: Tensor) -> Tensor:
        return self.split.look(images)[0].float()


def exported(split: SplitModel, images: Tensor) -> bytes:
    """Return a network up to its features as ONNX, for any number of images."""
    needed("onnx", "engine", "onnx", ModelError)
    file, graph = io.BytesIO(), _FeaturesModule(split.copy())
    few = torch.cat([images, images])[:2]  # the exporter would treat a batch of one as a fixed size
    names: dict[str, Any] = {"input_names": ["images"], "output_names": ["features"]}
    axes = {"images": {0: "batch"}, "features": {0: "batch"}}
    with inference(graph), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Tracing (`dynamo=False`) takes a second; torch's newer exporter takes ten.
        torch.onnx.export(graph, (few,), file, **names, dynamic_axes=axes, opset_version=OPSET, dynamo=False)  # type: ignore[arg-type]
    return file.getvalue()


# Precision


@dataclass(frozen=True)
class ChosenPrecision:
    """The requested precision, the precision used, and the reason."""

    asked: str = "fp32"
    used: Precision = "fp32"
    why: str = "as requested"


AS_ASKED = ChosenPrecision()


def choose_precision(asked: str, device: str) -> ChosenPrecision:
    """Return the precision of forward passes: as requested, or for `auto` bf16 on a GPU and fp32 on a CPU."""
    if asked not in ("fp32", "bf16", "auto"):
        raise OptionError(f"precision must be one of fp32, bf16, auto, got {asked!r}")
    bf16 = asked == "bf16" or (asked == "auto" and device != "cpu")
    why = f"the network is on {device}" if asked == "auto" else "as requested"
    return ChosenPrecision(asked, "bf16" if bf16 else "fp32", why)
