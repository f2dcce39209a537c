"""The engines: each runs a network's body its own way and gives features and logits."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import logging
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from idness.core.errors import ModelError
from idness.core.extras import needed
from idness.networks.engines.folding import fold, move_channels_last
from idness.networks.modes import inference

if TYPE_CHECKING:
    from idness.networks.split import SplitModel

EXACT, CLOSE = 1e-5, 1e-4
"""How far features may be from those of the network as it is, relative to the largest: of torch itself, and of other engines."""
FORMS = ("folded", "channels last")
"""What torch itself does to a copy of a network, the fastest first: BatchNorm folded and weights channels last, or only the latter."""
OPSET = 17
AT_ONCE = 4
"""How many images a thread of onnxruntime gets at once: what layers pass on stays in the cache, and a call costs next to nothing."""
PACKAGES = {"eager": "torch", "compiled": "torch", "onnxruntime": "onnxruntime", "openvino": "openvino"}
"""The engines, and the packages whose version decides what they compute."""


class Engine(Protocol):
    """Runs batches of the network's input."""

    form: str
    """What became of the network for it: another process that is told so makes the same engine, and need not try."""

    def run(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Give features and logits."""
        ...


class Plain:
    """Runs the network as it is."""

    form = "as it is"

    def __init__(self, split: SplitModel, images: Tensor, form: str = "") -> None:
        self.split = split

    def run(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Give features and logits."""
        with inference(self.split.model):
            return self.split.look(self.split.laid_out(images))


class Eager(Plain):
    """Runs a copy of the network with BatchNorm folded and weights channels last, where that gives the same features.

    Args:
        split: the network.
        images: some of its input, on which both are compared.
        form: what was found elsewhere to give the same features; nothing is compared then.
    """

    def __init__(self, split: SplitModel, images: Tensor, form: str = "") -> None:
        super().__init__(split, images)
        few = images[:FEW]
        expected = None if form else Plain(split, few).run(few)[0]
        for tried in FORMS if not form else [form] if form in FORMS else []:
            own = split.copy()
            if own.model is split.model:  # it has no copy
                return
            own.free_layout(weights=False)
            try:
                if tried == "folded" and not fold(own.model, few[:2]):
                    continue
                move_channels_last(own.model)
                if expected is not None and not distance(Plain(own, few).run(few)[0], expected) <= EXACT:
                    continue
            except Exception:  # code that looks at what was replaced, in whatever way
                if form:
                    raise
                continue
            self.split, self.form = own, tried
            return


class _Traced:
    """Runs what tracing the network wrote down; the head is computed by torch in float32."""

    form = "traced"

    def __init__(self, split: SplitModel, images: Tensor, form: str = "") -> None:
        self.head, self.plain = split.head, Plain(split, images)
        self.shape = images.shape[1:]

    def run(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Give features and logits; images of another size than was traced run as the network is."""
        if images.shape[1:] != self.shape:
            return self.plain.run(images)
        features = self.features(images)
        return features, self.head(features)

    def features(self, images: Tensor) -> Tensor:
        """Give what enters the head."""
        raise NotImplementedError


class Compiled(_Traced):
    """Runs the network as torch.compile writes it anew; needs a C++ compiler, and half a minute of it."""

    def __init__(self, split: SplitModel, images: Tensor, form: str = "") -> None:
        super().__init__(split, images)
        graph = _Features(split.copy())
        batch = torch.export.Dim("batch", min=1)
        with inference(graph), _quiet():
            program = torch.export.export(graph, (_two_or_more(images),), dynamic_shapes=({0: batch},))
            self.graph = torch.compile(program.module(), dynamic=True)
            self.features(images[:2])

    def features(self, images: Tensor) -> Tensor:
        """Give what enters the head."""
        with torch.inference_mode(False), torch.no_grad():
            found: Tensor = self.graph(images.contiguous())
            return found.clone()  # its memory is the graph's


class OnnxRuntime(_Traced):
    """Runs the network in onnxruntime, which fuses layers and plans memory beforehand."""

    def __init__(self, split: SplitModel, images: Tensor, form: str = "") -> None:
        super().__init__(split, images)
        onnxruntime = needed("onnxruntime", "engine onnxruntime", "onnx", ModelError)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads = torch.get_num_threads()
        options.log_severity_level = 3
        # Threads that wait by counting take the processor from those that decode the next images.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(
            exported(split, images), options, providers=["CPUExecutionProvider"]
        )

    def features(self, images: Tensor) -> Tensor:
        """Give what enters the head."""
        parts = torch.split(images.contiguous(), AT_ONCE * self.threads)
        found = [self.session.run(["features"], {"images": part.numpy()})[0] for part in parts]
        return torch.from_numpy(found[0] if len(found) == 1 else np.concatenate(found))


class OpenVino(_Traced):
    """Runs the network in OpenVINO, in float32 also where the processor has bfloat16."""

    def __init__(self, split: SplitModel, images: Tensor, form: str = "") -> None:
        super().__init__(split, images)
        openvino = needed("openvino", "engine openvino", "openvino", ModelError)
        core = openvino.Core()
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
        self.graph = core.compile_model(core.read_model(exported(split, images)), "CPU", settings)

    def features(self, images: Tensor) -> Tensor:
        """Give what enters the head."""
        return torch.from_numpy(self.graph(images.contiguous().numpy())[0])


ENGINES: dict[str, type[Plain] | type[_Traced]] = {
    "eager": Eager,
    "compiled": Compiled,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
}
FEW = 16
"""How many images an engine is tried on."""


def build(name: str, split: SplitModel, images: Tensor, form: str = "") -> Engine:
    """Make an engine for a network, and see that it gives the network's features for these images, together and alone.

    Where its form is given it was tried elsewhere, and is made without trying.
    """
    try:
        engine = ENGINES[name](split, images, form)
        if name != "eager" and not form:
            few = images[:FEW]
            expected = Plain(split, few).run(few)[0]
            for count in {len(few), 1}:
                far = distance(engine.run(few[:count])[0], expected[:count])
                if not far <= CLOSE:
                    raise ModelError(f"its features are {far:.1g} off (relative, allowed {CLOSE:g})")
        return engine
    except Exception as error:  # exporters and compilers raise whatever the network made them stumble over
        raise ModelError(reason(error)) from error


def version(name: str) -> str:
    """Give the version of the package behind an engine; nothing where it is not installed."""
    try:
        return importlib.metadata.version(PACKAGES[name])
    except importlib.metadata.PackageNotFoundError:
        return ""


def distance(found: Tensor, expected: Tensor) -> float:
    """Say how far features are from others, relative to the largest; images without numbers tell nothing."""
    if found.shape != expected.shape:
        return float("inf")
    finite = torch.isfinite(expected).all(dim=1)
    if not bool(finite.any()):
        return float("inf")
    found, expected = found[finite], expected[finite]
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-12))


def reason(error: Exception) -> str:
    """Say in one line why an engine cannot be used."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]


def exported(split: SplitModel, images: Tensor) -> bytes:
    """Write a network up to its features as ONNX, for any number of images.

    By tracing, which takes a second; where that fails by torch's newer exporter, which takes ten.
    """
    needed("onnx", "engine", "onnx", ModelError)
    file, graph, few = io.BytesIO(), _Features(split.copy()), _two_or_more(images)
    names: dict[str, Any] = {"input_names": ["images"], "output_names": ["features"]}
    with inference(graph), _quiet():
        try:
            axes = {"images": {0: "batch"}, "features": {0: "batch"}}
            torch.onnx.export(graph, (few,), file, dynamo=False, opset_version=OPSET, dynamic_axes=axes, **names)  # type: ignore[arg-type]
            return file.getvalue()
        except Exception:  # an operation that it does not know, or an exporter that this torch has no more
            needed("onnxscript", "engine", "onnx", ModelError)
            shapes = ({0: torch.export.Dim("batch", min=1)},)
            program = torch.onnx.export(graph, (few,), dynamo=True, external_data=False, dynamic_shapes=shapes, **names)
            assert program is not None
            return bytes(program.model_proto.SerializeToString())


class _Features(nn.Module):
    """Computes a network's features: what is traced."""

    def __init__(self, split: SplitModel) -> None:
        super().__init__()
        self.split, self.model = split, split.model

    def forward(self, images: Tensor) -> Tensor:
        return self.split.look(images)[0].float()


def _two_or_more(images: Tensor) -> Tensor:
    """Give two images: a batch of one would be taken for a fixed size."""
    return images[:2] if len(images) > 1 else torch.cat([images, images])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what exporters and compilers say to themselves; what matters comes back as an error."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.utils.cpp_extension", "torch._dynamo")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
