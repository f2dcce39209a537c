from __future__ import annotations

from pathlib import Path

import pytest
import typer
from safetensors import safe_open
from typer.testing import CliRunner

from idness.cli.train import train
from idness.core.errors import DataError, IdnessError, OptionError
from tests.training.test_images import folder

app = typer.Typer()
app.command()(train)


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_train_on_a_folder_then_ish(tmp_path: Path) -> None:
    data = folder(tmp_path)
    shared = ["--data", data, "--val", data, "--arch", "tiny_resnet", "--epochs", 2, "--batch-size", 3, "--size", 16]
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
    ("words", "error"),
    [
        (["--set", "percentile"], OptionError),
        (["--set", "wrong=1"], OptionError),
        (["--arch", "nothing"], IdnessError),
        (["--val", "nowhere"], DataError),
        (["--data", "cifar6", "--archive", "nowhere.npz"], DataError),
    ],
)
def test_wrong_use_is_one_error(words: list[str], error: type[Exception], tmp_path: Path) -> None:
    start = [] if "--data" in words else ["--data", str(folder(tmp_path))]
    with pytest.raises(error):
        run(*start, "--arch", "tiny_resnet", "--out", tmp_path / ".out", *words)
    assert not (tmp_path / ".out").exists()
