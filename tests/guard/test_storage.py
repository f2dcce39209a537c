"""Saved guards: every method comes back the same, and damaged or forged files are refused in one line."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import colour_world as world
import pytest
import tiny_net
import torch
from colour_world import HOW, known_tensors, ood_tensors
from safetensors.torch import load_file, save
from torch import Tensor, nn

from idness.core.errors import IdnessError, ModelError, StoreError
from idness.data import ArraySet
from idness.detectors.registry import rows
from idness.guard import Guard
from idness.guard.gallery import Gallery
from idness.networks.load import load_weights

V1 = Path(__file__).resolve().parents[1] / "samples" / "guard-v1"


def forge(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest, and its checksum with it."""
    manifest = json.loads((folder / "guard.json").read_text())
    del manifest["checksum"]
    change(manifest)
    manifest["checksum"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "guard.json").write_text(json.dumps(manifest))


def mixed() -> Tensor:
    return torch.cat([known_tensors(12, first=4_000)[0], ood_tensors(12)])


@pytest.mark.parametrize("name", list(rows(costly=True)))
def test_every_method_loads_as_it_was_saved(name: str, trained: nn.Module, tmp_path: Path) -> None:
    guard = Guard(trained, name, preprocessing=HOW, class_names=tiny_net.Tiny.class_names)
    guard.fit([known_tensors(120, first=3_000)]).calibrate(
        [known_tensors(120)[0]], [0.95, 0.9], per_class=name == "ebo"
    )
    loaded = Guard.load(guard.save(tmp_path / "guard"), trained)
    before, after = guard(mixed()), loaded(mixed())
    assert loaded.detector.config() == guard.detector.config()
    assert (loaded.preprocessing, loaded.class_names) == (HOW, tiny_net.Tiny.class_names)
    assert loaded.recalls == (0.95, 0.9)
    for field in ("label", "score", "p_value", "is_ood"):
        assert torch.equal(getattr(before, field), getattr(after, field))


def test_gallery_is_saved(guard: Guard, tmp_path: Path) -> None:
    pictures = [world.known("red", seed) for seed in range(6)]
    acts = guard.split.split(torch.stack([HOW(picture) for picture in pictures]))
    guard.gallery = Gallery.of(ArraySet(pictures), replace(acts, index=torch.arange(6)), guard.detector)
    loaded = Guard.load(guard.save(tmp_path), guard.split).gallery
    assert loaded is not None
    assert loaded.thumbnails == guard.gallery.thumbnails
    assert [loaded.nearest(row, 3)[0][0] for row in acts.features] == list(range(6))


def test_a_python_file_runs_only_if_the_user_has_named_it(guard: Guard, tmp_path: Path) -> None:
    code = tmp_path / "evil.py"
    code.write_text("raise SystemExit('this must not run')")
    guard.spec = f"{code}:make"
    folder = guard.save(tmp_path / "guard", bundle=True)
    with pytest.raises(ModelError, match=r"have not run with idness.*model='path/to/evil\.py:make'"):
        Guard.load(folder)
    guard.spec = None
    with pytest.raises(ModelError, match="does not name its network"):
        Guard.load(guard.save(tmp_path / "nameless"))


def test_another_network_is_refused_in_one_line(guard: Guard, tmp_path: Path) -> None:
    folder = guard.save(tmp_path)
    with pytest.raises(ModelError, match="another network") as caught:
        Guard.load(folder, tiny_net.make())
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="'fc'"):
        Guard.load(folder, nn.Sequential(nn.Flatten(), nn.Linear(768, 4)))


def test_a_network_that_was_trained_since_calibration_is_refused(trained: nn.Module, tmp_path: Path) -> None:
    model = copy.deepcopy(trained)
    guard = Guard(model, "ebo", preprocessing=HOW).calibrate([known_tensors(60)[0]])
    with torch.no_grad():
        model.fc.bias += 3.0
    for write in (guard.save, guard.to_onnx):
        with pytest.raises(ModelError, match="weights, .* have changed since calibration; calibrate again"):
            write(tmp_path / "after.onnx")
    assert not (tmp_path / "after.onnx" / "guard.json").exists()
    Guard.load(guard.calibrate([known_tensors(60)[0]]).save(tmp_path / "again"), model)


@pytest.mark.parametrize(
    "change", [("detector.percentile", 30.0), ("preprocessing", replace(HOW, mean=(0.1, 0.2, 0.3)))]
)
def test_a_detector_or_preprocessing_that_changed_since_calibration_is_refused(
    change: tuple[str, object], guard: Guard, tmp_path: Path
) -> None:
    owner, _, name = change[0].rpartition(".")
    setattr(getattr(guard, owner) if owner else guard, name, change[1])
    for made in (guard, guard.set_recall(0.8)):
        with pytest.raises(ModelError, match="detector or the preprocessing have changed since calibration"):
            made.save(tmp_path / "guard")
    Guard.load(guard.calibrate([known_tensors(60)[0]]).save(tmp_path / "guard"), guard.split)


def test_damaged_and_missing_files_are_named(guard: Guard, tmp_path: Path) -> None:
    """Cut and flip bytes of both files at many places: always one clear line, never a wrong guard."""
    folder = guard.save(tmp_path / "guard")
    rng = torch.Generator().manual_seed(0)
    for file in folder.iterdir():
        whole = file.read_bytes()
        for place in torch.randint(0, len(whole) - 1, (25,), generator=rng).tolist():  # the last is a line break
            flipped = bytearray(whole)
            flipped[place] ^= 1 << (place % 8)
            for content in (bytes(flipped), whole[:place]):
                file.write_bytes(content)
                with pytest.raises(IdnessError) as caught:
                    Guard.load(folder, guard.split)
                assert "\n" not in str(caught.value)
        file.write_bytes(whole)
    Guard.load(folder, guard.split)
    with pytest.raises(StoreError, match=r"nothing does not exist; create a guard with idness calibrate"):
        Guard.load(tmp_path / "nothing", guard.split)
    next(folder.glob("tensors-*")).unlink()
    with pytest.raises(StoreError, match=r"no tensors-\w+\.safetensors"):
        Guard.load(folder, guard.split)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        guard.save(tmp_path / "file")


def test_saving_again_replaces_the_guard(guard: Guard, tmp_path: Path) -> None:
    folder = guard.save(tmp_path / "guard", bundle=True)
    guard.calibrate([known_tensors(80, first=900)[0]])
    weights = next(folder.glob("weights-*"))
    guard.save(folder)
    assert (len(list(folder.glob("tensors-*"))), weights.is_file()) == (1, True)  # the user may have no other copy
    assert len(Guard.load(folder, guard.split).calibration or ()) == 80


@pytest.mark.fault("a guard is passed on to others", does="contains no pickle and no path of the machine that made it")
def test_no_pickle_and_no_path_of_this_machine_is_written(guard: Guard, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def make(): ...\n")
    guard.spec = f"{tmp_path / 'net.py'}:make"
    folder = guard.save(tmp_path / "guard", bundle=True)
    assert json.loads((folder / "guard.json").read_text())["model"]["spec"] == "net.py:make"
    for file in folder.iterdir():
        content = file.read_bytes()
        assert file.suffix in (".json", ".safetensors")
        assert str(tmp_path).encode() not in content
        assert not content.startswith((b"\x80", b"PK"))


def test_guards_of_version_0_1_0_load() -> None:
    guard = Guard.load(V1, load_weights(tiny_net.make(), next(V1.glob("weights-*.safetensors"))))
    expected = json.loads((V1 / "expected.json").read_text())
    pictures = [world.known(name, 321) for name in world.COLOURS] + [world.ood_picture(seed) for seed in range(4)]
    verdict = guard.judge(*pictures)
    torch.testing.assert_close(verdict.score, torch.tensor(expected["score"]), rtol=1e-4, atol=1e-4)
    assert verdict.label.tolist() == expected["label"]
    assert verdict.is_ood.tolist() == expected["is_ood"]
    assert guard.gallery is not None


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return load_weights(tiny_net.make(), next(V1.glob("weights-*")))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(V1, tmp_path / "guard", dirs_exist_ok=True))


def problem(folder: Path, network: nn.Module) -> str:
    """Load a guard and use it, and return the error in one line; empty if there is none."""
    said = ""
    try:
        guard = Guard.load(folder, network)
        guard(torch.zeros(3, 3, 16, 16)).records()
        guard.promise()
    except IdnessError as error:
        said = str(error)
    assert "\n" not in said
    return said


def test_a_manifest_does_not_lead_out_of_its_folder(copied: Path, network: nn.Module) -> None:
    shutil.copy(next(copied.glob("tensors-*")), copied.parent / "outside.safetensors")
    forge(copied, lambda manifest: manifest["tensors"].update(file="../outside.safetensors"))
    assert "no outside.safetensors" in problem(copied, network)


TENSORS: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "no calibration": lambda t: t.pop("calibration.scores"),
    "few scores": lambda t: t.update(
        {"calibration.scores": t["calibration.scores"][:5].clone(), "calibration.sizes": torch.tensor([5])}
    ),
    "wrong state": lambda t: t.update({name: torch.zeros(7, 7, 7) for name in t if name.startswith("detector.")}),
}


@pytest.mark.fault("a guard whose tensors do not fit its method", does="one line about what does not fit")
@pytest.mark.parametrize("name", TENSORS)
def test_forged_tensors_are_refused(name: str, copied: Path, network: nn.Module) -> None:
    file = copied / json.loads((copied / "guard.json").read_text())["tensors"]["file"]
    tensors = load_file(file)
    TENSORS[name](tensors)
    content = save({key: value.contiguous() for key, value in tensors.items()})
    file.write_bytes(content)
    forge(copied, lambda found: found["tensors"].update(sha256=hashlib.sha256(content).hexdigest()))
    assert problem(copied, network)
