from __future__ import annotations

import dataclasses
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from idness.core.documents import Document, packed
from idness.core.errors import StoreError
from idness.core.files import key_of, sha256_of


@dataclass
class Note:
    name: str
    count: int
    share: float = 0.5
    span: tuple[float, float] = (0.0, 1.0)


PLAIN = Document(content=Note, version=2, absent="make one", remedy="make it again")
SEALED = dataclasses.replace(PLAIN, sealed=True)


@pytest.mark.parametrize("kind", [PLAIN, SEALED], ids=["plain", "sealed"])
def test_what_is_written_is_read_again(kind: Document[Note], tmp_path: Path) -> None:
    note = Note("a", 3, span=(1.0, 2.5))
    path = kind.write(tmp_path / "note.json", note)
    assert kind.read(path) == note
    assert kind.read(kind.write(path, {"name": "b", "count": np.int64(4)})) == Note("b", 4)
    assert json.loads(path.read_text())["format"] == 2


def test_older_versions_are_read_and_newer_refused() -> None:
    assert PLAIN.parse('{"format": 1, "name": "a", "count": 1}', "x") == Note("a", 1)
    with pytest.raises(StoreError, match=r"^x: format 3 is newer than 2; update idness$"):
        PLAIN.parse('{"format": 3}', "x")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON: maximum recursion"),
        ("[]", "format must be a whole number"),
        ('{"format": "1"}', "format must be a whole number"),
        ('{"format": 1, "name": "a"}', "count: Field required"),
        ('{"format": 1, "name": "a", "count": "1"}', "count: Input should be a valid integer, got '1'"),
        ('{"format": 1, "name": "a", "count": 1, "share": 1e999}', "not JSON: Out of range float values"),
        ('{"format": 1, "name": "a", "count": 1, "span": [1]}', "span.1: Field required"),
    ],
)
def test_damage_is_one_line_that_names_the_field(text: str, why: str) -> None:
    with pytest.raises(StoreError) as caught:
        PLAIN.parse(text, "x")
    assert str(caught.value).startswith(f"x: is damaged ({why}")
    assert str(caught.value).endswith("); make it again")
    assert "\n" not in str(caught.value)


def test_a_change_breaks_the_seal() -> None:
    for text in (SEALED.text(Note("a", 3)).replace('"count": 3', '"count": 4'), PLAIN.text(Note("a", 3))):
        with pytest.raises(StoreError, match="its checksum does not match its content"):
            SEALED.parse(text, "x")


def test_nan_is_written_and_read_only_if_allowed() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        PLAIN.text(Note("a", 1, math.nan))
    loose = dataclasses.replace(PLAIN, finite=False)
    assert math.isnan(loose.parse(loose.text(Note("a", 1, math.nan)), "x").share)


def test_what_is_no_file_is_told_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("none.json", "pipe.json", "."):
        with pytest.raises(StoreError, match="contains no .*; make one"):
            PLAIN.read(tmp_path / name)


def test_tensors_come_back(tmp_path: Path) -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    given = {"a": shared, "tied": shared, "turned": shared.T, "array": np.ones(2, np.uint8), "half": shared.bfloat16()}
    content = packed(given)
    (tmp_path / "t.safetensors").write_bytes(content)
    tensors = PLAIN.tensors(tmp_path / "t.safetensors", sha256_of(content))
    assert tensors.keys() == given.keys()
    assert all(torch.equal(tensors[name], torch.as_tensor(value)) for name, value in given.items())
    with pytest.raises(StoreError, match="its sha256 does not match the saved one"):
        PLAIN.tensors(tmp_path / "t.safetensors", "0" * 64)
    (tmp_path / "t.safetensors").write_bytes(content[:-1])
    with pytest.raises(StoreError, match="is damaged"):
        PLAIN.tensors(tmp_path / "t.safetensors")


def test_equal_content_is_equal_bytes_whatever_the_order_of_its_texts(tmp_path: Path) -> None:
    texts = {f"text {number}": "ä" * number for number in range(9)}
    written = [packed({"a": torch.arange(3.0)}, dict(order)) for order in (texts.items(), reversed(texts.items()))]
    assert written[0] == written[1]
    (tmp_path / "t.safetensors").write_bytes(written[0])
    with safe_open(tmp_path / "t.safetensors", "pt") as file:  # as other programs read it
        assert file.metadata() == texts
        assert file.get_tensor("a").tolist() == [0, 1, 2]


def test_parts_hash_as_the_whole_and_keys_do_not() -> None:
    assert sha256_of([b"a", "b"]) == sha256_of(b"ab") == sha256_of(memoryview(b"ab"))
    assert key_of("a", "b") != key_of("ab") != key_of("b", "a")
