from __future__ import annotations

from pathlib import Path

import pytest

from idness.benchmark.protocol import Benchmark, names
from idness.core.errors import DataError, IdnessError, IdnessWarning
from tests.pictures import world

SHIPPED = ("cifar6", "cifar10", "cifar100", "cifar10-openood", "cifar100-openood", "imagenet", "imagenet-react")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_benchmarks_are_whole(name: str) -> None:
    bench = Benchmark.load(name)
    assert bench.name == name
    assert bench.title
    tested = {*bench.near, *bench.far}
    assert tested
    assert not tested & set(bench.ood_val)
    assert name in names()


def test_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = world(tmp_path)
    bench = Benchmark.load(path)
    assert bench.root() == tmp_path
    assert len(bench.open()) == 6
    monkeypatch.chdir(tmp_path)
    assert Benchmark.load("cifar10").root() == Path()
    (tmp_path / "data").mkdir()
    assert Benchmark.load("cifar10").root() == Path("data")
    assert Benchmark.load("cifar10").root(tmp_path) == tmp_path
    with pytest.raises(DataError, match="nowhere. does not exist"):
        bench.root(tmp_path / "nowhere")


def test_all_that_is_missing_is_reported_at_once(tmp_path: Path) -> None:
    path = world(tmp_path)
    (tmp_path / "near.npz").unlink()
    (tmp_path / "val.npz").unlink()
    with pytest.raises(
        DataError, match=r"2 of 6 sets cannot be used: id_val: val.npz does not exist.*mixed: near.npz does not exist"
    ):
        Benchmark.load(path).open()
    with pytest.warns(IdnessWarning) as told:
        found = Benchmark.load(path).open(partial=True)
    assert [entry.name for entry in found] == ["id_train", "id_test", "uval", "grey"]
    assert [str(warning.message) for warning in told] == [
        "id_val is skipped: val.npz does not exist",
        "mixed is skipped: near.npz does not exist",
    ]
    (tmp_path / "test.npz").unlink()
    with pytest.raises(DataError, match="id_test: test.npz does not exist"):
        Benchmark.load(path).open(partial=True)


@pytest.mark.parametrize(
    ("far", "message"),
    [
        ('{ pth = "far.npz" }', "grey: a set has the options path, kind.*; got 'pth'"),
        ('{ path = "far.npz", kind = "foldr" }', "grey: kind must be one of folder, npz, list.*; got 'foldr'"),
        ("5", "grey: a set must be a path or a table with a path, got 5"),
        (
            '"torchvision:LSUN"',
            "grey: unknown torchvision data set 'LSUN'",
        ),
    ],
)
def test_a_mistake_is_reported_even_where_sets_may_be_missing(tmp_path: Path, far: str, message: str) -> None:
    path = world(tmp_path)
    path.write_text(path.read_text().replace('"far.npz"', far))
    with pytest.raises(DataError, match=message):
        Benchmark.load(path).open(partial=True)


def test_an_empty_set_is_reported(tmp_path: Path) -> None:
    path = world(tmp_path)
    (tmp_path / "far.npz").unlink()
    (tmp_path / "hollow").mkdir()
    path.write_text(path.read_text().replace("far.npz", "hollow"))
    with pytest.raises(DataError, match="grey: hollow contains no images"):
        Benchmark.load(path).open()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = 3 4", "is not valid TOML"),
        ("colour = 1", "unknown key 'colour'"),
        ("[id]\ntrain = 'x'\n[far]\na = 'b'", r"needs \[id\] test"),
        ("[id]\ntest = 'x'\nother = 'y'\n[far]\na = 'b'", "got 'other'"),
        ("[id]\ntest = 'x'", "at least one set"),
        ("[id]\ntest = 'x'\n[near]\na = 'b'\n[far]\na = 'c'", "must be unique.*got 'a'"),
        ("[id]\ntest = 'x'\n[ood_val]\na = 'b'\n[far]\na = 'c'", "must be unique.*got 'a'"),
        ("[id]\ntest = 'x'\n[far]\n'a/b' = 'c'", "of letters.*got 'a/b'"),
        ("classes = [1]\n[id]\ntest = 'x'\n[far]\na = 'c'", "classes must be"),
        ("far = 3\n[id]\ntest = 'x'", r"\[far\] must be a table"),
    ],
)
def test_wrong_files_are_reported(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Benchmark.from_text(text, "mine")


def test_unknown_names_and_files(tmp_path: Path) -> None:
    with pytest.raises(IdnessError, match="did you mean 'cifar10'"):
        Benchmark.load("cifar11")
    with pytest.raises(DataError, match="--init writes a template"):
        Benchmark.load(tmp_path / "gone.toml")
