"""Which data of the benchmarks is available, and downloading it from a real server on this machine."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idness.benchmark.protocol import GROUPS, Benchmark
from idness.core.errors import DataError
from idness.paper import datasets
from idness.paper.datasets import Archive, archives, fetch, list_sets, locate
from tests.cli.running import idness

NOISE = np.random.default_rng(0).bytes(300_000)


@dataclass
class Shelf:
    """What the server offers, and after how many bytes it hangs up, answer by answer."""

    content: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    address: str = ""

    def archive(self, file: str, **about: object) -> Archive:
        return Archive("it", f"{self.address}/{file}", "none", **about)


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    offered = Shelf()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = offered.content.get(self.path.lstrip("/"))
            asked = self.headers["Range"]
            offered.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if content is None or (start and start >= len(content)):
                self.send_error(404 if content is None else 416)
                return
            self.send_response(206)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            end = start + offered.cuts.pop(0) if offered.cuts else len(content)
            self.wfile.write(content[start:end])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    offered.address = f"http://127.0.0.1:{server.server_port}"
    yield offered
    server.shutdown()
    server.server_close()


def packed(names: dict[str, bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in names.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_an_interrupted_download_is_continued(shelf: Shelf, tmp_path: Path) -> None:
    shelf.content["iSUN.tar.gz"] = packed({"iSUN/a.bin": NOISE})
    shelf.cuts = [100_000, 50_000]
    digest = hashlib.sha256(shelf.content["iSUN.tar.gz"]).hexdigest()
    for _ in range(2):
        with pytest.raises(DataError, match="could not be downloaded .*run the same command again to continue"):
            fetch(shelf.archive("iSUN.tar.gz", sha256=digest), tmp_path)
        assert not (tmp_path / "iSUN").exists()
    fetch(shelf.archive("iSUN.tar.gz", sha256=digest), tmp_path)
    assert (tmp_path / "iSUN" / "a.bin").read_bytes() == NOISE
    assert shelf.ranges == ["bytes=0-", "bytes=100000-", "bytes=150000-"]
    assert {p.name for p in tmp_path.iterdir()} == {".fetched", "iSUN"}


def test_a_complete_download_is_not_repeated_and_stays_in_its_folder(shelf: Shelf, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../../evil/x.txt", "x")
        archive.writestr("x.txt", "x")
    shelf.content["a.zip"] = buffer.getvalue()
    (tmp_path / ".fetched").mkdir()
    (tmp_path / ".fetched" / "a.zip").write_bytes(buffer.getvalue())  # a kill came before unpacking
    fetch(shelf.archive("a.zip", to="sets"), tmp_path)
    assert (tmp_path / "sets" / "x.txt").read_text() == "x"
    assert not list(tmp_path.parent.rglob("evil"))


@pytest.mark.fault(
    "a download is damaged or truncated, or is an archive with members outside the folder",
    does="one line; nothing is unpacked",
)
@pytest.mark.parametrize("harm", ["hash", "cut", "outside", "absent"])
def test_a_wrong_file_is_reported_and_never_used(harm: str, shelf: Shelf, tmp_path: Path) -> None:
    good = packed({"set/a.bin": NOISE})
    content = {"cut": good[:-5000], "outside": packed({"../a.bin": b"x"})}.get(harm, good)
    shelf.content = {} if harm == "absent" else {"set.tar.gz": content}
    words = {"absent": "could not be downloaded .*404: Not Found", "hash": "its md5 must be"}
    with pytest.raises(DataError, match=words.get(harm, "is not the expected file .*the download was removed")):
        fetch(shelf.archive("set.tar.gz", md5="0" * 32 if harm == "hash" else ""), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [".fetched"]
    assert not list((tmp_path / ".fetched").iterdir())
    assert not (tmp_path.parent / "a.bin").exists()


def test_the_command_lists_downloads_and_checks(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    shelf.content["iSUN.tar.gz"] = packed({f"iSUN/{number}.png": buffer.getvalue() for number in range(3)})
    local = {"isun": shelf.archive("iSUN.tar.gz", sets={"cifar10": ["isun"]})}
    monkeypatch.setattr(datasets, "archives", lambda: local)

    def of(*words: str) -> dict[str, object]:
        done = idness("data", "cifar10", "--root", tmp_path / "d", "--json", *words)
        assert done.returncode in (0, 1), done.stderr
        return {item["name"]: item for item in json.loads(done.stdout)} | {"code": done.returncode}

    before = of()
    assert before["isun"]["state"] == "missing"
    assert before["isun"]["expected"] == 8925
    assert before["isun"]["fetchable"]
    assert not before["lsun-c"]["fetchable"]
    after = of("--download", "--sets", "isun", "--check")
    assert after["isun"]["state"] == "3 of 8,925 images"
    assert after["code"] == 1
    shown = idness("data", "cifar10", "--root", tmp_path / "d", "--root", tmp_path / "other")
    assert "3 of 8,925" in " ".join(shown.stdout.split())
    assert len(shelf.ranges) == 1
    assert "unknown benchmark" in idness("data", "cifar11").stderr


def test_the_cifar_protocol_is_that_of_the_paper(tmp_path: Path) -> None:
    """10,000 test images, 1,000 of SVHN per class, a training sample by the number of classes, and named substitutes."""
    images = np.zeros((40, 8, 8, 3), np.uint8)
    arrays = {"train_images": images, "train_labels": np.arange(40), "test_images": images}
    np.savez(tmp_path / "cifar100.npz", **arrays, test_labels=np.arange(40))
    np.savez(tmp_path / "svhn.npz", images=np.zeros((1300, 2, 2, 3), np.uint8), labels=np.arange(1300) // 1200)
    np.savez(tmp_path / "places_mini.npz", images=images)
    np.savez(tmp_path / "textures.npz", images=images)
    where = locate("cifar100", [tmp_path])
    found = {item.name: item for item in where.sets}
    assert "id_val" not in found
    assert (found["id_test"].found, found["id_test"].expected) == (40, 10_000)
    assert (found["svhn"].found, found["svhn"].expected) == (1100, 10_000)
    assert found["places365"].state == "Mini-Places instead (40 images)"
    assert not found["places365"].complete
    assert found["textures"].state == "40 of 5,640 images"
    assert where.benchmark is not None
    assert where.benchmark.id["train"]["sample"] == 5000
    assert "rows" not in where.benchmark.id["test"]


def test_training_samples_grow_with_the_number_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "TRAIN_SAMPLE", 2000)
    for name, count in (("cifar10", 2000), ("cifar100", 5000), ("imagenet", 50_000)):
        specs = {shown: spec for _, _, shown, spec in datasets._protocol(Benchmark.load(name), whole=False)}
        assert specs["id_train"]["sample"] == count


def test_every_set_of_every_shipped_benchmark_is_listed(tmp_path: Path) -> None:
    listed = list_sets([tmp_path])
    for name in datasets.BENCHMARKS:
        bench = Benchmark.load(name)
        parts = {part for part, spec in bench.id.items() if part != "val" or "rows" not in spec}
        wanted = {f"id_{part}" for part in parts} | {found for group in GROUPS for found in getattr(bench, group)}
        assert wanted <= {item.name for item in listed if item.benchmark == name}
    assert all(item.size and item.licence and item.command for item in listed)
    fetchable = {f"{item.benchmark}/{item.name}" for item in listed if item.archive}
    for archive in archives().values():
        assert {f"{bench}/{name}" for bench, sets in archive.sets.items() for name in sets} <= fetchable
