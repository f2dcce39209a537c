from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import colour_world as world
import numpy as np
import pytest
import tiny_net
import torch
from colour_world import HOW, known_tensors, ood_tensors
from PIL import Image
from torch import Tensor, nn

from idness.core.errors import ExportError, StoreError
from idness.core.types import Activations
from idness.detectors.detector import Detector
from idness.detectors.registry import rows
from idness.guard import Guard
from idness.guard.onnx import GraphGuard
from tests.cli.running import idness

onnxruntime = pytest.importorskip("onnxruntime")
ALWAYS = ("msp", "scale", "knn", "fuse", "weiper")
"""An export takes seconds: these represent all methods, the others are tried by `make long`."""
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "onnx_without_torch.py"


def agree(guard: Guard, path: Path) -> None:
    """Compare onnxruntime with torch on normal, invalid and unnormalised images, as a batch and alone."""
    images = torch.cat([known_tensors(5, first=4_000)[0], ood_tensors(4)])
    images[3], images[6, 1] = float("nan"), float("inf")
    images[2] = (images[2] * 0.25 + 0.5) * 255  # not normalised
    images[7] *= 1e30
    assert guard(images).is_ood[[2, 3, 6, 7]].all()
    known = guard.rule().calibration.scores
    session, spread = onnxruntime.InferenceSession(str(path)), max(1.0, float(known.max() - known.min()))
    names = [output.name for output in session.get_outputs()]
    assert names == ["label", "score", "p_value", "is_ood"]
    assert [entry.name for entry in session.get_inputs()] == ["images"]
    for part in (images, images[:1], images[3:4]):
        verdict, found = guard(part), dict(zip(names, session.run(None, {"images": part.numpy()}), strict=True))
        wanted = verdict.score.numpy()
        error = np.abs(found["score"] - wanted) / np.maximum(spread, np.abs(wanted))
        assert error.max() < 1e-4
        np.testing.assert_allclose(found["p_value"], verdict.p_value.numpy(), atol=1.01 / 121)
        assert found["label"].tolist() == verdict.label.tolist()
        assert found["is_ood"].tolist() == verdict.is_ood.tolist()
        assert (found["label"].dtype, found["is_ood"].dtype) == (np.int64, bool)


@pytest.mark.fault(
    "NaN, Inf, or values outside the range at calibration, in an exported guard", does="ONNX flags them as torch does"
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.long) for name in rows()]
)
def test_every_method_decides_in_onnxruntime_as_in_torch(name: str, trained: nn.Module, tmp_path: Path) -> None:
    guard = Guard(trained, name, preprocessing=HOW).fit([known_tensors(120, first=3_000)])
    guard.calibrate([known_tensors(120)[0]], per_class=name == "msp", recall=0.9)
    agree(guard, guard.to_onnx(tmp_path / "guard.onnx"))


@pytest.mark.fault(
    "images change, and the guard is an exported one",
    does="`score` warns without torch too: the graph contains the calibration scores",
)
def test_an_exported_guard_runs_without_torch(guard: Guard, tmp_path: Path, id_folder: Path, ood_folder: Path) -> None:
    before = {name: value.clone() for name, value in guard.model.state_dict().items()}
    path = guard.to_onnx(tmp_path / "guard.onnx")
    assert all(torch.equal(before[name], value) for name, value in guard.model.state_dict().items())
    facts = GraphGuard(path).facts
    assert facts["detector"] == {"method": "scale", "options": {"readout": "energy", "percentile": 85.0}}
    assert facts["class_names"] == list(tiny_net.Tiny.class_names)
    assert facts["recalls"] == [0.95]
    assert facts["preprocessing"]["resize"] == [16, 16]
    pictures = [tmp_path / f"{name}.png" for name in ("red", "odd", "deep", "clear")]
    red = world.known("red", 5, side=40)
    red.save(pictures[0])
    world.ood_picture(1).save(pictures[1])
    Image.fromarray(np.asarray(red.convert("L")).astype(np.uint16) << 8).save(pictures[2])
    red.putalpha(90)
    red.save(pictures[3])
    records = guard.judge(*pictures).records()
    # None in sys.modules makes an import fail: the example must need neither torch nor idness.
    code = "import runpy, sys; sys.modules.update(torch=None, idness=None); del sys.argv[0]; runpy.run_path(sys.argv[0], None, '__main__')"
    words = [sys.executable, "-c", code, str(EXAMPLE), str(path), *map(str, pictures)]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    for line, record in zip(lines, records, strict=True):
        assert record["class"] in line
        assert ("OUT" in line) == record["is_ood"]
        assert f"p={record['p_value']:.3f}" in line
    _score_without_torch(path, pictures, records)
    assert GraphGuard(path).groups == guard.groups
    calm, other = (idness("score", path, folder, "-q", "--csv") for folder in (id_folder, ood_folder))
    assert "warning" not in calm.stderr
    assert "warning: these images differ as a whole from the calibration images" in other.stderr


def _score_without_torch(path: Path, pictures: list[Path], wanted: list[dict[str, Any]]) -> None:
    """Run `idness score` on the exported file where torch cannot be imported."""
    broken = path.with_name("broken.png")
    broken.write_bytes(b"no image")
    code = "import sys; sys.modules['torch'] = None; from idness.cli import main; main()"
    words = ["score", str(path), *map(str, [*pictures, broken]), "--json"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found[-1]["image"] == str(broken)
    assert "must be one of JPEG, PNG" in found[-1]["error"]
    for picture, record, expected in zip(pictures, found, wanted, strict=False):
        assert record["image"] == str(picture)
        # torch and Pillow round a few resized pixels differently, by one grey level.
        assert record == expected | {key: pytest.approx(expected[key], rel=5e-3) for key in ("score", "p_value")}
    with pytest.raises(StoreError, match="was not written by idness export"):
        GraphGuard(broken)
    with pytest.raises(StoreError, match="does not exist; write it with idness export"):
        GraphGuard(path.with_name("none.onnx"))
    for option in (["--recall", "0.9"], ["--model", "x"]):
        refused = idness("score", path, pictures[0], *option)
        assert (refused.returncode, "are fixed in an exported guard" in refused.stderr) == (2, True)


def with_external_data(location: str) -> bytes:
    """Return a graph whose data is in another file."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto
    numbers = onnx.numpy_helper.from_array(np.zeros(4, np.float32), "numbers")
    numbers.ClearField("raw_data")
    numbers.data_location = kind.EXTERNAL
    numbers.external_data.add(key="location", value=location)
    result = helper.make_tensor_value_info("result", kind.FLOAT, [4])
    graph = helper.make_graph([helper.make_node("Identity", ["numbers"], ["result"])], "g", [], [result], [numbers])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, {"idness": '{"preprocessing": {}, "detector": {"method": "x"}}'})
    return bytes(model.SerializeToString())


@pytest.mark.fault(
    "an ONNX file takes its data from another file: an absolute path, one with .., or one next to it",
    does="refused in one line; the other file is not opened",
)
@pytest.mark.parametrize("location", ["/etc/passwd", "../secret", "beside.bin"])
def test_data_in_other_files_is_refused(location: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("secret", "a/beside.bin"):
        (tmp_path / name).write_bytes(bytes(16))
    (tmp_path / "a" / "guard.onnx").write_bytes(with_external_data(location))
    world.known("red", 5).save(tmp_path / "a" / "red.png")
    done = idness("score", "guard.onnx", "red.png", cwd=tmp_path / "a")
    assert done.returncode == 2
    assert "guard.onnx: is damaged, or was not written by idness export" in done.stderr
    assert done.stderr.count("\n") == 1


@dataclass(kw_only=True)
class Asks(Detector):
    """A method that branches on values, or counts images, which no graph can."""

    branch: bool = True

    def rate(self, acts: Activations) -> Tensor:
        found = acts.logits.amax(dim=1) * torch.ones(len(acts.logits))
        return -found if self.branch and float(acts.logits.sum()) > 0 else found


@pytest.mark.parametrize("method", [Asks(), Asks(branch=False), *sorted(set(rows(costly=True)) - set(rows()))], ids=str)
def test_methods_that_cannot_be_exported_are_refused(
    method: str | Detector, trained: nn.Module, tmp_path: Path
) -> None:
    guard = Guard(trained, method, preprocessing=HOW).fit([known_tensors(40)]).calibrate([known_tensors(80)[0][40:]])
    said = f"{guard.detector.name} cannot be written as ONNX .* serve such a guard with idness serve"
    with pytest.raises(ExportError, match=said):
        guard.to_onnx(tmp_path / "guard.onnx")
    assert not list(tmp_path.iterdir())


def test_without_preprocessing_an_example_is_asked_for(trained: nn.Module, tmp_path: Path) -> None:
    guard = Guard(trained, "msp").calibrate([known_tensors(40)])
    with pytest.raises(ExportError, match="pass example="):
        guard.to_onnx(tmp_path / "guard.onnx")
    agree(guard, guard.to_onnx(tmp_path / "guard.onnx", example=known_tensors(1)[0]))
