from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from colour_world import write_folder
from safetensors.torch import load_file, save_file

from idness.core.errors import ModelError
from idness.core.scripts import approve
from idness.data import Preprocessing
from idness.networks.load import facts_of, load_model, located_model
from idness.networks.open import ModelOptions, open_network
from tests.cli.running import idness

FILE = """
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("colours") / "images", 8)


def train(images: Path, out: Path, arch: str) -> Path:
    done = idness("train", "--data", images, "--out", out, "--model", arch, "--method", "plain", "--epochs", 6, "--lr", 0.1,
                  "--batch-size", 16, "--size", 16, "--quiet")  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def test_every_command_takes_what_train_makes(images: Path, tmp_path: Path) -> None:
    run, guard = train(images, tmp_path / "run", "tiny_resnet"), tmp_path / "guard"
    architecture, class_names, preprocessing = facts_of(run / "weights.safetensors")
    assert (architecture, class_names) == ("tiny_resnet", ("blue", "green", "red", "yellow"))
    assert preprocessing is not None
    assert preprocessing.resize == (16, 16)
    made = idness("calibrate", run, "--data", images, "--method", "msp", "-o", guard)
    assert made.returncode == 0, made.stderr
    run.rename(tmp_path / "gone")  # the guard has all it needs
    scored = idness("score", guard, images / "red" / "0000.png", images / "blue" / "0000.png", "--json")
    assert [json.loads(line)["class"] for line in scored.stdout.splitlines()] == ["red", "blue"]
    again = idness("score", guard, images / "red" / "0000.png", "--model", tmp_path / "gone")
    assert again.returncode == 0, again.stderr
    examined = idness("doctor", tmp_path / "gone", "--data", images, "--quiet")
    assert examined.stdout.startswith("Recommended: ")


def test_a_network_of_ones_own_is_run_again_only_if_its_owner_ran_it(images: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "net.py").write_text(FILE)
    run = train(images, tmp_path / "run", f"{tmp_path}/net.py:make")
    assert located_model(str(run)) == (f"{tmp_path}/net.py:make", run / "weights.safetensors")
    assert load_model(str(run))[4].out_features == 4  # as the images, not as the file
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    with pytest.raises(ModelError, match=r"have not run with idness .*; read it, then pass model=.*, weights="):
        open_network(str(run))
    approve(f"{tmp_path}/net.py:make")
    assert open_network(str(run)).class_names == ("blue", "green", "red", "yellow")
    other = tmp_path / "other.safetensors"
    save_file(load_file(run / "weights.safetensors"), other)
    assert located_model(str(run), other)[1] == other


def test_weights_say_what_they_are_of_wherever_they_are_given(tmp_path: Path) -> None:
    model = load_model("tiny_resnet", "none")
    about = {"classes": json.dumps(list("abcdef")), "mean": "[0.1, 0.2, 0.3]", "std": "[0.4, 0.5, 0.6]"}
    save_file(model.state_dict(), tmp_path / "w.safetensors", about)
    found = open_network(ModelOptions("tiny_resnet", tmp_path / "w.safetensors"))
    assert found.class_names == tuple("abcdef")
    assert found.preprocessing == Preprocessing(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    other = Preprocessing(mean=(0.5, 0.5, 0.5))
    assert (
        open_network(ModelOptions("tiny_resnet", tmp_path / "w.safetensors", preprocessing=other)).preprocessing
        == other
    )


def test_weights_of_another_number_of_classes_bring_their_final_layer(tmp_path: Path) -> None:
    assert facts_of(None) == facts_of(tmp_path / "none.safetensors") == ("", (), None)
    tuned = load_model("tiny_resnet", "none")
    tuned.fc = torch.nn.Linear(64, 9)
    save_file(tuned.state_dict(), tmp_path / "w.safetensors")
    assert torch.equal(load_model("tiny_resnet", tmp_path / "w.safetensors").fc.weight, tuned.fc.weight)
    state = load_file(tmp_path / "w.safetensors")
    save_file({**state, "fc.weight": torch.ones(9, 65)}, tmp_path / "wide.safetensors")
    with pytest.raises(ModelError, match="do not match"):
        load_model("tiny_resnet", tmp_path / "wide.safetensors")


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no weights.safetensors; pass the folder of a finished run"):
        load_model(str(tmp_path))
    save_file({"a": torch.ones(1)}, tmp_path / "weights.safetensors")
    with pytest.raises(ModelError, match="does not name its network; pass model='NAME', weights="):
        load_model(str(tmp_path))
    with pytest.raises(ModelError, match="small_resnet: has no pretrained weights; pass weights="):
        load_model("small_resnet")
    (tmp_path / "weights.safetensors").write_bytes(b"junk")
    assert facts_of(tmp_path / "weights.safetensors") == ("", (), None)
