"""Bytes that nobody thought of: hypothesis each time, atheris for longer; what did harm once is kept as a seed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi")
from tests.faults import targets
from tests.faults.targets import SEEDS, TARGETS, check

SECONDS = int(os.environ.get("IDNESS_FUZZ_SECONDS", "20"))
ROOT = Path(__file__).resolve().parents[2]


def seeds(name: str) -> list[bytes]:
    return [file.read_bytes() for file in sorted((SEEDS / name).iterdir())]


@pytest.mark.fault(
    "arbitrary bytes as image, benchmark TOML, method text, guard.json, store manifest, multipart and JSON body",
    does="is refused in one line, or taken; nothing else ever happens (hypothesis)",
)
@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_comes_is_one_line_or_taken(name: str, data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from(seeds(name)))
    harm = data.draw(
        st.lists(st.tuples(st.integers(0, max(len(whole), 1)), st.binary(max_size=6), st.integers(0, 8)), max_size=4)
    )
    for place, put, cut in harm:
        whole = whole[:place] + put + whole[place + cut :]
    check(name, whole)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=30)
@given(content=st.binary(max_size=200))
@example(content=b"")
def test_bytes_of_no_kind(name: str, content: bytes) -> None:
    check(name, content)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_taken_or_refused(name: str) -> None:
    assert seeds(name)
    for content in seeds(name):
        check(name, content)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.fault(
    "bytes that are searched for by what the code does with them (atheris)", does="none is found that does harm"
)
@pytest.mark.parametrize("name", TARGETS)
def test_a_search_finds_nothing(name: str, tmp_path: Path, record_property: Any) -> None:
    pytest.importorskip("atheris")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, content in enumerate(seeds(name)):
        (corpus / str(number)).write_bytes(content)
    done = subprocess.run(
        [sys.executable, targets.__file__, name, str(corpus), f"-max_total_time={SECONDS}", "-max_len=4096", "-seed=1",
         f"-artifact_prefix={tmp_path}/", "-print_final_stats=1", "-rss_limit_mb=6000"],
        cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=SECONDS + 300, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    assert found is not None
    record_property(f"atheris: {name}, inputs tried in {SECONDS} s; harmful ones", f"{int(found[1]):,}; 0")
