"""Guards that a stranger has written: the checksums are right, the content is not."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save
from torch import Tensor

from idness.core.errors import IdnessError
from idness.guard import Guard
from idness.networks.load import load_weights
from tests.guard.test_file import V1, forge

WRONG: dict[str, Any] = {
    "text": "x", "number": 7, "negative": -3, "huge": 10**30, "list": [], "nested": [[[{}]]], "none": None, "flag": True,
    "object": {"a": 1}, "path": "../../../etc/passwd", "code": "/tmp/x.py:make", "long": "x" * 100_000,
}  # fmt: skip


def fields(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a manifest."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [found for key, part in parts for found in fields(part, (*path, key))]


MANIFEST = json.loads((V1 / "guard.json").read_text())
FIELDS = [path for path in fields(MANIFEST) if path[0] not in ("checksum", "versions")]


@pytest.fixture(scope="module")
def network():
    import tiny_net

    return load_weights(tiny_net.make(), next(V1.glob("weights-*")))


def judged(folder: Path, network: Any) -> str:
    """Load a guard and use it, as score, serve and export do; what it says against it, in one line."""
    said = ""
    try:
        guard = Guard.load(folder, network)
        guard(torch.zeros(3, 3, 16, 16)).records()
        guard.promise()
    except IdnessError as error:
        said = str(error)
    assert "\n" not in said
    return said


def put(manifest: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    place: Any = manifest
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value


@pytest.mark.fault(
    "a forged guard with right checksums: any field of guard.json of another type, negative, huge, a path, absent",
    does="says in one line what is wrong, or decides as before where the field does not matter",
)
@pytest.mark.parametrize("path", FIELDS, ids=lambda path: ".".join(map(str, path)))
def test_every_field_of_another_kind_is_told(path: tuple[Any, ...], tmp_path: Path, network: Any) -> None:
    folder = tmp_path / "guard"
    shutil.copytree(V1, folder)
    honest = (folder / "guard.json").read_text()
    for value in WRONG.values():
        (folder / "guard.json").write_text(honest)
        forge(folder, lambda manifest, value=value: put(manifest, path, value))
        judged(folder, network)  # one line or none, and never anything else
    (folder / "guard.json").write_text(honest)

    def drop(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    forge(folder, drop)
    judged(folder, network)


NEEDED = [
    ("detector",), ("detector", "method"), ("recalls",), ("model",), ("model", "fingerprint"), ("model", "layer"),
    ("tensors",), ("tensors", "sha256"), ("format",),
]  # fmt: skip


@pytest.mark.parametrize("path", NEEDED, ids=".".join)
def test_what_matters_is_refused(path: tuple[str, ...], tmp_path: Path, network: Any) -> None:
    folder = tmp_path / "guard"
    shutil.copytree(V1, folder)
    honest = (folder / "guard.json").read_text()
    for value in WRONG.values():
        (folder / "guard.json").write_text(honest)
        forge(folder, lambda manifest, value=value: put(manifest, path, value))
        assert judged(folder, network), (path, value)


@pytest.mark.fault(
    "NaN, Infinity or deep nesting in guard.json, or a newer format", does="one line that names the field"
)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"format": 1, "recalls": [NaN]}', "recalls.0: must be a finite number"),
        ('{"format": 1, "recalls": [1e999]}', "recalls.0: must be a finite number"),
        ('{"format": 99}', "newer than"),
        ('{"format": 1, "a": ' + "[" * 100_000 + "]" * 100_000 + "}", "not JSON"),
        ("[1]", "no format"),
        ("", "not JSON"),
        ("\x00\x01", "not JSON"),
    ],
)
def test_odd_manifests_are_one_line(text: str, words: str, tmp_path: Path, network: Any) -> None:
    (tmp_path / "guard.json").write_text(text)
    assert words in judged(tmp_path, network)


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change a guard's tensors, and every hash with them."""
    manifest = json.loads((folder / "guard.json").read_text())
    file = folder / manifest["tensors"]["file"]
    tensors = load_file(file)
    change(tensors)
    content = save({name: value.contiguous() for name, value in tensors.items()})
    file.write_bytes(content)
    forge(folder, lambda found: found["tensors"].update(sha256=hashlib.sha256(content).hexdigest()))


TENSORS: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "no calibration": lambda t: t.pop("calibration.scores"),
    "no sizes": lambda t: t.pop("calibration.sizes"),
    "NaN scores": lambda t: t["calibration.scores"].fill_(float("nan")),
    "Inf scores": lambda t: t["calibration.scores"].fill_(float("inf")),
    "unsorted": lambda t: t.update({"calibration.scores": t["calibration.scores"].flip(0)}),
    "negative sizes": lambda t: t.update({"calibration.sizes": torch.tensor([-1, 201])}),
    "huge sizes": lambda t: t.update({"calibration.sizes": torch.tensor([2**62])}),
    "sizes of numbers": lambda t: t.update({"calibration.sizes": torch.tensor([200.0])}),
    "sizes of other classes": lambda t: t.update({"calibration.sizes": torch.tensor([100, 100])}),
    "two dimensions": lambda t: t.update({"calibration.scores": t["calibration.scores"][None]}),
    "few scores": lambda t: t.update(
        {"calibration.scores": t["calibration.scores"][:5].clone(), "calibration.sizes": torch.tensor([5])}
    ),
    "learned twice": lambda t: t.update({"detector.evil": torch.zeros(2)}),
    "learned NaN": lambda t: t.update({name: t[name] * float("nan") for name in t if name.startswith("detector.")}),
    "learned wrong": lambda t: t.update({name: torch.zeros(7, 7, 7) for name in t if name.startswith("detector.")}),
    "learned nothing": lambda t: [t.pop(name) for name in list(t) if name.startswith("detector.")],
    "half a gallery": lambda t: t.update({"gallery.bytes": torch.zeros(4, dtype=torch.uint8)}),
    "gallery of another width": lambda t: t.update(
        {
            "gallery.bytes": torch.zeros(4, dtype=torch.uint8), "gallery.lengths": torch.tensor([4]),
            "gallery.features": torch.zeros(1, 99), "gallery.labels": torch.tensor([0]), "gallery.scores": torch.zeros(1),
        }
    ),
    "gallery of other classes": lambda t: t.update(
        {
            "gallery.bytes": torch.zeros(4, dtype=torch.uint8), "gallery.lengths": torch.tensor([4]),
            "gallery.features": torch.zeros(1, 32), "gallery.labels": torch.tensor([99]), "gallery.scores": torch.zeros(1),
        }
    ),
}  # fmt: skip


@pytest.mark.fault("forged tensors in a guard, with right hashes", does="says in one line what does not fit")
@pytest.mark.parametrize("name", TENSORS)
def test_forged_tensors_are_told(name: str, tmp_path: Path, network: Any) -> None:
    folder = tmp_path / "guard"
    shutil.copytree(V1, folder)
    change_tensors(folder, TENSORS[name])
    assert judged(folder, network)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(FIELDS), value=VALUES)
def test_whatever_stands_in_a_field_is_one_line(
    path: tuple[Any, ...], value: Any, tmp_path: Path, network: Any
) -> None:
    folder = tmp_path / "guard"
    shutil.copytree(V1, folder, dirs_exist_ok=True)
    forge(folder, lambda manifest: put(manifest, path, value))
    judged(folder, network)
