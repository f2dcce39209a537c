"""What strangers may send, as functions of bytes: each may say no in one line, and do nothing else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers

from idness.activations import store
from idness.benchmark.protocol import Benchmark
from idness.core.errors import IdnessError
from idness.data import decode
from idness.detectors.registry import parse
from idness.guard import file as guard_file
from idness.serve.schemas import ApiError, Limits, read_uploads

SEEDS = Path(__file__).with_name("seeds")
LIMITS = Limits(body=200_000, images=8)


def image(data: bytes) -> None:
    decode(data, max_pixels=250_000)


def toml(data: bytes) -> None:
    Benchmark.from_text(data.decode("utf-8", "replace"), "mine")


def method(data: bytes) -> None:
    parse(data.decode("utf-8", "replace"))


def guard(data: bytes) -> None:
    guard_file._DOCUMENT.parse(data, "guard.json")


def manifest(data: bytes) -> None:
    store._DOCUMENT.parse(data, "set.json")


def _uploads(data: bytes, kind: str) -> None:
    asyncio.run(read_uploads(Headers({"content-type": kind}), data, LIMITS))


def multipart(data: bytes) -> None:
    _uploads(data, "multipart/form-data; boundary=x")


def body(data: bytes) -> None:
    _uploads(data, "application/json")


TARGETS: dict[str, Callable[[bytes], None]] = {
    "image": image, "toml": toml, "method": method, "guard": guard, "manifest": manifest, "multipart": multipart, "body": body,
}  # fmt: skip


def check(name: str, data: bytes) -> None:
    """Send bytes to a target; anything but a refusal in one line goes through."""
    said = ""
    try:
        TARGETS[name](data)
    except (IdnessError, ApiError) as error:
        said = str(error)
    if "\n" in said:
        raise AssertionError(f"{name}: more than one line: {said!r}")


def main() -> None:
    """Let atheris look for bytes that do harm, guided by what the code does with them."""
    import atheris

    name = sys.argv.pop(1)
    wanted = {
        "image": "idness.data.decoding", "toml": "idness.benchmark.protocol", "method": "idness.core.method_text",
        "guard": "idness.core.documents", "manifest": "idness.core.documents", "multipart": "idness.serve.schemas",
        "body": "idness.serve.schemas",
    }[name]  # fmt: skip
    for function in vars(sys.modules[wanted]).copy().values():
        if callable(function) and getattr(function, "__module__", "") == wanted and hasattr(function, "__code__"):
            atheris.instrument_func(function)
    atheris.Setup(sys.argv, lambda data: check(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
