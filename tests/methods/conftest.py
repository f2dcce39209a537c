from __future__ import annotations

import pytest

from tests.worlds import make_world


@pytest.fixture(scope="package")
def world():
    return make_world(seed=3)
