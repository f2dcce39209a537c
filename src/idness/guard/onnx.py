"""Guards as ONNX graphs: exporting them from torch, and running them with onnxruntime alone.

Only the functions that export import torch, so that an exported guard runs without it.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from idness.core.errors import ExportError, StoreError, needed
from idness.core.files import atomic_write, check_writable, key_of, sha256
from idness.core.progress import Progress
from idness.data.batches import read_batches
from idness.data.preprocess import Preprocessing
from idness.data.sets import ImageSet
from idness.guard.verdict import FAR_ABOVE, NOT_FINITE, Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from idness.guard.guard import Guard, GuardGraph

SUFFIX = ".onnx"
BATCH = 16
OPSET = 20
TOLERANCE = 1e-4
OUTPUTS = ("label", "score", "p_value", "is_ood")
THRESHOLD = "threshold"
"""The optional input that replaces the calibrated threshold."""
NOWHERE = os.devnull + "/no-external-data"
"""A folder that cannot exist: the only one from which a graph may load external data."""


class GraphGuard:
    """A guard exported by `Guard.to_onnx`: network, detector and threshold in one graph; does not need torch.

    It can be used for scoring and serving like a `Guard`.
    """

    gallery: None = None
    """An exported guard has no calibration images."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise StoreError(f"{path}: does not exist; write it with idness export")
        try:
            self.session = _session(self.path)
            self._metadata = metadata = self.session.get_modelmeta().custom_metadata_map
            self.facts: dict[str, Any] = json.loads(metadata["idness"])
            # Version 0.1 exported neither method nor scores; drift is then not monitored.
            self.method = str(metadata.get("method", self.facts["detector"]["method"]))
            self.ceiling = float(json.loads(metadata.get("ceiling", "Infinity")))
            names = self.facts.get("class_names")
            self.class_names: tuple[str, ...] | None = None if names is None else tuple(map(str, names))
            self.groups: list[list[float]] | None = None
            if "calibration" in metadata:
                known = json.loads(metadata["calibration"])
                scores = np.frombuffer(base64.b64decode(known["scores"]), dtype="<f4").astype(np.float64)
                self.groups = [part.tolist() for part in np.split(scores, np.cumsum(known["sizes"])[:-1])]
        except StoreError:
            raise
        except Exception as error:  # onnxruntime raises errors of many types for invalid files
            raise StoreError(
                f"{path}: is damaged, or was not written by idness export; export the guard again"
            ) from error
        if not isinstance(self.facts.get("preprocessing"), dict):
            raise StoreError(f"{path}: has no preprocessing; export a guard with preprocessing")
        self.preprocessing = Preprocessing.from_dict(self.facts["preprocessing"])

    def describe(self) -> dict[str, Any]:
        """Return the guard as plain values."""
        return self.facts

    def promise(self) -> str:
        """Return the guarantee in one sentence; empty if version 0.1 exported the guard."""
        return str(self._metadata.get("promise", ""))

    def identity(self, batch: int) -> str:
        """Return a hash of everything besides the image that affects a verdict."""
        return key_of(sha256(self.path), str(batch))

    def batch_size(self, wanted: int | None = None) -> int:
        """Return the batch size; without a fixed input size, each image is a batch of its own."""
        return (wanted or BATCH) if self.preprocessing.size is not None else 1

    def verdicts(
        self, images: ImageSet, *, batch: int | None = None, progress: Progress | None = None
    ) -> Iterator[Verdict]:
        """Yield the verdicts on a set, batch by batch; an image that cannot be read has an error."""
        size = self.batch_size(batch)
        spans = ((start, min(start + size, len(images))) for start in range(0, len(images), size))
        for read in read_batches(images, self.preprocessing, spans):
            if progress is not None:
                progress.advance(read.stop - read.start)
            yield self(self.preprocessing.normalize_array(read.pixels)).of_batch(images, read)

    def judge_array(self, images: NDArray[Any]) -> tuple[Verdict, list[None]]:
        """Return the verdict on pixels (N, H, W, C) uint8 or preprocessed images (N, C, H, W) float32; there are no features."""
        pixels = images.dtype == np.uint8
        return self(self.preprocessing.normalize_array(images) if pixels else images), [None] * len(images)

    def __call__(self, images: NDArray[Any]) -> Verdict:
        """Return the verdict on a batch of preprocessed images, as NumPy arrays."""
        nothing: list[Any] = [np.zeros(0)] * len(OUTPUTS)
        label, score, p_value, is_ood = self.session.run(None, {"images": images}) if len(images) else nothing
        reasons = dict.fromkeys(np.flatnonzero(label < 0).tolist(), NOT_FINITE)
        cautions = dict.fromkeys(np.flatnonzero(score > self.ceiling).tolist(), FAR_ABOVE)
        return Verdict(label, score, p_value, is_ood, {}, reasons, self.class_names, cautions)


def _session(path: Path) -> Any:
    """Open a graph on the CPU; raise if it refers to other files, since it could name any file on this machine."""
    runtime = needed("onnxruntime", "score", "onnx", StoreError)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS") or 0)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", NOWHERE)
    return runtime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def check_target(path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Raise unless a path ends in .onnx and either does not exist or was exported by idness, or `force` is set."""
    target = Path(path)
    check_writable(target.parent)
    if target.suffix != SUFFIX:
        raise StoreError(f"{target}: an exported guard must end in {SUFFIX}; choose another name")
    if force or not os.path.lexists(target):
        return
    onnx = _onnx()
    try:
        known = [entry.key for entry in onnx.load(target, load_external_data=False).metadata_props]
    except Exception:  # reading another program's file can raise anything
        known = []
    if "idness" not in known:
        raise StoreError(f"{target}: exists and was not exported by idness; choose another name or pass force=True")


def to_onnx(guard: Guard, graph: GuardGraph, path: str | os.PathLike[str], example: Tensor | None, force: bool) -> Path:
    """Export a guard, given its graph; the other arguments are those of `Guard.to_onnx`.

    The file is compared with torch before it is written. Methods that need a second pass of the network cannot be exported, nor can
    methods of other packages whose `rate` branches on values or leaves torch.
    """
    import torch

    from idness.networks.modules import inference

    check_target(path, force=force)
    if guard.detector.input_edit is not None:
        raise _refused(guard, "it needs gradients")
    if guard.split.dtype in (torch.float64, torch.bfloat16):
        raise ExportError(
            f"to_onnx: the network is in {guard.split.dtype}, which onnxruntime cannot run; convert it with model.float() and"
            " calibrate again"
        )
    onnx = _onnx()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns if torchvision is not installed
    if example is None:
        how = guard.preprocessing
        if how is None or how.size is None:
            raise ExportError("to_onnx: the network's input size is unknown; pass example=, a batch of input")
        example = torch.randn(2, how.channels, *how.size, generator=torch.Generator().manual_seed(0))
    # Two images: a batch of one would become a fixed size.
    images = torch.cat((example, example))[:2].to(guard.split.device, guard.split.dtype)
    expected = guard(images)
    with inference(graph), warnings.catch_warnings(action="ignore"):
        try:
            program = torch.onnx.export(
                graph,
                (images, guard.threshold()),
                dynamo=True,
                external_data=False,
                verbose=False,
                opset_version=OPSET,
                input_names=["images", THRESHOLD],
                output_names=list(OUTPUTS),
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)}, None),
            )
        except Exception as error:  # networks and methods of other packages can make the exporter raise anything
            cause = error.__cause__ or error  # the exporter's own message is general advice
            reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
            raise _refused(guard, reason[:200]) from error
    assert program is not None
    proto = program.model_proto
    # An input with an initializer is optional.
    proto.graph.initializer.append(onnx.numpy_helper.from_array(guard.threshold().cpu().numpy(), THRESHOLD))
    proto.producer_name = "idness"
    proto.doc_string = "images -> label, score (ID-ness, higher is more in-distribution), p_value, is_ood"
    known = graph.calibration
    scores = base64.b64encode(known.scores.cpu().numpy().astype("<f4").tobytes()).decode()
    metadata = {
        "idness": json.dumps(guard.describe(), ensure_ascii=False),
        "method": guard.method,
        "promise": guard.promise(),
        "ceiling": json.dumps(known.ceiling),
        "calibration": json.dumps({"sizes": known.sizes.tolist(), "scores": scores}),
    }
    onnx.helper.set_model_props(proto, metadata)
    return atomic_write(path, proto.SerializeToString(), lambda part: _check(part, images, expected, guard))


def _check(file: Path, images: Tensor, expected: Any, guard: Guard) -> None:
    """Run the file and compare it with torch, for the batch it was traced with and for one image.

    Differences are relative to the score, or to the range of the calibration scores if that is larger: a score near zero may be the
    difference of large distances, with their rounding error.
    """
    session, known = _session(file), guard.rule().calibration.scores
    scale = max(1.0, float(known.max() - known.min()))
    for count in (len(images), 1):
        try:
            label, score, p_value, _ = session.run(None, {"images": images[:count].cpu().numpy()})
        except Exception as failure:  # onnxruntime has its own errors
            fixed = "the graph takes a fixed number of images; in forward, use x.shape[0], not len(x)"
            raise _refused(guard, fixed) from failure
        wanted = expected.score[:count].cpu().numpy()
        error = float(np.max(np.abs(score - wanted) / np.maximum(scale, np.abs(wanted))))
        same = bool(np.array_equal(label, expected.label[:count].cpu().numpy())) and p_value.shape == (count,)
        if not same or not error <= TOLERANCE:
            raise ExportError(
                f"{guard.detector.name}: onnxruntime and torch disagree by {error:.2g} (relative, allowed {TOLERANCE:g});"
                " the file was not written"
            )


def _refused(guard: Guard, reason: str) -> ExportError:
    return ExportError(
        f"the network with {guard.detector.name} cannot be written as ONNX ({reason}); TorchScript and int8 networks, and methods that"
        " run the network again or branch on values, cannot be exported: serve such a guard with idness serve"
    )


def _onnx() -> Any:
    for module in ("onnxruntime", "onnxscript"):
        needed(module, "to_onnx", "onnx", ExportError)
    return needed("onnx", "to_onnx", "onnx", ExportError)
