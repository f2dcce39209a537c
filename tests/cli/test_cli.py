from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from idness.cli import COMMANDS, GROUPS, _command, with_flags
from tests.cli.running import PROCESS, idness


def test_list_names_every_method_with_its_options():
    done = idness("list")
    assert done.returncode == 0
    assert done.stderr == ""
    for word in ("scale", "percentile=85.0", "labelled", "unsuited", "Scale all features by exp(r)"):
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


@pytest.mark.parametrize("name", COMMANDS)
def test_help_breaks_no_word(name):
    for line in idness(name, "--help", COLUMNS="80").stdout.splitlines():
        assert not re.search(r"\w-$", line)


def test_a_shell_can_complete():
    done = idness(_IDNESS_COMPLETE="complete_bash", COMP_WORDS="idness bench --by", COMP_CWORD="2")
    assert done.stdout.split() == ["--by-set"]


def test_list_as_json_is_whole():
    entries = json.loads(idness("list", "--json").stdout)
    scale = next(entry for entry in entries if entry["name"] == "scale")
    assert scale["options"] == {"readout": "energy", "percentile": 85.0}
    assert scale["assumes_nonnegative"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lst"], "idness: No such command 'lst'. Did you mean 'list'?"),
        (["list", "--jsn"], "No such option: --jsn"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(arguments, message):
    done = idness(*arguments)
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
    ],
)
def test_arguments_of_the_library_are_named_as_flags(monkeypatch, command, message, spoken):
    monkeypatch.setattr(sys, "argv", ["idness", command, "x"])
    assert with_flags(message) == spoken


def test_an_error_of_the_library_names_the_flag(tmp_path):
    (tmp_path / "mine.toml").write_text('[id]\ntest = "a"\n[far]\nb = "b"\n')
    done = idness("bench", tmp_path / "mine.toml", "--data", tmp_path / "nowhere")
    assert done.returncode == 2
    assert f"idness: --data {tmp_path / 'nowhere'} does not exist" in done.stderr


def test_the_shell_completes_commands_and_flags(tmp_path):
    asked = {"_IDNESS_COMPLETE": "complete_bash", "COMP_CWORD": "1", "COMP_WORDS": "idness ca"}
    assert idness(**asked).stdout.split() == ["calibrate"]
    asked |= {"COMP_CWORD": "3", "COMP_WORDS": "idness bench mine.toml --prec"}
    assert idness(**asked).stdout.split() == ["--precision"]
    # The shell in which the tests run may be unknown: it is named.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "HOME": str(tmp_path)}
    _command.cache_clear()  # which decides how shells are named when it is made
    assert idness("--install-completion", "bash", **named).returncode == 0
    assert "complete -o default -F _idness_completion idness" in (tmp_path / ".bash_completions/idness.sh").read_text()
    _command.cache_clear()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["doctor", "cifar6:base"], "stopped; nothing was written"),
        (["calibrate", "cifar6:base", "--data", "."], "stopped; no guard was written; run the same command again"),
        (
            ["train", "--data", ".", "--out", "x"],
            "stopped; the last checkpoint is kept in --out, and the same command goes",
        ),
        (
            ["bench"],
            "stopped; what the network made of the images so far is kept, and the same command goes on from there",
        ),
    ],
)
def test_ctrl_c_says_what_is_kept_and_how_to_go_on(monkeypatch, tmp_path, words, told):
    def stop(*_, **__):
        raise KeyboardInterrupt

    for place in (
        "selection.recommend.diagnose",
        "guard.calibrate.prepare_guard",
        "training.open_training",
        "benchmark.runner.run",
    ):
        monkeypatch.setattr(f"idness.{place}", stop)
    done = idness(*words, cwd=tmp_path)
    assert done.returncode == 130
    assert done.stderr.startswith(f"idness: {told}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bench --data nosuch", "--data nosuch does not exist"),
        ("bench nosuch.toml", "nosuch.toml does not exist; idness bench --init writes a template"),
        ("calibrate cifar6:base --data nosuch", "--data nosuch does not exist"),
        ("calibrate cifar6:base --data . --ood nosuch", "--ood nosuch does not exist"),
        ("calibrate cifar6:base --data . --train nosuch", "--train nosuch does not exist"),
        ("doctor cifar6:base --data nosuch", "--data nosuch does not exist"),
        ("doctor cifar6:base --ood nosuch", "--ood nosuch does not exist"),
        ("train --data nosuch --out here", "nosuch does not exist; it must hold one subfolder of images per class"),
        ("reproduce --data nosuch", "--data nosuch does not exist"),
        ("analyze --data nosuch", "--data nosuch does not exist"),
        ("score nosuch .", "nosuch does not exist; make a guard with idness calibrate"),
        ("compare nosuch", "nosuch does not exist; give a folder that idness bench wrote"),
    ],
)
def test_what_was_given_and_is_not_there_is_said_not_to_exist(words, message, tmp_path):
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
    "words",
    [
        "bench --out",
        "calibrate cifar6:base --data . --out",
        "train --data . --out",
        "reproduce --out",
        "analyze --out",
        "export guard",
    ],
)
def test_a_folder_that_cannot_be_written_is_told_before_the_work(words, tmp_path):
    (tmp_path / "a-file").touch()
    done = idness(*words.split(), "a-file/inside/results", cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(r"idness: cannot write a-file/inside.*a-file is no folder; free space or .*\n", done.stderr)
    assert [file.name for file in tmp_path.iterdir()] == ["a-file"]


@pytest.mark.parametrize(
    "words",
    [["bench"], ["calibrate", "cifar6:base", "--data", "."], ["score", "guard", "picture.png"]],
    ids=lambda words: words[0],
)
def test_the_first_progress_comes_before_torch(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"")
    code = (
        "import sys; from idness.core import progress\n"
        "class Heard(progress.Listener):\n"
        "    def phase(self, name, total):\n"
        "        import time; print(name, 'torch' in sys.modules, time.process_time()); sys.stdout.flush(); raise SystemExit(7)\n"
        "class Shown:\n"
        "    def __enter__(self): return Heard()\n"
        "    def __exit__(self, *_): pass\n"
        "progress.shown = lambda **_: Shown()\n"
        "from idness.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    name, torch_is_there, seconds = done.stdout.split()
    assert (name, torch_is_there) == ("starting", "False")
    assert float(seconds) < 1.5


BEFORE = {
    "nothing": ("", ""),
    "what is to be done at the end": ("import atexit; atexit.register(print, 'bye')", "bye\n"),
    "a thread at work": (
        "import threading, time; threading.Thread(target=lambda: (time.sleep(1), print('late'))).start()",
        "late\n",
    ),
    "a thread that waits for ever": (
        "import threading, time; threading.Thread(target=time.sleep, args=[99], daemon=True).start()",
        "",
    ),
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["list", "--no-such-option"], 2)])
def test_a_process_that_ends_at_once_loses_nothing(before: str, words: list[str], code: int) -> None:
    start, said = BEFORE[before]
    script = f"{start}\nfrom idness.cli import run; run()"
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout.endswith(said)
    assert done.stdout.startswith("idness 0.") == (code == 0)
    assert done.stderr.startswith("idness: ") == (code == 2)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("to", "message"), [(">/dev/full", "cannot write to standard output: No space left"), (">&-", "output is closed")]
)
@pytest.mark.parametrize("words", ["--version", "list"])
def test_output_that_cannot_be_written_is_one_line(words: str, to: str, message: str) -> None:
    command = f"{shlex.join(PROCESS)} {words} {to}"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_secrets_of_urls_are_not_shown(tmp_path: Path) -> None:
    url = "nosuch://key:secret@bucket/x"
    for words in (["score", "guard", url, "-o", "out"], ["doctor", "net.py:make", "--data", url], ["data", url]):
        done = idness(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert "secret" not in done.stderr + done.stdout
