from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
sys.path.insert(0, str(SAMPLES))

import tiny_net  # noqa: E402
from colour_world import HOW, known_tensors, write_folder, write_foreign  # noqa: E402

from idness.guard import Guard  # noqa: E402


@pytest.fixture(scope="session")
def trained() -> nn.Module:
    """The small network, trained until it knows its colours."""
    images, labels = known_tensors(160, first=10_000)
    model = tiny_net.make().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(30):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="session")
def weights(trained: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_file({name: value.contiguous() for name, value in trained.state_dict().items()}, path)
    return path


@pytest.fixture(scope="session")
def net_spec() -> str:
    return f"{SAMPLES / 'tiny_net.py'}:make"


@pytest.fixture(scope="session")
def id_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("known") / "colours", 60)


@pytest.fixture(scope="session")
def ood_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_foreign(tmp_path_factory.mktemp("foreign") / "odd", 30)


@pytest.fixture
def guard(trained: nn.Module) -> Guard:
    """A guard with SCALE, calibrated on 200 known pictures."""
    made = Guard(trained, "scale", preprocessing=HOW, class_names=tiny_net.Tiny.class_names)
    return made.calibrate([known_tensors(200)[0]])


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the list of trusted model files out of the user's home."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
