"""Finds what an ONNX file takes from other files, before anything opens it: a stranger's may name any file of this machine.

ONNX is protobuf. The few messages that can hold a tensor are walked here, as the library that knows them all takes longer to
import than the images of a short list take to judge; https://protobuf.dev/programming-guides/encoding says how they are written.
"""

from __future__ import annotations

from collections.abc import Iterator

# The fields of each message that lead to tensors, by number, as onnx.proto has them.
WAYS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
KEY, VALUE = 1, 2
VARINT, EIGHT, LENGTH, FOUR = 0, 1, 2, 5
"""How protobuf writes a field: a number, eight bytes, so many bytes, four bytes."""


def external_files(model: bytes) -> list[str]:
    """Name the files that the tensors of a model lie in; what is no protobuf is a ValueError."""
    found: list[str] = []
    left = [("model", memoryview(model))]
    while left:
        kind, message = left.pop()
        ways = WAYS[kind]
        for number, content in _fields(message):
            way = ways.get(number)
            if way == "entry":
                found += _location(content)
            elif way is not None:
                left.append((way, content))
    return found


def _location(entry: memoryview) -> list[str]:
    """Give what an entry of a tensor's external data says of where it lies."""
    texts = {number: bytes(content).decode("utf-8", "replace") for number, content in _fields(entry)}
    return [texts.get(VALUE, "")] if texts.get(KEY) == "location" else []


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Give number and content of each field that holds bytes; others are passed over."""
    place, end = 0, len(message)
    while place < end:
        tag, place = _varint(message, place)
        wire = tag & 7
        if wire == VARINT:
            _, place = _varint(message, place)
        elif wire == LENGTH:
            size, place = _varint(message, place)
            if size > end - place:
                raise ValueError("a field goes beyond the end of its message")
            yield tag >> 3, message[place : place + size]
            place += size
        elif wire in (EIGHT, FOUR):
            place += 8 if wire == EIGHT else 4
        else:
            raise ValueError(f"there is no wire type {wire}")


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """Read a number that is written in groups of seven bits, and say where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise ValueError("a number goes beyond the end of its message")
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError("a number has more than ten bytes")
