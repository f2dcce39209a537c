from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from idness.core.errors import ModelError, UnknownNameError
from idness.networks.load import load_model, load_weights

SOURCE = """
import torch
from torch import nn

def make():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))

def nothing():
    return 7

ready = make()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(SOURCE)
    return path


def trained() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))


WRAPS = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"epoch": 3, "state_dict": state},
    "module": lambda state: {"state_dict": {f"module.{key}": value for key, value in state.items()}},
    "compiled": lambda state: {f"_orig_mod.{key}": value for key, value in state.items()},
    "both": lambda state: {"model": {f"module._orig_mod.{key}": value for key, value in state.items()}},
}


@pytest.mark.parametrize("wrap", WRAPS)
def test_checkpoints_are_unwrapped(file, tmp_path, wrap):
    torch.save(WRAPS[wrap](trained().state_dict()), tmp_path / "w.pth")
    model = load_model(f"{file}:make", tmp_path / "w.pth")
    assert torch.equal(model[3].weight, trained()[3].weight)
    assert not model.training


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("pwned"),))


def test_pickled_code_is_refused_and_not_run(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"state_dict": Evil()}))
    torch.save({"state_dict": Evil()}, tmp_path / "evil2.pth")
    for name in ("evil.pth", "evil2.pth"):
        with pytest.raises(ModelError, match="not a readable weights file"):
            load_model(f"{file}:make", tmp_path / name)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.fault("a TorchScript archive (torch.jit) as weights", does="one line; the program in it is not run")
def test_a_torchscript_program_is_refused_and_not_run(file, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather have no such files made
        torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "net.pt")
    with pytest.raises(ModelError, match="not a readable weights file .*TorchScript"):
        load_model(f"{file}:make", tmp_path / "net.pt")


def test_damaged_weights_and_those_of_others_are_told(file, tmp_path):
    save_file(trained().state_dict(), tmp_path / "w.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "w.safetensors").read_bytes()[:-7])
    (tmp_path / "empty.pth").write_bytes(b"")
    for name in ("cut.safetensors", "empty.pth"):
        with pytest.raises(ModelError, match="not a readable weights file"):
            load_model(f"{file}:make", tmp_path / name)
    save_file({"fc.weight": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match=r'Missing key.*"1.weight".*Unexpected key.*"fc.weight".*from another'):
        load_model(f"{file}:make", tmp_path / "other.safetensors")
    save_file({**trained().state_dict(), "3.bias": torch.ones(9)}, tmp_path / "shape.safetensors")
    with pytest.raises(ModelError, match=r"do not match the network .*size mismatch for 3.bias"):
        load_model(f"{file}:make", tmp_path / "shape.safetensors")
    with pytest.raises(ModelError, match="no weights at"):
        load_weights(trained(), tmp_path / "absent.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ModelError, match="contains no named tensors"):
        load_weights(trained(), tmp_path / "list.pth")


def test_what_names_no_network_is_told(file):
    with pytest.raises(ModelError, match=r"a model must be one of torchvision:NAME, .*; got 'resnet50'"):
        load_model("resnet50")
    with pytest.raises(UnknownNameError, match="unknown torchvision model 'resnet5'; did you mean 'resnet50'"):
        load_model("torchvision:resnet5")
    with pytest.raises(UnknownNameError, match="unknown timm model"):
        load_model("timm:resnet999")
    with pytest.raises(UnknownNameError, match="unknown embedded network 'bas'; did you mean 'base'"):
        load_model("cifar6:bas")
    with pytest.raises(ModelError, match=r"must return an nn.Module, got int"):
        load_model(f"{file}:nothing")
    assert load_model(f"{file}:ready")[3].out_features == 3
