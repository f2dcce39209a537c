"""Results of the main commands, compared with stored ones; `python -m tests.golden.make` stores them again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.collect import COLLECTORS
from tests.golden.values import differences, read


@pytest.mark.parametrize("name", COLLECTORS)
def test_results_are_the_stored_ones(name: str, tmp_path: Path) -> None:
    changed = []
    for document, found in COLLECTORS[name](tmp_path).items():
        stored = read(document)
        if document == "train" and stored["machine"] != found["machine"]:  # the bits are of another processor or torch
            found["machine"] = stored["machine"]
            for method in stored.keys() - {"machine"}:
                found[method]["sha256"] = stored[method]["sha256"]
        changed += differences(stored, found, document)
    assert not changed, "\n".join([f"{len(changed)} values differ from tests/golden/stored:", *changed[:60]])
