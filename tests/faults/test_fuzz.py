"""Arbitrary bytes from strangers: refused in one line, or accepted. Inputs that once did harm are kept as seeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi")
from starlette.datastructures import Headers

from idness.activations import store
from idness.benchmark.protocol import Benchmark
from idness.core.errors import IdnessError
from idness.data import decode
from idness.detectors.registry import parse
from idness.guard import storage
from idness.serve.schemas import ApiError, Limits, read_uploads


def uploads(data: bytes, kind: str) -> None:
    asyncio.run(read_uploads(Headers({"content-type": kind}), data, Limits(body=200_000, images=8)))


TARGETS: dict[str, Callable[[bytes], object]] = {
    "image": lambda data: decode(data, max_pixels=250_000),
    "toml": lambda data: Benchmark.from_text(data.decode("utf-8", "replace"), "mine"),
    "method": lambda data: parse(data.decode("utf-8", "replace")),
    "guard": lambda data: storage._DOCUMENT.parse(data, "guard.json"),
    "manifest": lambda data: store._DOCUMENT.parse(data, "set.json"),
    "multipart": lambda data: uploads(data, "multipart/form-data; boundary=x"),
    "body": lambda data: uploads(data, "application/json"),
}
SEEDS = {
    name: [file.read_bytes() for file in sorted((Path(__file__).with_name("seeds") / name).iterdir())]
    for name in TARGETS
}


def check(name: str, data: bytes) -> None:
    """Send bytes to a target; any error but a refusal in one line fails the test."""
    try:
        TARGETS[name](data)
    except (IdnessError, ApiError) as error:
        assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.fault(
    "arbitrary bytes as image, benchmark TOML, method text, guard.json, store manifest, multipart and JSON body",
    does="refused in one line, or accepted (property-based test)",
)
@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=90, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_content_is_refused_in_one_line_or_accepted(name: str, data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([b"", *SEEDS[name]]) | st.binary(max_size=200))
    place = st.integers(0, max(len(whole), 1))
    for start, put, cut in data.draw(st.lists(st.tuples(place, st.binary(max_size=6), st.integers(0, 8)), max_size=4)):
        whole = whole[:start] + put + whole[start + cut :]
    check(name, whole)


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_is_refused_in_one_line_or_accepted(name: str) -> None:
    for seed in SEEDS[name]:
        check(name, seed)
