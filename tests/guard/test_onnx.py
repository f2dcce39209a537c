from __future__ import annotations

import contextlib
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
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn

from idness.core.errors import ExportError, StoreError
from idness.core.types import Activations
from idness.detectors.detector import Detector
from idness.detectors.registry import rows
from idness.guard import Guard
from idness.guard.drift import KnownScores
from idness.guard.graph import GraphGuard
from idness.guard.onnx import score_range
from idness.guard.outside import external_files
from idness.networks.split import SplitModel
from tests.cli.running import idness

onnxruntime = pytest.importorskip("onnxruntime")
ALWAYS = ("msp", "scale", "knn", "fuse")
"""An export takes seconds; these stand for all methods, the others are tried by `make long`."""
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "onnx_without_torch.py"


def run(path: Path, images: Tensor) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(str(path))
    names = [output.name for output in session.get_outputs()]
    assert names == ["label", "score", "p_value", "is_ood"]
    assert [entry.name for entry in session.get_inputs()] == ["images"]
    return dict(zip(names, session.run(None, {"images": images.numpy()}), strict=True))


def agree(guard: Guard, path: Path) -> None:
    images = torch.cat([known_tensors(5, first=4_000)[0], ood_tensors(4)])
    images[3] = float("nan")
    images[6, 1] = float("inf")
    images[2] = (images[2] * 0.25 + 0.5) * 255  # not normalised
    images[7] *= 1e30
    assert guard(images).is_ood[[2, 3, 6, 7]].all()
    for part in (images, images[:1], images[3:4]):
        verdict, found = guard(part), run(path, part)
        wanted = verdict.score.numpy()
        error = np.abs(found["score"] - wanted) / np.maximum(max(1.0, score_range(guard)), np.abs(wanted))
        assert error.max() < 1e-4
        np.testing.assert_allclose(found["p_value"], verdict.p_value.numpy(), atol=1.01 / 121)
        assert found["label"].tolist() == verdict.label.tolist()
        assert found["is_ood"].tolist() == verdict.is_ood.tolist()
        assert found["label"].dtype == np.int64
        assert found["is_ood"].dtype == bool


@pytest.mark.fault(
    "NaN, Inf, or values as no calibration image had, in an exported guard", does="ONNX calls them OOD as torch does"
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
    does="`score` tells it too, without torch: the graph carries the calibration scores",
)
def test_what_the_graph_carries_and_the_example_runs_it_without_torch(
    guard: Guard, tmp_path: Path, id_folder: Path, ood_folder: Path
) -> None:
    before = {name: value.clone() for name, value in guard.model.state_dict().items()}
    path = guard.to_onnx(tmp_path / "guard.onnx")
    assert all(torch.equal(before[name], value) for name, value in guard.model.state_dict().items())
    facts = json.loads(onnxruntime.InferenceSession(str(path)).get_modelmeta().custom_metadata_map["idness"])
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
    # None in sys.modules makes an import fail: the example must need neither torch nor idness.
    code = "import runpy, sys; sys.modules.update(torch=None, idness=None); del sys.argv[0]; runpy.run_path(sys.argv[0], None, '__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(EXAMPLE), str(path), *map(str, pictures)],
        capture_output=True,
        text=True,
        check=True,
    )
    verdict = guard.judge(*pictures)
    _score_without_torch(path, pictures, verdict.records())
    _drift_is_told(path, guard, id_folder, ood_folder)
    lines = done.stdout.strip().splitlines()
    assert len(lines) == len(pictures)
    for line, record in zip(lines, verdict.records(), strict=True):
        assert record["class"] in line
        assert ("OUT" in line) == record["is_ood"]
        assert f"p={record['p_value']:.3f}" in line


def _score_without_torch(path: Path, pictures: list[Path], wanted: list[dict[str, Any]]) -> None:
    """Run `idness score` on the exported file where torch cannot be imported, and through the library."""
    broken = path.with_name("broken.png")
    broken.write_bytes(b"no picture")
    code = "import sys; sys.modules['torch'] = None; from idness.cli import main; main()"
    words = ["score", str(path), *map(str, [*pictures, broken]), "--json"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found[-1] == {
        "image": str(broken),
        "error": "broken.png: must be one of JPEG, PNG, WEBP, BMP, GIF, TIFF, PPM, got text",
    }
    for picture, record, expected in zip(pictures, found, wanted, strict=False):
        assert record.pop("image") == str(picture)
        # torch and Pillow round a few resized pixels differently, by one grey level.
        assert record == expected | {key: pytest.approx(expected[key], rel=5e-3) for key in ("score", "p_value")}
    with pytest.raises(StoreError, match="is no guard that idness export wrote"):
        GraphGuard(broken)
    with pytest.raises(StoreError, match="is not there; write it with idness export"):
        GraphGuard(path.with_name("none.onnx"))
    for words in (["--recall", "0.9"], ["--model", "x"]):
        refused = idness("score", path, pictures[0], *words)
        assert (refused.returncode, "are fixed in an exported guard" in refused.stderr) == (2, True)


def _drift_is_told(path: Path, guard: Guard, id_folder: Path, ood_folder: Path) -> None:
    """Images that are not like those of calibration are told for an exported guard as for its folder."""
    assert guard.calibration is not None
    assert GraphGuard(path).calibration == KnownScores(guard.calibration.score_groups())
    calm, other = (idness("score", path, folder, "-q", "--csv") for folder in (id_folder, ood_folder))
    assert "warning" not in calm.stderr
    assert "warning: these images are not like those that the guard was calibrated on" in other.stderr
    assert external_files(path.read_bytes()) == []


def _stranger(location: str, *, nested: bool = False) -> bytes:
    """A graph whose numbers lie in another file, or whose branch's do."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto
    numbers = onnx.numpy_helper.from_array(np.zeros(4, np.float32), "numbers")
    numbers.ClearField("raw_data")
    numbers.data_location = kind.EXTERNAL
    numbers.external_data.add(key="location", value=location)
    result = helper.make_tensor_value_info("result", kind.FLOAT, [4])
    inner = helper.make_graph([helper.make_node("Identity", ["numbers"], ["result"])], "g", [], [result], [numbers])
    if nested:
        ask = helper.make_tensor_value_info("ask", kind.BOOL, [])
        choice = helper.make_node("If", ["ask"], ["result"], then_branch=inner, else_branch=inner)
        inner = helper.make_graph([choice], "outer", [ask], [result])
    return helper.make_model(inner).SerializeToString()


@pytest.mark.fault(
    "an ONNX file takes its numbers from another file: an absolute path, one with .., or one beside it",
    does="is refused in one line, and the other file is not opened",
)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("location", ["/etc/passwd", "../secret", "beside.bin"])
def test_numbers_in_other_files_are_refused(location: str, nested: bool, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("secret", "a/beside.bin"):
        (tmp_path / name).write_bytes(bytes(16))
    (tmp_path / "a" / "guard.onnx").write_bytes(_stranger(location, nested=nested))
    world.known("red", 5).save(tmp_path / "a" / "red.png")
    done = idness("score", "guard.onnx", "red.png", cwd=tmp_path / "a")
    assert done.returncode == 2
    assert f"guard.onnx: takes its numbers from another file, '{location}', which is not opened" in done.stderr
    assert done.stderr.count("\n") == 1


@given(place=st.integers(0, 10_000), put=st.binary(max_size=8), cut=st.integers(0, 8))
def test_a_look_for_other_files_ends_well_whatever_it_sees(place: int, put: bytes, cut: int) -> None:
    whole = _stranger("x", nested=True)
    place %= len(whole)
    with contextlib.suppress(ValueError):
        assert all(isinstance(name, str) for name in external_files(whole[:place] + put + whole[place + cut :]))


def test_scores_that_a_graph_carries_are_checked() -> None:
    known = KnownScores([[-1.5, 0.25], [], [3.0]])
    assert KnownScores.parse(known.text()) == known
    for groups in ([[2.0, 1.0]], [[float("nan")]], []):
        with pytest.raises(ValueError):
            KnownScores.parse(KnownScores(groups).text())
    with pytest.raises(ValueError):
        KnownScores.parse(known.text().replace("[2, 0, 1]", "[2, 1, 1]"))


@dataclass(kw_only=True)
class Asks(Detector):
    """Branch on the values, which no graph can."""

    def rate(self, acts: Activations) -> Tensor:
        return acts.logits.amax(dim=1) if float(acts.logits.sum()) > 0 else acts.logits.amin(dim=1)


def test_what_cannot_be_exported_is_said_and_nothing_is_written(trained: nn.Module, tmp_path: Path) -> None:
    guard = Guard(trained, Asks(), preprocessing=HOW).calibrate([known_tensors(40)[0]])
    with pytest.raises(ExportError, match="asks cannot be written as ONNX"):
        guard.to_onnx(tmp_path / "guard.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(set(rows(costly=True)) - set(rows())))
def test_methods_of_two_passes_are_refused(name: str, trained: nn.Module, tmp_path: Path) -> None:
    guard = Guard(trained, name, preprocessing=HOW).fit([known_tensors(40)]).calibrate([known_tensors(80)[0][40:]])
    method = guard.detector.name
    with pytest.raises(
        ExportError, match=f"{method} cannot be written as ONNX .* serve such a guard with idness serve"
    ):
        guard.to_onnx(tmp_path / "guard.onnx")
    assert not list(tmp_path.iterdir())


def test_unknown_image_size_is_asked_for(trained: nn.Module, tmp_path: Path) -> None:
    acts = SplitModel(trained).extract([known_tensors(40)[0]])
    with pytest.raises(ExportError, match="give example="):
        Guard(trained, "msp").calibrate(acts).to_onnx(tmp_path / "guard.onnx")


def test_calibration_on_images_tells_their_size(trained: nn.Module, tmp_path: Path) -> None:
    guard = Guard(trained, "msp").calibrate([known_tensors(40)])
    agree(guard, guard.to_onnx(tmp_path / "guard.onnx"))


def test_training_mode_and_bfloat16_do_not_change_the_graph(guard: Guard, tmp_path: Path) -> None:
    guard.train()
    path = guard.to_onnx(tmp_path / "guard.onnx", example=known_tensors(1)[0])
    assert guard.training
    guard.eval()
    agree(guard, path)
