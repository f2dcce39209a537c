"""Every command that writes, killed at random moments or on a full disk: the next run gives the same result."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.pictures import pictures, world
from tests.training.test_data import folder as training_folder

KILLS = 6
COMMANDS = ("bench", "extract", "train", "calibrate", "export")
CHANGING = {"time", "peak_memory", "provenance", "seconds", "memory", "cost"}


def run(
    *words: object, cwd: Path, kill_after: float | None = None, largest: int | None = None
) -> tuple[int, str, float]:
    """Run `idness` in a process of its own; return its exit code (below 0 for a signal), its output and its time.

    It is killed after some seconds; no file grows beyond `largest` blocks of 512 bytes, as on a full disk.
    """
    limit = [] if largest is None else ["sh", "-c", f"trap '' XFSZ; ulimit -f {largest}; exec \"$@\"", "sh"]
    started = time.monotonic()
    process = subprocess.Popen(
        [*limit, sys.executable, "-m", "idness", *map(str, words)], cwd=cwd, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=kill_after)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
    return process.returncode, said, time.monotonic() - started


def succeed(*words: object, cwd: Path) -> float:
    """Run a command that must succeed, and return its time."""
    code, said, seconds = run(*words, cwd=cwd)
    assert code == 0, said
    return seconds


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a benchmark; beside it images to calibrate and to train on, and a guard to export."""
    made = world(tmp_path_factory.mktemp("world"))
    folder = made.parent
    training_folder(folder / "training")
    (folder / "pictures").mkdir()
    for number, image in enumerate(pictures(60, seed=2)[0]):
        Image.fromarray(image).save(folder / "pictures" / f"{number}.png")
    succeed(*words_of("calibrate", made, folder)[0], cwd=folder)
    return made


def steady(value: Any) -> Any:
    """Return a JSON value without times and dates."""
    if isinstance(value, dict):
        return {key: steady(part) for key, part in value.items() if key not in CHANGING}
    return [steady(part) for part in value] if isinstance(value, list) else value


def content(folder: Path, *names: str) -> dict[str, Any]:
    """Return the content of a folder's files, or of those that are named, without times and dates."""
    found: dict[str, Any] = {}
    for file in sorted(folder.rglob("*")):
        assert file.suffix != ".part", file
        if file.is_file() and (not names or file.name in names):
            text = file.read_bytes()
            found[str(file.relative_to(folder))] = steady(json.loads(text)) if file.suffix == ".json" else text
    return found


def words_of(command: str, place: Path, out: Path) -> tuple[list[object], tuple[str, ...]]:
    """Return a command that writes into `out`, and the files to compare, all if none is named."""
    folder, data = place.parent, place.parent / "training"
    model, net = f"{folder}/net.py:make", ["--weights", folder / "weights.safetensors"]
    eager, how = ["--engine", "eager"], ["--size", 16, "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]
    training = ["--model", "tiny_resnet", "--epochs", 3, "--batch-size", 3, "--size", 16, "--set", "checkpoint_every=1"]
    found: dict[str, tuple[list[object], tuple[str, ...]]] = {
        "bench": (
            ["bench", place, "--model", model, *net, "--methods", "msp,knn,react", *eager, "--cache", out / "cache",
             "--out", out / "results"], ("results.json", "scores.safetensors", "thumbs.safetensors"),
        ),
        "extract": (["extract", model, place, *net, *eager, "--resume", "-o", out / "store", "-q"], ()),
        "train": (
            ["train", "--data", data, "--val", data, *training, "--out", out / "run", "-q"],
            ("weights.safetensors", "images.safetensors"),
        ),
        "calibrate": (
            ["calibrate", model, *net, "--data", folder / "pictures", "--method", "knn(k=3)", "-q", *how, *eager,
             "-o", out / "guard"], (),
        ),
        "export": (["export", folder / "guard", "-o", out / "guard.onnx"], ()),
    }  # fmt: skip
    return found[command]


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.fault(
    "kill -9 at random moments of bench, extract, train, calibrate -o and export",
    does="the next run gives the same bytes as one that was not killed; no temporary file remains",
)
@pytest.mark.parametrize("command", COMMANDS)
def test_after_a_kill_the_next_run_gives_the_same(command: str, place: Path, tmp_path: Path) -> None:
    whole, out, moments, killed = tmp_path / "whole", tmp_path / "killed", random.Random(0), 0
    whole.mkdir()
    words, names = words_of(command, place, whole)
    usual = succeed(*words, cwd=place.parent)
    wanted = content(whole, *names)
    assert wanted
    for _ in range(KILLS):
        out.mkdir()
        words, _ = words_of(command, place, out)
        code, _, _ = run(*words, cwd=place.parent, kill_after=moments.uniform(0.3, 1.05) * usual)
        killed += code == -signal.SIGKILL
        usual = min(usual, succeed(*words, cwd=place.parent))  # the machine may have been busier at first
        assert content(out, *names) == wanted
        shutil.rmtree(out)
    assert killed >= KILLS // 2


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.fault(
    "the disk is full while a command writes",
    does="one line and exit code 2; earlier files are unchanged, and no partial file remains",
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_one_line_and_leaves_earlier_files(command: str, place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    words, names = words_of(command, place, out)
    for largest in (0, 1, 4):
        code, said, _ = run(*words, cwd=place.parent, largest=largest)
        assert code == 2, said
        assert any(line.startswith("idness: ") and "cannot write" in line for line in said.splitlines()), said
        assert "Traceback" not in said
        assert not list(out.rglob("*.part"))
    succeed(*words, cwd=place.parent)
    before = content(out, *names)
    other = [*words, "--recall", "0.8"] if command == "calibrate" else words
    if command not in ("train", "extract"):  # finished work is not repeated
        assert run(*other, cwd=place.parent, largest=1)[0] == 2
    assert content(out, *names) == before
