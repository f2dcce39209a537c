"""The service for a long time: 20,000 requests, good and bad ones, from several clients."""

from __future__ import annotations

import base64
import http.client
import json
import random
import re
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from idness.guard import Guard
from tests.serve.serving import HEAD, ODD, PART, RED
from tests.serve.test_serve import HOSTILE
from tests.serve.test_serve_process import server_process

REQUESTS, CLIENTS, SETTLED = 20_000, 4, 1_000
GOOD = {"Content-Type": "image/png"}
JSON = {"Content-Type": "application/json"}
IMAGE = json.dumps({"image": base64.b64encode(RED).decode()}).encode()
FORM = {"Content-Type": "multipart/form-data; boundary=x"}
KINDS: list[tuple[str, str, bytes | None, dict[str, str], set[int]]] = [
    ("POST", "/v1/score", RED, GOOD, {200}),
    ("POST", "/v1/score", ODD, GOOD, {200}),
    ("POST", "/v1/score?neighbours=3&picture=true", RED, GOOD, {200}),
    ("POST", "/v1/score", IMAGE, JSON, {200}),
    ("POST", "/v1/score", PART % RED + PART % ODD + b"--x--\r\n", FORM, {200}),
    ("POST", "/v1/score", PART % RED + PART % b"junk" + b"--x--\r\n", FORM, {200}),
    ("GET", "/v1/guard", None, {}, {200}),
    ("GET", "/metrics", None, {}, {200}),
    ("GET", "/healthz", None, {}, {200}),
    ("GET", "/v1/calibration/999", None, {}, {404}),
    ("GET", "/../../etc/passwd", None, {}, {404}),
    ("GET", "/v1/guard", None, {"Host": "evil.example"}, {421}),
    ("POST", "/v1/score", b"[" * 5_000, JSON, {400, 422}),
    ("POST", "/v1/score", b"--x\r\nbroken", FORM, {400, 422}),
    ("POST", "/v1/score", b"x", {"Content-Type": "text/plain"}, {415}),
    ("POST", "/v1/score?neighbours=-1", RED, GOOD, {422}),
    *(("POST", "/v1/score", content, GOOD, {422}) for name, (content, _) in HOSTILE.items() if name != "large"),
]


def memory(pid: int) -> int:
    """Resident memory in bytes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def send(address: str, numbers: Iterable[int], seed: int) -> list[str]:
    """Send requests one after the other, and return those that were lost or answered wrongly."""
    host, port = address.removeprefix("http://").split(":")
    link, choices, lost = http.client.HTTPConnection(host, int(port), timeout=120), random.Random(seed), []
    for number in numbers:
        if number % 97 == 0:  # half a request, or nonsense; then the client leaves
            with socket.create_connection((host, int(port)), timeout=60) as rude:
                rude.sendall(choices.choice([HEAD % 1000 + b"half", b"\x16\x03\x01nonsense\r\n\r\n"]))
            continue
        method, path, body, headers, allowed = choices.choice(KINDS)
        try:
            link.request(method, path, body, headers)
            answer = link.getresponse()
            answer.read()
        except OSError as error:
            lost.append(f"{method} {path}: {error!r}")
            link.close()
            continue
        if answer.status not in allowed:
            lost.append(f"{method} {path}: {answer.status}")
    link.close()
    return lost


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.fault(
    "20,000 valid, invalid and aborted requests",
    does="loses none; memory stays within 5 % of that after the first 1,000",
)
def test_a_long_time_loses_nothing_and_leaks_nothing(guard: Guard, tmp_path: Path) -> None:
    with server_process(guard, tmp_path / "guard", 0.0) as (started, address), ThreadPoolExecutor(CLIENTS) as pool:

        def lost(first: int, last: int) -> list[str]:
            shares = [range(first + seed, last + 1, CLIENTS) for seed in range(CLIENTS)]
            found = pool.map(partial(send, address), shares, range(first, first + CLIENTS))
            return [line for each in found for line in each]

        assert lost(1, SETTLED) == []
        settled = memory(started.pid)
        assert lost(SETTLED + 1, REQUESTS) == []
        assert memory(started.pid) <= 1.05 * settled
