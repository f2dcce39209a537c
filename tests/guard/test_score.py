"""`idness score`: rows on the terminal, in files, and tables of Parquet files that can be resumed."""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import tiny_net
from colour_world import known
from PIL import Image

from idness.core.errors import StoreError
from idness.core.files import LISTING
from idness.guard import Guard, score
from idness.guard.score import VerdictTable, row_stream
from idness.guard.verdict import Detection
from tests.cli.running import idness
from tests.guard.conftest import Words, rows


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "SHARD", 20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "pictures"
    place.mkdir()
    return place


def test_csv_terminal_and_strict(words: Words, id_folder: Path, tmp_path: Path) -> None:
    odd_name, broken = tmp_path / 'a,[b] "c"\x1b[31m.png', tmp_path / "broken.jpg"
    known("blue", 4).save(odd_name)
    broken.write_bytes(b"no image")
    (tmp_path / "broken.tar").touch()
    paths = [odd_name, broken, tmp_path / "absent.png", tmp_path / "broken.tar"]
    done = idness(*words, "-", "--csv", stdin="\n".join(map(str, paths)) + "\n")
    found = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["image"] for row in found] == [str(path) for path in paths]
    assert found[0]["class"] == "blue"
    assert "must be one of" in found[1]["error"]
    assert "cannot be read" in found[2]["error"]
    table = idness(*words, odd_name, broken)
    assert "[b]" in table.stdout
    assert "of 2 images out-of-distribution, 1 unread" in table.stdout
    assert "\x1b" not in table.stdout
    assert idness(*words, broken, "--strict").returncode == 1
    pattern = idness(*words, id_folder / "*" / "000?.png", "--json")
    assert len(pattern.stdout.splitlines()) == 40


def test_table_has_the_same_verdicts_as_rows(
    words: Words, id_folder: Path, ood_folder: Path, tmp_path: Path, small_parts: None
) -> None:
    (tmp_path / "junk.png").write_bytes(b"junk")
    images = (id_folder / "red", tmp_path / "junk.png", ood_folder)
    told = [json.loads(line) for line in idness(*words, *images, "--json", "--batch-size", 20).stdout.splitlines()]
    done = idness(*words, *images, "-o", tmp_path / "out", "--batch-size", 20)
    assert done.returncode == 0, done.stderr
    found = rows(tmp_path / "out")
    assert len(list((tmp_path / "out").glob("part-*.parquet"))) == 5
    for row, record in zip(found, told, strict=True):
        same = ("label", "class", "is_ood", "reason", "caution")
        assert [row["image"], row["error"], *(row[name] for name in same)] == [
            record["image"], record.get("error"), *(record.get(name) for name in same),
        ]  # fmt: skip
        for name in ("score", "p_value"):
            assert row[name] == (pytest.approx(record[name], rel=1e-5) if name in record else None)
    flagged = sum(bool(row["is_ood"]) for row in found)
    assert done.stdout.startswith(
        f"{flagged} of 91 images out-of-distribution, 1 unreadable; the first: {tmp_path}/junk.png"
    )
    assert json.loads((tmp_path / "out" / LISTING).read_text())["counts"] == {"images": 91, "ood": flagged, "unread": 1}
    assert idness(*words, tmp_path / "junk.png", "-o", tmp_path / "strict", "--strict").returncode == 1
    assert "differ as a whole from the calibration images" in idness(*words, ood_folder, "-o", tmp_path / "odd").stderr


def test_an_interrupted_table_resumes_without_scoring_again(
    words: Words, id_folder: Path, tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[int] = []
    real = VerdictTable.score_span

    def stopping(table: Any, images: Any, names: Any, file: str, *more: Any) -> Any:
        number = int(file.split("-")[1])
        if number == 2 and 2 not in scored:
            scored.append(2)
            raise StoreError("the disk is full")
        scored.append(number)
        return real(table, images, names, file, *more)

    monkeypatch.setattr(VerdictTable, "score_span", stopping)
    out = tmp_path / "out"
    assert idness(*words, id_folder, "-o", out).returncode == 2
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert (len(kept), list(out.glob(".*"))) == (2, [out / LISTING])
    assert json.loads((out / LISTING).read_text())["counts"] is None
    scored.append(100)
    assert idness(*words, id_folder, "-o", out).stderr.startswith(f"idness: {out} exists; pass --resume to continue it")
    assert idness(*words, id_folder, "-o", out, "--resume").returncode == 0
    assert scored[scored.index(100) + 1 :] == [2, *range(3, 12)]
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    assert idness(*words, id_folder, "-o", tmp_path / "whole").returncode == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()
    }


def test_resuming_scores_changed_images_and_refuses_another_guard(
    words: Words, ood_folder: Path, folder: Path, tmp_path: Path, small_parts: None
) -> None:
    out = tmp_path / "out"
    for place, path in enumerate(sorted(ood_folder.iterdir())):
        (folder / f"{place:02}.png").write_bytes(path.read_bytes())
    assert idness(*words, folder, "-o", out).returncode == 0
    first, second = sorted(path.name for path in out.glob("part-*"))
    Image.new("RGB", (24, 24), "red").save(folder / "25.png")
    assert idness(*words, folder, "-o", out, "--resume").returncode == 0
    names = sorted(path.name for path in out.glob("part-*"))
    assert (names[0], names[1] != second, len(names)) == (first, True, 2)
    assert len(rows(out)) == 30
    other = idness(*words, folder, "-o", out, "--resume", "--recall", "0.8")
    assert other.returncode == 2
    assert "contains verdicts from another guard, version or options; choose another folder" in other.stderr
    others = idness(*words, ood_folder, "-o", out, "--resume")
    assert (others.returncode, others.stderr) == (
        2,
        f"idness: {out}: contains verdicts on other images; choose another folder\n",
    )
    assert sorted(path.name for path in out.glob("part-*")) == names
    for place in range(20, 30):
        (folder / f"{place}.png").unlink()
    assert idness(*words, folder, "-o", out, "--resume").returncode == 0
    assert len(rows(out)) == 20


def test_a_table_belongs_to_the_same_guard_in_any_folder_and_with_a_detection_rate(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.spec = "tiny_net.py:make"
    here = VerdictTable(guard, tmp_path / "out")
    monkeypatch.chdir(Path(tiny_net.__file__).parent)
    guard.detection = Detection(9, 10)
    there = VerdictTable(guard, tmp_path / "out")
    assert there.identity == here.identity


def test_kept_columns_join_verdicts_with_the_users_table(words: Words, ood_folder: Path, tmp_path: Path) -> None:
    files = sorted(ood_folder.iterdir())[:5]
    columns = {"sku": [f"s{n}" for n in range(5)], "label": [7, None, 7, 7, 7], "jpeg": [f.read_bytes() for f in files]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet", row_group_size=2)
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        for number, path in enumerate(files):
            for name, content in ((f"{number}.png", path.read_bytes()), (f"{number}.json", b'{"sku": "s%d"}' % number)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    done = idness(*words, tmp_path / "t.parquet", "--keep", "sku,label", "-o", tmp_path / "t.csv")
    assert done.returncode == 0, done.stderr
    by_key = {row["sku"]: row for row in rows(tmp_path / "t.csv")}
    assert [by_key["s0"]["input_label"], by_key["s1"]["input_label"]] == ["7", ""]
    for source, keep in (("t.parquet", "sku,label"), ("s.tar", "sku,__key__")):
        out = tmp_path / f"out-{source.removesuffix('.tar')}"
        done = idness(*words, tmp_path / source, "--keep", keep, "-o", out)
        assert done.returncode == 0, done.stderr
        assert {row["sku"]: f"{row['score']:.3f}" for row in rows(out)} == {
            key: f"{float(row['score']):.3f}" for key, row in by_key.items()
        }
    assert [row["__key__"] for row in rows(tmp_path / "out-s")] == list("01234")
    forgotten = idness(*words, tmp_path / "s.tar", "-o", tmp_path / "out-s", "--resume")
    assert (forgotten.returncode, len(rows(tmp_path / "out-s"))) == (2, 5)
    assert "contains verdicts from another guard, version or options" in forgotten.stderr
    wrong = idness(*words, tmp_path / "t.parquet", "--keep", "skv", "--csv")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "has no column 'skv'; it has sku, label, jpeg" in wrong.stderr
    assert idness(*words, tmp_path / "t.parquet", "--image-column", "sku", "--json").stdout.count("error") == 5


def test_names_that_are_not_utf_8(words: Words, id_folder: Path, folder: Path, tmp_path: Path) -> None:
    image = next(id_folder.rglob("*.png")).read_bytes()
    contents = {b"a\xff.png": image, b"b\xfe.png": b"junk", "ü.png".encode(): image}
    for name, content in contents.items():
        (folder / os.fsdecode(name)).write_bytes(content)
    expected = [f"{folder}/{name}" for name in (r"a\xff.png", r"b\xfe.png", "ü.png")]
    listed = "".join(f"{folder / os.fsdecode(name)}\n" for name in contents)
    for source, stdin in ((folder, ""), ("-", listed)):
        printed = idness(*words, source, "--json", stdin=stdin).stdout.encode().decode()
        assert [json.loads(line)["image"] for line in printed.splitlines()] == expected
        assert all(name in idness(*words, source, stdin=stdin).stdout for name in expected)
    done = idness(*words, folder, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert [row["image"] for row in rows(tmp_path / "out")] == expected
    assert str(rows(tmp_path / "out")[1]["error"]).startswith(r"b\xfe.png: ")


@pytest.mark.parametrize("name", ["x.csv", "x.json", "x.jsonl"])
def test_out_writes_a_file_by_its_ending(words: Words, id_folder: Path, name: str, tmp_path: Path) -> None:
    form = ("--csv",) if name == "x.csv" else ()  # --csv is not needed, and does no harm
    done = idness(*words, id_folder / "red", *form, "-o", tmp_path / name)
    assert done.returncode == 0, done.stderr
    text, found = (tmp_path / name).read_text(), rows(tmp_path / name)
    assert [row["image"] for row in found] == sorted(str(path) for path in (id_folder / "red").iterdir())
    again = idness(*words, id_folder / "red", "-o", tmp_path / name)
    assert (again.returncode, (tmp_path / name).read_text()) == (2, text)
    assert "exists" in again.stderr


@pytest.mark.parametrize("out", [(), ("-o", "out"), ("--csv",)])
@pytest.mark.parametrize(("stdin", "message"), [("", "lists no images"), ("a\0b.png\n", "line 1 contains a NUL")])
def test_unusable_lists_are_refused(
    words: Words, out: tuple[str, ...], stdin: str, message: str, tmp_path: Path
) -> None:
    done = idness(*words, "-", *out, stdin=stdin, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["nosuch.png", "-o", "out"], "no images at nosuch.png"),
        ([".", "-o", "a-file/out"], "a-file/out: a-file is not a folder"),
        (["empty.txt", "-o", "out"], "must contain at least one image, got none"),
        ([".", "--resume"], "need a folder as --out"),
        ([".", "--csv", "--json"], "pass either --csv or --json"),
        ([".", "-o", "link.csv"], "link.csv: exists"),
        ([".", "-o", "x.txt"], "--out ends in .txt"),
    ],
)
def test_mistakes_give_one_line_and_write_nothing(words: Words, more: list[str], message: str, folder: Path) -> None:
    (folder / "a-file").touch()
    (folder / "empty.txt").touch()
    (folder / "link.csv").symlink_to("nowhere")
    done = idness(*words, *more, cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["a-file", "empty.txt", "link.csv"]
    assert (folder / "link.csv").is_symlink()


def test_a_file_that_another_process_wrote_meanwhile_stays(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="exists"), row_stream(tmp_path / "x.csv") as stream:
        stream.write("ours")
        (tmp_path / "x.csv").write_text("theirs")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["theirs"]
