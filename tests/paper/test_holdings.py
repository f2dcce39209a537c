"""What is here of the benchmarks' data, and fetching it, from a real server on this machine."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idness.core.errors import DataError, UnknownNameError
from idness.core.progress import Listener
from idness.paper import fetching, holdings
from idness.paper.fetching import Archive, archives, fetch
from tests.cli.running import idness


class Shelf:
    """What the server offers: content, version, and after how many bytes it hangs up, answer by answer."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.version = '"one"'
        self.cuts: list[int] = []
        self.kind = "application/octet-stream"
        self.ranges: list[str | None] = []
        self.address = ""

    def archive(self, file: str, **about: object) -> Archive:
        return Archive("it", f"{self.address}/{file}", "none", **about)


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    offered = Shelf()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = offered.content.get(self.path.lstrip("/"))
            asked = self.headers.get("Range")
            offered.ranges.append(asked)
            if content is None:
                self.send_error(404)
                return
            start = 0
            if asked and self.headers.get("If-Range") == offered.version:
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("Content-Type", offered.kind)
            self.send_header("ETag", offered.version)
            self.end_headers()
            end = start + offered.cuts.pop(0) if offered.cuts else len(content)
            self.wfile.write(content[start:end])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    offered.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(fetching, "PAUSE", 0.0)
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


NOISE = np.random.default_rng(0).bytes(300_000)


class Steps(Listener):
    def __init__(self) -> None:
        self.done, self.total = 0, None

    def phase(self, name: str, total: int | None) -> None:
        self.done, self.total = 0, total

    def advance(self, steps: int) -> None:
        self.done += steps


def test_a_broken_connection_is_taken_up_where_it_broke(shelf: Shelf, tmp_path: Path) -> None:
    shelf.content["iSUN.tar.gz"] = packed({"iSUN/a.bin": NOISE})
    shelf.cuts = [100_000, 50_000]
    heard = Steps()
    digest = hashlib.sha256(shelf.content["iSUN.tar.gz"]).hexdigest()
    fetch(shelf.archive("iSUN.tar.gz", sha256=digest), tmp_path, heard)
    assert (tmp_path / "iSUN" / "a.bin").read_bytes() == NOISE
    assert shelf.ranges == [None, "bytes=100000-", "bytes=150000-"]
    assert heard.done == heard.total == len(shelf.content["iSUN.tar.gz"])
    assert [p.name for p in tmp_path.iterdir()] == ["iSUN"]


def test_a_command_that_was_stopped_goes_on(shelf: Shelf, tmp_path: Path) -> None:
    shelf.content["a.zip"] = NOISE
    shelf.cuts = [10_000] * fetching.TRIES
    with pytest.raises(DataError, match="could not be fetched .*what is loaded is kept, run the same command again"):
        fetch(shelf.archive("a.zip"), tmp_path)
    loaded = (tmp_path / ".fetched" / "a.zip.part").read_bytes()
    assert loaded == NOISE[: 10_000 * fetching.TRIES]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../../evil/x.txt", "x")
    shelf.content["a.zip"], shelf.version = buffer.getvalue(), '"two"'  # another file by now
    fetch(shelf.archive("a.zip", to="sets"), tmp_path)
    assert (tmp_path / "sets" / "evil" / "x.txt").read_text() == "x"
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("harm", ["hash", "cut", "outside", "page", "absent"])
def test_what_is_wrong_is_told_and_never_used(harm: str, shelf: Shelf, tmp_path: Path) -> None:
    good = packed({"set/a.bin": NOISE})
    content = {"cut": good[:-5000], "outside": packed({"../a.bin": b"x"})}.get(harm, good)
    shelf.content = {} if harm == "absent" else {"set.tar.gz": content}
    shelf.kind = "text/html" if harm == "page" else shelf.kind
    words = {
        "hash": "is not the file it should be .md5 .*it was removed",
        "cut": "cannot be unpacked",
        "outside": "cannot be unpacked",
        "page": "sends a web page",
        "absent": "answers 404 Not Found; fetch it by hand",
    }
    with pytest.raises(DataError, match=words[harm]):
        fetch(shelf.archive("set.tar.gz", md5="0" * 32 if harm == "hash" else ""), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [".fetched"]
    assert not list((tmp_path / ".fetched").glob("*.part"))
    assert not (tmp_path.parent / "a.bin").exists()


def test_only_the_web_is_fetched_from(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="only http and https"):
        fetch(Archive("it", "file:///etc/passwd"), tmp_path)


def images(count: int) -> dict[str, bytes]:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "PNG")
    return {f"iSUN/{number}.png": buffer.getvalue() for number in range(count)}


def test_the_command_lists_fetches_and_checks(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.content["iSUN.tar.gz"] = packed(images(3))
    local = {"isun": shelf.archive("iSUN.tar.gz", sets={"cifar10": ["isun"]})}
    monkeypatch.setattr(holdings, "archives", lambda: local)

    def of(*words: str) -> dict[str, object]:
        told = idness("data", "cifar10", "--root", tmp_path / "d", "--json", *words)
        assert told.returncode in (0, 1), told.stderr
        return {item["name"]: item for item in json.loads(told.stdout)} | {"code": told.returncode}

    before = of()
    assert before["isun"]["state"] == "missing"
    assert before["isun"]["expected"] == 8925
    assert before["isun"]["fetchable"]
    assert not before["lsun-c"]["fetchable"]
    after = of("--download", "--set", "isun", "--check")
    assert after["isun"]["state"] == "3 of 8,925 images"
    assert after["code"] == 1
    shown = idness("data", "cifar10", "--root", tmp_path / "d")
    assert "3 of 8,925" in " ".join(shown.stdout.split())
    assert len(shelf.ranges) == 1
    assert idness("data", "cifar11").returncode == 2


def test_weights_are_compared_with_the_hash_in_their_name(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"weights").hexdigest()
    monkey = tmp_path / f"net-{digest[:8]}.pth"
    monkey.write_bytes(b"weights")
    assert holdings._weights_state(monkey) == "whole"
    monkey.write_bytes(b"weightz")
    assert holdings._weights_state(monkey).startswith("wrong: its sha256")
    with pytest.raises(UnknownNameError, match="unknown benchmark"):
        holdings.holdings([tmp_path], ["nosuch"])


def test_every_set_of_every_shipped_benchmark_is_listed(tmp_path: Path) -> None:
    from idness.benchmark.protocol import GROUPS, Benchmark

    listed = holdings.holdings([tmp_path])
    for name in holdings.BENCHMARKS:
        bench = Benchmark.load(name)
        wanted = {f"id_{part}" for part in bench.id} | {found for group in GROUPS for found in getattr(bench, group)}
        assert wanted <= {item.name for item in listed if item.benchmark == name}
    assert all(item.size and item.licence and item.source for item in listed)
    for archive in archives().values():
        for bench, sets in archive.sets.items():
            assert {f"{bench}/{name}" for name in sets} <= {f"{i.benchmark}/{i.name}" for i in listed if i.fetchable}
