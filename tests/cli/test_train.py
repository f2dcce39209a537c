from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open

from tests.cli.running import idness
from tests.training.test_data import folder


def run(*words: object) -> str:
    done = idness("train", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_train_on_a_folder_then_ish(tmp_path: Path) -> None:
    data = folder(tmp_path)
    shared = ["--data", data, "--val", data, "--model", "tiny_resnet", "--epochs", 2, "--batch-size", 3, "--size", 16]
    first, second = tmp_path / ".first", tmp_path / ".second"
    run(*shared, "--method", "plain", "--lr", 0.05, "--out", first)
    said = run(*shared, "--init", first / "weights.safetensors", "--out", second, "--set", "percentile=70", "--quiet")
    assert "ish: 2 epochs" in said
    assert "weights.safetensors" in said
    with safe_open(second / "weights.safetensors", "pt") as file:
        assert file.metadata()["options"] == '{"percentile": 70}'
        assert file.metadata()["classes"] == '["ant", "bee"]'
        assert file.get_tensor("fc.weight").shape == (2, 64)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "percentile"], "percentile"),
        (["--set", "wrong=1"], "wrong"),
        (["--model", "nothing"], "nothing"),
        (["--val", "nowhere"], "nowhere"),
        (["--data", "cifar6", "--archive", "nowhere.npz"], "nowhere.npz"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(words: list[str], message: str, tmp_path: Path) -> None:
    data = folder(tmp_path)
    done = idness("train", "--data", data, "--model", "tiny_resnet", "--out", tmp_path / ".out", "-q", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert not (tmp_path / ".out").exists()


def test_a_network_of_a_file_that_takes_one_size_only_is_trained(tmp_path: Path) -> None:
    data = folder(tmp_path / "images")
    (tmp_path / "blocks_for_training.py").write_text("from torch import nn\n\nHead = nn.Linear\n")
    (tmp_path / "net.py").write_text(
        "from torch import nn\nfrom blocks_for_training import Head\n\n\n"
        "class Net(nn.Module):\n    def __init__(self, width):\n        super().__init__()\n"
        "        self.conv, self.fc = nn.Conv2d(3, width, 3), Head(width * 6 * 6, 5)\n\n"
        "    def forward(self, x):\n        return self.fc(self.conv(x).relu().view(len(x), -1))\n"
    )
    words = ("--data", data, "--model", "net.py:Net(width=2)", "--epochs", 1, "--batch-size", 4, "-q")
    done = idness("train", *words, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with safe_open(tmp_path / "run" / "weights.safetensors", "pt") as file:
        assert file.get_tensor("fc.weight").shape == (2, 72)
