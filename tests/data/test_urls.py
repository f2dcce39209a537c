"""Sets of images by URL: the same images and stamps as local ones, one line for what does not exist."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from idness.core.errors import DataError
from idness.core.text import masked, without_folder
from idness.data import ImageSet, decode, open_set
from idness.data.open import open_argument
from idness.data.urls import located, name_of, suffix_of


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, id_folder: Path) -> Path:
    """A folder of two classes, and its images as a table, a shard and a list."""
    root = tmp_path_factory.mktemp("urls")
    files = []
    for name in ("blue", "red"):
        (root / "folder" / name).mkdir(parents=True)
        for path in sorted((id_folder / name).iterdir())[:5]:
            files.append(root / "folder" / name / path.name)
            files[-1].write_bytes(path.read_bytes())
    (root / "folder" / ".hidden").mkdir()
    (root / "folder" / ".hidden" / "x.png").write_bytes(b"x")
    table = pyarrow.table({"image": [path.read_bytes() for path in files], "label": [0] * 5 + [1] * 5})
    pyarrow.parquet.write_table(table, root / "t.parquet", row_group_size=3)
    with tarfile.open(root / "s.tar", "w") as archive:
        for path in files:
            member = tarfile.TarInfo(f"{path.parent.name}-{path.name}")
            member.size = path.stat().st_size
            archive.addfile(member, io.BytesIO(path.read_bytes()))
    np.savez(root / "a.npz", images=np.stack([np.asarray(decode(path)) for path in files]))
    (root / "l.txt").write_text("".join(f"folder/{path.parent.name}/{path.name}\n" for path in files))
    return root


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            """Return the requested range of a file, as object stores do."""
            content = Path(self.translate_path(self.path)).read_bytes()
            first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            part = content[int(first) : int(last) + 1 if last else None]
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("Content-Length", str(len(part)))
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}")
            self.end_headers()
            self.wfile.write(part)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(place))) as found:
        Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


@pytest.fixture(scope="module")
def memory(place: Path) -> str:
    system = fsspec.filesystem("memory")
    for path in place.rglob("*"):
        if path.is_file():
            system.pipe(f"/urls/{path.relative_to(place)}", path.read_bytes())
    return "memory://urls"


def pixels(images: ImageSet) -> list[bytes]:
    return [np.asarray(images.picture(index)).tobytes() for index in range(len(images))]


def opened(spec: str) -> ImageSet:
    found = open_set(spec)
    assert isinstance(found, ImageSet)
    return found


@pytest.mark.parametrize("name", ["folder", "l.txt", "t.parquet", "s.tar"])
@pytest.mark.parametrize("kind", ["file", "memory", "server"])
def test_a_set_by_url_equals_the_local_set(
    place: Path, name: str, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (name, kind) == ("folder", "server"):
        pytest.skip("HTTP has no folders")
    base = place.as_uri() if kind == "file" else request.getfixturevalue(kind)
    monkeypatch.chdir(place)
    local, found = opened(name), opened(f"{base}/{name}")
    assert pixels(found) == pixels(local)
    assert (found.classes, found.source) == (local.classes, local.source)
    assert np.array_equal(found.labels, local.labels)  # type: ignore[arg-type]
    if kind == "memory":
        found.parallel = False  # all readers of a file in fsspec's memory share one position
    assert found.stamp(0, 10) == local.stamp(0, 10)  # of the content
    assert found.stamp(0, 10) != found.stamp(0, 5)


@pytest.mark.parametrize(
    ("name", "by_url"),
    [
        *((name, by_url) for name in ("folder", "l.txt", "t.parquet", "s.tar") for by_url in (False, True)),
        ("a.npz", False),
    ],
)
def test_a_portion_reads_the_same_images_elsewhere(
    place: Path, name: str, by_url: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    whole = opened(f"{place.as_uri()}/{name}" if by_url else name)
    expected = pixels(whole)
    for start, stop in ((0, 4), (2, 9), (9, 10)):
        monkeypatch.chdir(place)
        sent = pickle.dumps(whole.portion(start, stop))
        monkeypatch.chdir(tmp_path)  # a worker runs elsewhere
        part = pickle.loads(sent)
        assert pixels(part) == expected[start:stop]
        assert part.labels is None
        assert part.present()


@pytest.mark.parametrize("root", ["path", "file", "server"])
def test_a_list_reads_files_below_its_root_only(place: Path, tmp_path: Path, server: str, root: str) -> None:
    base = {"file": place.as_uri(), "server": server}.get(root, str(place)) + "/folder/red"
    (tmp_path / "l.txt").write_text("0000.png 1\n9999.png 0\n")
    found = open_set({"path": str(tmp_path / "l.txt"), "root": base})
    assert isinstance(found, ImageSet)
    assert pixels(found.portion(0, 1)) == pixels(opened(str(place / "folder")))[5:6]
    with pytest.raises(DataError, match=r"9999\.png: cannot be read"):
        found.picture(1)
    outside = [f"{place.as_uri()}/folder/blue/0000.png", f"{server}/folder/blue/0000.png", f"{base}/../blue/0000.png"]
    outside += ["s3://key:secret@bucket/x.png", "a\0.png", "../x.png", "/etc/passwd", "simplecache::file:///etc/passwd"]
    if root == "server":
        outside += ["%2e%2e/blue/0000.png", "..%2Fblue/0000.png", f"{base}/%2E./blue/0000.png"]
    for line in outside:
        (tmp_path / "l.txt").write_text(f"{line} 0\n")
        with pytest.raises(DataError, match=r"line 1 must be a path relative to the root") as caught:
            open_set({"path": str(tmp_path / "l.txt"), "root": base})
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///nosuch/folder", "does not exist"),
        ("nosuch://bucket/folder", "cannot be opened"),
        ("http://127.0.0.1:9/list.txt", "127.0.0.1:9"),
        ("ftp://127.0.0.1:9/x", "127.0.0.1:9"),
        ("reference://x/y", "reference://x/"),
        ("zip://x/y", "zip://x/"),
        ("nosuch://key:se/cret@bucket/folder", r"nosuch://\*\*\*@"),
    ],
)
def test_missing_places_are_reported_in_one_line(url: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        open_argument("data", url)
    assert "\n" not in str(caught.value)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("got s3://key:se/c+r=et@bucket/x.png;", "got s3://***@bucket/x.png;"),
        ("sftp://user@host/x", "sftp://***@host/x"),
        ("https://h:80/a@b.png?v=1&X-Amz-Signature=abc", "https://h:80/a@b.png?v=1&X-Amz-Signature=***"),
        ("data/a@b.png", "data/a@b.png"),
        ("s3://bucket/a@b.png", "s3://bucket/a@b.png"),
    ],
)
def test_secrets_of_urls_are_masked(text: str, expected: str) -> None:
    assert masked(text) == expected
    assert without_folder(text) == expected


def test_names() -> None:
    assert name_of(located("http://key:secret@host")) == "host"
    assert (name_of(located("memory://b/a/x.tar")), suffix_of(located("memory://b/a/x.TAR"))) == ("x.tar", ".tar")
    assert (suffix_of(located("memory://b/.x")), suffix_of(located("https://h/x.parquet?v=1"))) == ("", ".parquet")
