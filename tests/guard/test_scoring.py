"""`idness score -o`: a table of verdicts on disk, one file for each span of images."""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from idness.core.errors import StoreError
from idness.core.files import LISTING
from idness.guard import Guard, scoring
from idness.guard.table import MANIFEST, VerdictTable
from tests.cli.running import idness


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "SHARD", 20)


@pytest.fixture
def saved(guard: Guard, tmp_path: Path) -> Path:
    guard.spec = None
    return guard.save(tmp_path / "guard", bundle=True)


@pytest.fixture
def words(saved: Path, net_spec: str, weights: Path) -> tuple[object, ...]:
    return ("score", saved, "--model", net_spec, "--weights", weights)


def rows(out: Path) -> list[dict[str, object]]:
    return [row for part in sorted(out.glob("part-*.parquet")) for row in pyarrow.parquet.read_table(part).to_pylist()]


def test_the_table_says_what_the_rows_say_in_their_order(
    words: tuple[object, ...], id_folder: Path, ood_folder: Path, tmp_path: Path, small_parts: None
) -> None:
    (tmp_path / "junk.png").write_bytes(b"junk")
    images = (id_folder / "red", tmp_path / "junk.png", ood_folder)
    told = [json.loads(line) for line in idness(*words, *images, "--json", "--batch", 20).stdout.splitlines()]
    done = idness(*words, *images, "-o", tmp_path / "out", "--batch", 20)
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path / "out")
    assert len(list((tmp_path / "out").glob("part-*.parquet"))) == 5
    for row, record in zip(found, told, strict=True):
        same = ("label", "class", "is_ood", "reason", "caution")
        assert [row["path"], row["problem"], *(row[name] for name in same)] == [
            record["image"], record.get("error"), *(record.get(name) for name in same),
        ]  # fmt: skip
        for name in ("score", "p_value"):
            assert row[name] == (pytest.approx(record[name], rel=1e-5) if name in record else None)
    flagged = sum(bool(row["is_ood"]) for row in found)
    assert done.stdout.startswith(
        f"{flagged} of 91 images out-of-distribution, 1 unread; the first unread, {tmp_path}/junk.png"
    )
    counts = VerdictTable(tmp_path / "out").manifest().counts
    assert (counts.images, counts.ood, counts.unread) == (91, flagged, 1)
    assert idness(*words, tmp_path / "junk.png", "-o", tmp_path / "strict", "--strict").returncode == 1


def test_a_run_that_stops_goes_on_and_judges_no_finished_part_again(
    words: tuple[object, ...], id_folder: Path, tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[int] = []
    real = scoring.judge_span

    def stopping(job: object, images: object, names: object, number: int, *more: object) -> object:
        if number == 2 and 2 not in judged:
            judged.append(2)
            raise StoreError("the disk is full")
        judged.append(number)
        return real(job, images, names, number, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(scoring, "judge_span", stopping)
    out = tmp_path / "out"
    assert idness(*words, id_folder, "-o", out).returncode == 2
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert (len(kept), (out / MANIFEST).exists(), list(out.glob(".*"))) == (2, False, [out / LISTING])
    judged.append(100)
    assert idness(*words, id_folder, "-o", out).stderr.startswith(f"idness: {out} exists; --resume continues it")
    assert idness(*words, id_folder, "-o", out, "--resume").returncode == 0
    assert judged[judged.index(100) + 1 :] == [2, *range(3, 12)]
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    monkeypatch.setattr(scoring, "judge_span", real)
    assert idness(*words, id_folder, "-o", tmp_path / "whole").returncode == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()
    }


def test_changed_images_and_damage_are_judged_again_and_another_guard_is_refused(
    words: tuple[object, ...], ood_folder: Path, tmp_path: Path, small_parts: None
) -> None:
    folder, out = tmp_path / "pictures", tmp_path / "out"
    folder.mkdir()
    for place, path in enumerate(sorted(ood_folder.iterdir())):
        (folder / f"{place:02}.png").write_bytes(path.read_bytes())
    assert idness(*words, folder, "-o", out).returncode == 0
    first, second = sorted(path.name for path in out.glob("part-*"))
    Image.new("RGB", (24, 24), "red").save(folder / "25.png")
    assert idness(*words, folder, "-o", out, "--resume").returncode == 0
    names = sorted(path.name for path in out.glob("part-*"))
    assert (names[0], names[1] != second, len(names)) == (first, True, 2)
    (out / first).write_bytes((out / first).read_bytes()[:-9])
    assert idness(*words, folder, "-o", out, "--resume").returncode == 0
    assert len(rows(out)) == 30
    assert idness(*words, folder, "-o", out, "--resume", "--recall", "0.8").returncode == 2
    (folder / "29.png").unlink()
    for place in range(20, 29):
        (folder / f"{place}.png").unlink()
    assert idness(*words, folder, "-o", out, "--resume").returncode == 0
    assert len(rows(out)) == 20


def test_tables_shards_lists_and_arrays_are_judged_as_their_images_are(
    words: tuple[object, ...], ood_folder: Path, tmp_path: Path, small_parts: None
) -> None:
    files = sorted(ood_folder.iterdir())
    pyarrow.parquet.write_table(
        pyarrow.table({"image": [path.read_bytes() for path in files]}), tmp_path / "t.parquet", row_group_size=7
    )
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        for path in files:
            member = tarfile.TarInfo(path.name)
            member.size = path.stat().st_size
            archive.addfile(member, io.BytesIO(path.read_bytes()))
    (tmp_path / "l.txt").write_text("".join(f"{path.name}\n" for path in files))
    np.savez(tmp_path / "a.npz", images=np.stack([np.asarray(Image.open(path).convert("RGB")) for path in files]))
    expected = None
    places = {"t.parquet": f"{tmp_path}/t.parquet#0", "s.tar": f"{tmp_path}/s.tar@512", "a.npz": f"{tmp_path}/a.npz#0"}
    for name in ("folder", *places):
        out = tmp_path / f"out-{name}"
        given = ood_folder if name == "folder" else tmp_path / name
        done = idness(*words, given, "-o", out, "--batch", 20)
        assert done.returncode == 0, done.stderr
        scores = [row["score"] for row in rows(out)]
        expected = expected or scores
        assert scores == expected
        if name in places:
            assert rows(out)[0]["path"] == places[name]
    done = idness(
        *words, tmp_path / "l.txt", ood_folder, tmp_path / "t.parquet", "-o", tmp_path / "both", cwd=ood_folder
    )
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path / "both")
    assert [row["path"] for row in found[:30]] == [path.name for path in files]
    assert [row["path"] for row in found[59:62]] == [
        str(files[-1]),
        f"{tmp_path}/t.parquet#0",
        f"{tmp_path}/t.parquet#1",
    ]
    assert len(found) == 90


def test_images_none_of_which_can_be_read_each_get_their_problem(words: tuple[object, ...], tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    for name in "abc":
        (tmp_path / "pictures" / f"{name}.png").write_bytes(b"junk")
    done = idness(*words, tmp_path / "pictures", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 of 3 images out-of-distribution, 3 unread")
    assert all(row["problem"] and row["score"] is None for row in rows(tmp_path / "out"))


def test_names_that_are_not_utf_8_lose_no_row(words: tuple[object, ...], id_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    image = next(id_folder.rglob("*.png")).read_bytes()
    contents = {b"a\xff.png": image, b"b\xfe.png": b"junk", "ü.png".encode(): image}
    for name, content in contents.items():
        (folder / os.fsdecode(name)).write_bytes(content)
    expected = [f"{folder}/{name}" for name in (r"a\xff.png", r"b\xfe.png", "ü.png")]
    listed = "".join(f"{folder / os.fsdecode(name)}\n" for name in contents)
    for source, stdin in (([folder], ""), (["-"], listed)):
        table, as_csv, as_json = (
            idness(*words, *source, *form, stdin=stdin).stdout.encode().decode()
            for form in ((), ("--csv",), ("--json",))
        )
        found = list(csv.DictReader(io.StringIO(as_csv)))
        assert [row["image"] for row in found] == expected
        assert found[1]["error"].startswith(r"b\xfe.png: ")
        assert [json.loads(line)["image"] for line in as_json.splitlines()] == expected
        assert all(name in table for name in expected)
    done = idness(*words, folder, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert [row["path"] for row in rows(tmp_path / "out")] == expected
    assert str(rows(tmp_path / "out")[1]["problem"]).startswith(r"b\xfe.png: ")


@pytest.mark.parametrize("name", ["x.csv", "x.json", "x.jsonl"])
def test_rows_go_to_the_file_that_is_named_and_to_no_other(
    words: tuple[object, ...], id_folder: Path, name: str, tmp_path: Path
) -> None:
    form = ("--csv",) if name == "x.csv" else ()  # --csv is not needed, and does no harm
    done = idness(*words, id_folder / "red", *form, "-o", tmp_path / name)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / name).read_text()
    if name == "x.csv":
        found: list[dict[str, object]] = list(csv.DictReader(io.StringIO(text)))  # type: ignore[arg-type]
    else:
        found = json.loads(text) if name == "x.json" else [json.loads(line) for line in text.splitlines()]
    assert [row["image"] for row in found] == sorted(str(path) for path in (id_folder / "red").iterdir())
    again = idness(*words, id_folder / "red", "-o", tmp_path / name)
    assert (again.returncode, (tmp_path / name).read_text()) == (2, text)
    assert "exists" in again.stderr


def test_a_table_is_judged_without_out_too(words: tuple[object, ...], id_folder: Path, tmp_path: Path) -> None:
    files = sorted((id_folder / "red").iterdir())[:3]
    pyarrow.parquet.write_table(pyarrow.table({"image": [file.read_bytes() for file in files]}), tmp_path / "t.parquet")
    done, plain = idness(*words, tmp_path / "t.parquet", "--json"), idness(*words, *files, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["image"] for row in found] == [f"{tmp_path}/t.parquet#{row}" for row in range(3)]
    assert [row["score"] for row in found] == [json.loads(line)["score"] for line in plain.stdout.splitlines()]


@pytest.mark.parametrize("out", [(), ("-o", "out"), ("--csv",)])
@pytest.mark.parametrize(("stdin", "message"), [("", "lists no images"), ("a\0b.png\n", "line 1 holds a NUL")])
def test_a_list_that_cannot_be_used_is_refused(
    words: tuple[object, ...], out: tuple[str, ...], stdin: str, message: str, tmp_path: Path
) -> None:
    done = idness(*words, "-", *out, stdin=stdin, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.long
def test_an_exported_guard_writes_the_same_table(
    guard: Guard, ood_folder: Path, words: tuple[object, ...], tmp_path: Path
) -> None:
    guard.to_onnx(tmp_path / "guard.onnx")
    done = idness("score", tmp_path / "guard.onnx", ood_folder, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert idness(*words, ood_folder, "-o", tmp_path / "torch").returncode == 0
    ours, theirs = rows(tmp_path / "out"), rows(tmp_path / "torch")
    assert [row["is_ood"] for row in ours] == [row["is_ood"] for row in theirs]
    assert [row["score"] for row in ours] == pytest.approx([row["score"] for row in theirs], rel=1e-3)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["nosuch.png", "-o", "out"], "no image at nosuch.png"),
        ([".", "-o", "a-file/out"], "cannot write a-file/out"),
        (["empty.txt", "-o", "out"], "must hold at least one image, got none"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    words: tuple[object, ...], more: list[str], message: str, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "a-file").touch()
    (here / "empty.txt").touch()
    done = idness(*words, *more, cwd=here)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert sorted(path.name for path in here.iterdir()) == ["a-file", "empty.txt"]
