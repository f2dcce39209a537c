from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from tests.cli.running import PROCESS, idness


def test_list_names_every_method_with_its_options():
    done = idness("list")
    assert done.returncode == 0
    assert done.stderr == ""
    for word in ("scale", "percentile=85.0", "labelled", "unsuited", "Multiply each image's features"):
        assert word in done.stdout
    assert "\x1b" not in done.stdout
    assert max(len(line.rstrip()) for line in idness("list", COLUMNS="80").stdout.splitlines()) <= 80


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
