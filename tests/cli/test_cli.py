from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from idness.cli import COMMANDS, GROUPS, command, with_flags
from tests.cli.running import PROCESS, idness


def test_list_names_every_method_with_its_options():
    done = idness("list")
    assert done.returncode == 0
    assert done.stderr == ""
    for word in ("scale", "percentile=85", "labelled", "negative", "Scaling of all features by exp(r)"):
        assert word in done.stdout
    assert "\x1b" not in done.stdout
    assert max(len(line.rstrip()) for line in idness("list", COLUMNS="80").stdout.splitlines()) <= 80


def test_help_groups_every_command_and_cuts_nothing():
    text = idness("--help", COLUMNS="80").stdout
    assert [line[:-1] for line in text.splitlines() if line.endswith(":")] == ["Options", *GROUPS]
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    assert "..." not in text.partition("Measure:")[2]
    for name in COMMANDS:
        summary = idness(name, "--help", COLUMNS="400").stdout.splitlines()[2].strip()
        assert summary in " ".join(text.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [("lst", "idness: No such command 'lst'. Did you mean 'list'?"), ("list --jsn", "No such option: --jsn")],
)
def test_mistakes_get_one_line_and_exit_code_2(arguments, message):
    done = idness(*arguments.split())
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_a_reader_that_goes_away_is_no_error():
    command = f"{shlex.join(PROCESS)} list | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("command", "message", "spoken"),
    [
        ("bench", "give a file as weights=, or weights='none'", "give a file as --weights, or --weights none"),
        ("bench", "partial=True or preprocessing=", "--partial or [preprocessing] in the benchmark's file"),
        ("calibrate", "give preprocessing=, or train=.", "give --size, --mean and --std, or --train."),
        ("score", "name it yourself: model='my.py:make'", "name it yourself: --model my.py:make"),
        ("calibrate", "give model=", "give MODEL"),
        ("list", "give weights=, got 'scale(percentile=85)'", "give weights=, got 'scale(percentile=85)'"),
        ("bench", "got 'gen(seed=3)' for data=3", "got 'gen(seed=3)' for data=3"),
        ("train", "arch= is unknown", "--model is unknown"),
    ],
)
def test_messages_of_the_library_name_the_options_of_the_command(monkeypatch, command, message, spoken):
    monkeypatch.setattr(sys, "argv", ["idness", command, "x"])
    assert with_flags(message) == spoken


def test_the_shell_completes_commands_and_flags():
    asked = {"_IDNESS_COMPLETE": "complete_bash", "COMP_CWORD": "1", "COMP_WORDS": "idness ca"}
    assert idness(**asked).stdout.split() == ["calibrate"]
    asked |= {"COMP_CWORD": "3", "COMP_WORDS": "idness bench mine.toml --prec"}
    assert idness(**asked).stdout.split() == ["--precision"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["doctor", "cifar6:base"], "stopped; nothing was written"),
        (["calibrate", "cifar6:base", "--data", "."], "stopped; no guard was written; run the same command again"),
        (["train", "--data", ".", "--out", "x"], "stopped; the last checkpoint is in --out; run the same command"),
        (["bench"], "stopped; activations computed so far are cached; run the same command again to continue"),
    ],
)
def test_ctrl_c_reports_what_remains_and_how_to_continue(monkeypatch, tmp_path, words, told):
    def stop(*_, **__):
        raise KeyboardInterrupt

    for place in ("selection.recommend.diagnose", "guard.calibrate.prepare", "training.open_training"):
        monkeypatch.setattr(f"idness.{place}", stop)
    monkeypatch.setattr("idness.benchmark.runner.run", stop)
    done = idness(*words, cwd=tmp_path)
    assert done.returncode == 130
    assert done.stderr.startswith(f"idness: {told}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bench --data nosuch", "--data nosuch does not exist"),
        ("bench nosuch.toml", "nosuch.toml does not exist; idness bench --init writes a template"),
        ("calibrate cifar6:base --data . --ood nosuch", "--ood nosuch does not exist"),
        ("train --data nosuch --out here", "nosuch does not exist; pass a folder with one subfolder of images"),
        ("score nosuch .", "nosuch does not exist; create a guard with idness calibrate"),
        ("compare nosuch", "nosuch does not exist; pass a folder that idness bench wrote"),
    ],
)
def test_missing_files_are_reported_before_anything_runs(words, message, tmp_path):
    Image.new("RGB", (32, 32)).save(tmp_path / "one.png")
    done = idness(*words.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert len(done.stderr.splitlines()) == 1  # before anything runs
    assert [file.name for file in tmp_path.iterdir()] == ["one.png"]


@pytest.mark.parametrize("words", ["bench --methods nosuch", "calibrate cifar6:base --data . --method nosuch"])
def test_an_unknown_method_gets_the_known_ones_each_once(words, tmp_path):
    listed = idness(*words.split(), cwd=tmp_path).stderr.partition("known are ")[2].strip().split(", ")
    assert "scale" in listed
    assert sorted(listed) == listed == sorted(set(listed))
    assert [name for name in listed if name.startswith("ash")] == ["ash-b", "ash-p", "ash-s"]


@pytest.mark.parametrize(
    "words", ["bench", "calibrate cifar6:base --data .", "train --data .", "reproduce", "analyze", "export guard"]
)
def test_an_unwritable_folder_is_reported_before_anything_runs(words, tmp_path):
    (tmp_path / "a-file").touch()
    done = idness(*words.split(), "--out", "a-file/inside/results", cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(r"idness: a-file/inside.*: a-file is not a folder; choose another folder\n", done.stderr)
    assert [file.name for file in tmp_path.iterdir()] == ["a-file"]


@pytest.mark.parametrize(
    "words",
    [["bench"], ["calibrate", "cifar6:base", "--data", "."], ["score", "guard", "picture.png"]],
    ids=lambda words: words[0],
)
def test_the_first_progress_comes_before_torch(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"")
    code = (
        "import sys, time; from idness.core import progress\n"
        "def phase(self, name, total):\n"
        "    print(name, 'torch' in sys.modules, time.process_time(), flush=True); raise SystemExit(7)\n"
        "progress._ProgressBars.phase = phase\n"
        "from idness.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    name, torch_is_there, seconds = done.stdout.split()
    assert (name, torch_is_there) == ("starting", "False")
    assert float(seconds) < 1.5


def test_a_process_that_imported_torchvision_exits_quietly(tmp_path: Path) -> None:
    done = subprocess.run([*PROCESS, "data", "--root", str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_secrets_of_urls_are_not_shown(tmp_path: Path) -> None:
    url = "nosuch://key:secret@bucket/x"
    for words in (["score", "guard", url, "-o", "out"], ["doctor", "net.py:make", "--data", url], ["data", url]):
        done = idness(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert "secret" not in done.stderr + done.stdout


def test_one_thing_has_one_name_in_every_command():
    flags = {
        name: {flag for parameter in made.params for flag in parameter.opts}
        for name, made in command().commands.items()
    }
    runs_a_network = {"bench", "extract", "doctor", "calibrate", "score", "serve", "train", "reproduce", "analyze"}
    writes = {"bench", "extract", "compare", "calibrate", "score", "export", "train", "reproduce", "analyze"}
    assert {name for name in flags if {"--device", "--threads"} <= flags[name]} == runs_a_network
    assert {name for name in flags if {"--out", "-o"} <= flags[name]} == writes
    assert {flag for names in flags.values() for flag in names if "batch" in flag} == {"--batch-size"}
    for name, made in command().commands.items():
        arguments = [each.name for each in made.params if each.param_type_name == "argument" and not each.hidden]
        assert ("model" in arguments) == (name in ("extract", "doctor", "calibrate"))  # if it is required
        assert ("--model" in flags[name]) == (name in ("bench", "score", "export", "serve", "train", "analyze"))


def test_standard_error_may_be_closed(tmp_path: Path) -> None:
    command = f"{shlex.join(PROCESS)} bench --init {tmp_path / 'b.toml'} 2>&-"
    assert subprocess.run(command, shell=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("goes", "message"),
    [(">/dev/full", "cannot write to standard output: No space left"), (">&-", "standard output is closed")],
)
def test_standard_output_that_takes_nothing_is_one_line(goes: str, message: str) -> None:
    command = f"{shlex.join(PROCESS)} list {goes}"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"idness: {message}")
    assert len(done.stderr.splitlines()) == 1
