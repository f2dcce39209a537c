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
