from __future__ import annotations

from pathlib import Path

import pytest

from idness.guard import Guard

Words = tuple[object, ...]


@pytest.fixture
def words(guard: Guard, net_spec: str, weights: Path, tmp_path: Path) -> Words:
    """The words of `idness score` with a saved guard."""
    guard.spec = None
    return ("score", guard.save(tmp_path / "guard", bundle=True), "--model", net_spec, "--weights", weights)
