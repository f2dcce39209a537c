from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import colour_world as world
import pytest
import tiny_net
import torch
from colour_world import HOW, known_tensors, ood_tensors
from torch import nn

from idness.core.errors import IdnessError, ModelError, StoreError
from idness.core.scripts import approve
from idness.detectors.registry import rows
from idness.guard import Guard
from idness.guard import file as guard_file
from idness.guard.file import FORMAT
from idness.guard.neighbours import Gallery
from idness.networks.load import load_weights
from tests.children import exit_code, started

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
V1 = SAMPLES / "guard-v1"


def forge(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest, and its checksum with it."""
    manifest = json.loads((folder / "guard.json").read_text())
    del manifest["checksum"]
    change(manifest)
    manifest["checksum"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "guard.json").write_text(json.dumps(manifest))


def mixed() -> torch.Tensor:
    return torch.cat([known_tensors(12, first=4_000)[0], ood_tensors(12)])


@pytest.mark.parametrize("name", list(rows(costly=True)))
def test_every_method_comes_back_the_same(name: str, trained: nn.Module, tmp_path: Path) -> None:
    guard = Guard(trained, name, preprocessing=HOW, class_names=tiny_net.Tiny.class_names)
    guard.fit([known_tensors(120, first=3_000)]).calibrate(
        [known_tensors(120)[0]], [0.95, 0.9], per_class=name == "ebo"
    )
    loaded = Guard.load(guard.save(tmp_path / "guard"), trained)
    before, after = guard(mixed()), loaded(mixed())
    assert loaded.detector.config() == guard.detector.config()
    assert loaded.preprocessing == HOW
    assert loaded.class_names == tiny_net.Tiny.class_names
    assert loaded.recalls == (0.95, 0.9)
    for field in ("label", "score", "p_value", "is_ood"):
        assert torch.equal(getattr(before, field), getattr(after, field))


def test_gallery_comes_back(guard: Guard, tmp_path: Path) -> None:
    pictures = [world.known("red", seed) for seed in range(6)]
    acts = guard.split.split(torch.stack([HOW(picture) for picture in pictures]))
    verdict = guard.decide(acts)
    guard.gallery = Gallery.of(pictures, acts.features, verdict.label, verdict.score)
    loaded = Guard.load(guard.save(tmp_path), guard.split).gallery
    assert loaded is not None
    assert loaded.thumbnails == guard.gallery.thumbnails
    assert [near[0][0] for near in loaded.nearest(acts.features, 3)] == list(range(6))


def test_bundled_weights_make_the_folder_whole(guard: Guard, net_spec: str, tmp_path: Path) -> None:
    guard.spec = net_spec
    folder = guard.save(tmp_path / "guard", bundle=True)
    approve(net_spec)
    assert torch.allclose(Guard.load(folder)(mixed()).score, guard(mixed()).score, rtol=1e-5)  # laid out differently


def test_a_models_file_runs_only_when_its_user_has_run_it(guard: Guard, tmp_path: Path) -> None:
    code = tmp_path / "evil.py"
    code.write_text("raise SystemExit('this must not run')")
    guard.spec = f"{code}:make"
    folder = guard.save(tmp_path / "guard", bundle=True)
    with pytest.raises(ModelError, match=r"have not run with idness.*model='path/to/evil\.py:make'"):
        Guard.load(folder)
    guard.spec = None
    with pytest.raises(ModelError, match="does not name its network"):
        Guard.load(guard.save(tmp_path / "nameless"))


def test_a_wrong_network_is_refused_in_one_line(guard: Guard, tmp_path: Path) -> None:
    folder = guard.save(tmp_path)
    with pytest.raises(ModelError, match="another network") as caught:
        Guard.load(folder, tiny_net.make())
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="final layer is 'fc'"):
        Guard.load(folder, nn.Sequential(nn.Flatten(), nn.Linear(768, 4)))


def test_a_network_that_was_trained_on_is_not_the_one_that_was_calibrated(trained: nn.Module, tmp_path: Path) -> None:
    model = copy.deepcopy(trained)
    guard = Guard(model, "ebo", preprocessing=HOW).calibrate([known_tensors(60)[0]])
    folder = guard.save(tmp_path / "before")
    with torch.no_grad():
        model.fc.bias += 3.0
    refused = pytest.raises(ModelError, match="weights have changed since calibration.*; calibrate again")
    for write in (guard.save, guard.to_onnx):
        with refused:
            write(tmp_path / "after.onnx")
    assert not (tmp_path / "after.onnx" / "guard.json").exists()
    with pytest.raises(ModelError, match="another network"):
        Guard.load(folder, model)
    Guard.load(guard.calibrate([known_tensors(60)[0]]).save(tmp_path / "again"), model)


def test_a_newer_format_is_refused(guard: Guard, tmp_path: Path) -> None:
    file = guard.save(tmp_path) / "guard.json"
    file.write_text(file.read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))
    with pytest.raises(StoreError, match=f"format {FORMAT + 1} is newer than {FORMAT}; update idness"):
        Guard.load(tmp_path, guard.split)


def test_damage_is_told_wherever_it_is(guard: Guard, tmp_path: Path) -> None:
    """Cut and flip bytes of both files at many places: always one clear line, never a wrong guard."""
    folder = guard.save(tmp_path / "guard")
    rng = torch.Generator().manual_seed(0)
    for file in folder.iterdir():
        whole = file.read_bytes()
        places = torch.randint(0, len(whole), (25,), generator=rng).tolist()
        for place in places:
            flipped = bytearray(whole)
            flipped[place] ^= 1 << (place % 8)
            for content in (bytes(flipped), whole[:place]):
                file.write_bytes(content)
                with pytest.raises(IdnessError) as caught:
                    Guard.load(folder, guard.split)
                assert "\n" not in str(caught.value)
        file.write_bytes(whole)
    Guard.load(folder, guard.split)


def test_missing_files_are_told(guard: Guard, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nothing does not exist; make a guard with idness calibrate"):
        Guard.load(tmp_path / "nothing", guard.split)
    folder = guard.save(tmp_path / "guard")
    next(folder.glob("tensors-*")).unlink()
    with pytest.raises(StoreError, match=r"holds no tensors-\w+\.safetensors"):
        Guard.load(folder, guard.split)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file"):
        guard.save(tmp_path / "file")


def test_a_manifest_cannot_lead_out_of_its_folder(guard: Guard, tmp_path: Path) -> None:
    folder = guard.save(tmp_path / "guard")
    tensors_file = next(folder.glob("tensors-*"))
    tensors_file.rename(tmp_path / tensors_file.name)
    forge(folder, lambda manifest: manifest["tensors"].update(file=f"../{tensors_file.name}"))
    with pytest.raises(StoreError, match="guard: holds no tensors"):
        Guard.load(folder, guard.split)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda manifest: manifest.update(recalls=["0.95"]), r"recalls\.0: .*number, got '0\.95'"),
        (lambda manifest: manifest["model"].pop("fingerprint"), r"model\.fingerprint: Field required"),
        (lambda manifest: manifest["model"].update({"class": 3}), r"model\.class: .*string, got 3"),
        (lambda manifest: manifest.update(detector="ebo"), r"detector: .*object, got 'ebo'"),
    ],
)
def test_a_forged_manifest_is_told_by_its_field(change: Any, message: str, guard: Guard, tmp_path: Path) -> None:
    forge(guard.save(tmp_path), change)
    with pytest.raises(StoreError, match=rf"guard\.json: is damaged \({message}"):
        Guard.load(tmp_path, guard.split)


def test_saving_again_replaces_the_guard_and_leaves_nothing_behind(guard: Guard, tmp_path: Path) -> None:
    folder = guard.save(tmp_path / "guard", bundle=True)
    guard.calibrate([known_tensors(80, first=900)[0]])
    guard.save(folder)
    assert len(list(folder.iterdir())) == 2
    assert len(Guard.load(folder, guard.split).calibration or ()) == 80


@pytest.mark.fault("a guard is given to others", does="holds no pickle and no path of the machine that made it")
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


def test_files_of_format_1_keep_loading() -> None:
    """The sample was written by the first release of the format, and scores as it did then."""
    model = load_weights(tiny_net.make(), next(V1.glob("weights-*.safetensors")))
    guard = Guard.load(V1, model)
    expected = json.loads((V1 / "expected.json").read_text())
    pictures = [world.known(name, 321) for name in world.COLOURS] + [world.ood_picture(seed) for seed in range(4)]
    verdict = guard.judge(*pictures)
    torch.testing.assert_close(verdict.score, torch.tensor(expected["score"]), rtol=1e-4, atol=1e-4)
    assert verdict.label.tolist() == expected["label"]
    assert verdict.is_ood.tolist() == expected["is_ood"]
    assert guard.gallery is not None


def save_again_and_again(folder: Path, weights: Path, recall: float) -> None:
    guard = Guard(load_weights(tiny_net.make(), weights), "msp")
    for number in range(25):
        acts = guard.split.split(torch.rand(40, 3, 16, 16, generator=torch.Generator().manual_seed(number)))
        guard.calibrate(acts, recall).save(folder)


def test_a_reader_outlasts_writers_that_are_faster(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, recalls, read = guard.save(tmp_path / "guard"), [0.9, 0.8, 0.85], guard_file._read_tensors

    def outrun(*words: Any) -> Any:
        if not recalls:
            return read(*words)
        guard.set_recall(recalls.pop(0)).save(folder)
        raise StoreError("replaced meanwhile")

    monkeypatch.setattr(guard_file, "_read_tensors", outrun)
    assert Guard.load(folder, guard.split).recalls[0] == 0.85


def test_two_writers_and_a_reader_always_see_a_whole_guard(guard: Guard, weights: Path, tmp_path: Path) -> None:
    folder = guard.save(tmp_path / "guard")
    writers = [started(save_again_and_again, folder, weights, recall) for recall in (0.95, 0.9)]
    reads = 0
    while any(writer.is_alive() for writer in writers):
        assert Guard.load(folder, guard.split).recalls[0] in (0.95, 0.9)
        reads += 1
    assert [exit_code(writer) for writer in writers] == [0, 0]
    assert reads > 3
    assert len(Guard.load(folder, guard.split).calibration or ()) == 40
    assert len(list(folder.iterdir())) == 2
