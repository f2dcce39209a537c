from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the repository; tests that use it carry the mark `shared`."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared/data beside the repository")
    return SHARED
