"""Writes a guard as one ONNX graph: network, detector, p-value and decision."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from idness.core.errors import ExportError, StoreError
from idness.core.files import atomic_write, check_writable
from idness.core.types import Activations, Head
from idness.detectors.detector import LARGEST, Detector, Enhancer
from idness.guard.drift import KnownScores
from idness.guard.file import describe
from idness.guard.graph import SUFFIX
from idness.networks.modules import inference

if TYPE_CHECKING:
    from idness.guard.guard import Guard

OPSET = 20
TOLERANCE = 1e-4
OUTPUTS = ("label", "score", "p_value", "is_ood")
REFUSED = (
    "the network with {name} cannot be written as ONNX ({reason}); methods that run the network again or use data-dependent"
    " control flow cannot be exported: serve such a guard with idness serve"
)
NEEDED = "needs onnx, onnxscript and onnxruntime; run pip install 'idness[onnx]'"


class GuardGraph(nn.Module):
    """Computes a guard's verdict as plain tensors: what is exported.

    It runs a copy of the network, as tracing changes a network for as long as it takes, and others may be using it.
    """

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        calibration = guard.calibration
        assert calibration is not None  # Guard.to_onnx has looked
        self.split = guard.split.copy()
        self.model = self.split.model
        self.detector, self.calibration = guard.detector, calibration
        self.limits, self.input_range = guard.threshold(), guard.input_range
        # The edited head does not depend on the image: it goes into the graph as it is.
        self.edited = _edited_head(guard.detector, guard.split.head)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        features, logits = (value.float() for value in self.split.look(images))
        # A sum is finite when every value is, and cheaper than looking at each; features whose sum overflows are no ID image's.
        finite = (features * 0).sum(dim=1) + (logits * 0).sum(dim=1) == 0
        features, logits = (torch.where(finite.unsqueeze(1), value, 0.0) for value in (features, logits))
        score = self._rate(features, logits).float()
        score = torch.where(score.isnan(), -LARGEST, score).clamp(-LARGEST, LARGEST)
        label = torch.where(finite, logits.argmax(dim=1), -1)
        if self.input_range is not None:
            finite = finite & self.input_range.holds(images)
        score = torch.where(finite, score, -LARGEST)
        group = self.calibration.group(label)
        is_ood = (score < self.limits[group]) | ~finite
        return label, score, self.calibration.p_values(score, label), is_ood

    def _rate(self, features: Tensor, logits: Tensor) -> Tensor:
        if self.edited is not None and isinstance(self.detector, Enhancer):
            return self.detector.read(linear(self.detector.shape(features), self.edited.weight, self.edited.offset))
        return self.detector.rate(_traced(features, logits))


def check_target(path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Raise unless a graph may be written to a path: it ends in .onnx, and what it replaces was exported by idness, or `force` is set."""
    target = Path(path)
    check_writable(target.parent)
    if target.suffix != SUFFIX:
        raise StoreError(f"{target}: an exported guard must end in {SUFFIX}; choose another name")
    if os.path.lexists(target) and not force and not _is_ours(target):
        raise StoreError(f"{target}: exists and was not exported by idness; choose another name or pass force=True")


def _is_ours(path: Path) -> bool:
    """Whether a file is a graph that idness exported."""
    try:
        return any(entry.key == "idness" for entry in _onnx().load(path, load_external_data=False).metadata_props)
    except ExportError:  # onnx is not installed
        raise
    except Exception:  # a foreign file fails to parse in any way
        return False


def to_onnx(guard: Guard, path: str | os.PathLike[str], *, example: Tensor | None = None, force: bool = False) -> Path:
    """Export a guard and check the file against torch; refuses rather than writing a graph that decides otherwise.

    Every method of idness that takes one pass of the network can be expressed. A third party's cannot where its `rate`
    branches on values or leaves torch; that is said, and nothing is written.
    """
    check_target(path, force=force)
    if guard.detector.input_edit is not None:
        raise ExportError(REFUSED.format(name=guard.detector.name, reason="it needs gradients"))
    if guard.split.dtype == torch.float64:
        raise ExportError(
            "to_onnx: the network is in float64, which onnxruntime cannot run; convert it with model.float() and calibrate again"
        )
    onnx = _onnx()
    images = _example(guard, example)
    graph = GuardGraph(guard)
    expected = guard(images)
    with inference(graph), _quiet():
        proto = _export(graph, images, guard.detector.name)
    facts = describe(guard)
    _annotate(
        onnx,
        proto,
        {
            "idness": json.dumps(facts, ensure_ascii=False),
            "threshold": json.dumps(guard.threshold().tolist()),
            "ceiling": json.dumps(graph.calibration.ceiling),
            "calibration": KnownScores(graph.calibration.score_groups()).text(),
        },
    )
    return atomic_write(path, proto.SerializeToString(), lambda part: _check(part, images, expected, guard))


def _export(graph: nn.Module, images: Tensor, name: str) -> Any:
    try:
        program = torch.onnx.export(
            graph,
            (images,),
            dynamo=True,
            external_data=False,
            opset_version=OPSET,
            input_names=["images"],
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        )
    except (
        Exception
    ) as error:  # the exporter raises whatever the network or a third party's method made it stumble over
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ExportError(REFUSED.format(name=name, reason=reason[:200])) from error
    assert program is not None
    return program.model_proto


def _annotate(onnx: Any, proto: Any, facts: dict[str, str]) -> None:
    proto.producer_name = "idness"
    proto.doc_string = "images -> label, score (ID-ness, higher is more in-distribution), p_value, is_ood"
    onnx.helper.set_model_props(proto, facts)


def _check(file: Path, images: Tensor, expected: Any, guard: Guard) -> None:
    """Run the file and compare it with torch, for the batch it was traced with and for one image.

    Differences count relative to the score, or to the range of the calibration scores where that is larger: a
    difference of large distances may be near zero and still be rounded at their size.
    """
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file.read_bytes(), options, providers=["CPUExecutionProvider"])
    spread = max(1.0, score_range(guard))
    for count in (len(images), 1):
        label, score, p_value, _ = session.run(None, {"images": images[:count].cpu().numpy()})
        wanted = expected.score[:count].cpu().numpy()
        error = float(np.max(np.abs(score - wanted) / np.maximum(spread, np.abs(wanted))))
        same = bool(np.array_equal(label, expected.label[:count].cpu().numpy())) and p_value.shape == (count,)
        if not same or not error <= TOLERANCE:
            raise ExportError(
                f"{guard.detector.name}: onnxruntime and torch disagree by {error:.2g} (relative, allowed {TOLERANCE:g});"
                " the file was not written"
            )


def score_range(guard: Guard) -> float:
    """Give the range of the calibration scores."""
    assert guard.calibration is not None
    return float(guard.calibration.scores.max() - guard.calibration.scores.min())


def _example(guard: Guard, example: Tensor | None) -> Tensor:
    if example is None:
        how = guard.preprocessing
        shape = guard.image_shape if how is None or how.size is None else (how.channels, *how.size)
        if shape is None:
            raise ExportError("to_onnx: the size of the network's images is not known; give example=, a batch of them")
        example = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    if len(example) == 1:
        example = example.repeat(2, *(1 for _ in example.shape[1:]))  # a batch of one would be taken for a fixed size
    return example[:2].to(guard.split.device, guard.split.dtype)


def _traced(features: Tensor, logits: Tensor) -> Activations:
    """Join tensors without the checks of `Activations`, whose len() would fix the batch size of the graph."""
    acts = object.__new__(Activations)
    for name, value in (("features", features), ("logits", logits), ("labels", None), ("edited", None)):
        object.__setattr__(acts, name, value)
    return acts


def _edited_head(detector: Detector, head: Head) -> Head | None:
    """Give the head that a method makes of the network's, or none where it leaves it."""
    if isinstance(detector, Enhancer) and type(detector).edit is not Enhancer.edit:
        return detector.edit(head)
    return None


def _onnx() -> Any:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ExportError(f"to_onnx: {NEEDED}") from error
    del onnxruntime
    return onnx


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress lines and notes to itself; what matters comes back as an error."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
