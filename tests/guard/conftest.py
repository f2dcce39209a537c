from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from idness.guard import Guard

Words = tuple[object, ...]


@pytest.fixture
def words(guard: Guard, net_spec: str, weights: Path, tmp_path: Path) -> Words:
    """The words of `idness score` with a saved guard."""
    guard.spec = None
    return ("score", guard.save(tmp_path / "guard", bundle=True), "--model", net_spec, "--weights", weights)


def rows(out: Path) -> list[dict[str, Any]]:
    """Read what `idness score -o` wrote: a file by its ending, or a folder."""
    if out.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(out.read_text())))
    if out.suffix.startswith(".json"):
        text = out.read_text()
        found: list[dict[str, Any]] = json.loads(text if out.suffix == ".json" else f"[{','.join(text.splitlines())}]")
        return found
    parts = [out] if out.is_file() else sorted(out.glob("part-*.parquet"))
    return [row for part in parts for row in pyarrow.parquet.read_table(part).to_pylist()]
