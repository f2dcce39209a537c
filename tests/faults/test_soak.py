"""The service for a long time: 20,000 requests, good and bad ones, from several clients."""

from __future__ import annotations

import base64
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from idness.guard import Guard
from tests.serve.serving import HEAD, ODD, PART, RED, chunked
from tests.serve.test_serve import HOSTILE
from tests.serve.test_serve_process import SAMPLES

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


class Client(threading.Thread):
    """Sends requests one after the other, and counts what comes back and what does not."""

    def __init__(self, address: str, numbers: Any, seed: int) -> None:
        super().__init__()
        self.host, port = address.removeprefix("http://").split(":")
        self.port, self.numbers, self.random = int(port), numbers, random.Random(seed)
        self.answers: Counter[int] = Counter()
        self.lost: list[str] = []

    def run(self) -> None:
        link = http.client.HTTPConnection(self.host, self.port, timeout=120)
        for number in self.numbers:
            if number % 97 == 0:
                self.rude()
                continue
            method, path, body, headers, allowed = self.random.choice(KINDS)
            try:
                link.request(method, path, body, headers)
                answer = link.getresponse()
                answer.read()
            except OSError as error:
                self.lost.append(f"{method} {path}: {error!r}")
                link.close()
                continue
            if answer.status not in allowed:
                self.lost.append(f"{method} {path}: {answer.status}")
            self.answers[answer.status] += 1
        link.close()

    def rude(self) -> None:
        """Send half a request, chunks that are none, or nonsense, and go away."""
        with socket.create_connection((self.host, self.port), timeout=60) as link:
            link.sendall(
                self.random.choice([HEAD % 1000 + b"half", chunked(RED)[:-20], b"\x16\x03\x01nonsense\r\n\r\n"])
            )
        self.answers[0] += 1


def send(address: str, first: int, last: int) -> list[Client]:
    """Let all clients send these requests, each its share."""
    clients = [Client(address, range(first + seed, last + 1, CLIENTS), first + seed) for seed in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return clients


CODE = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[2]]
import tiny_net
from idness.guard import Guard
from idness.networks.load import load_weights
from idness.serve import serve
folder = Path(sys.argv[1])
guard = Guard.load(folder, load_weights(tiny_net.make(), next(folder.glob("weights-*"))))
serve(guard, port=0, started=lambda address: print(address, flush=True))
"""


@pytest.fixture
def process(guard: Guard, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    folder = guard.save(tmp_path / "guard", bundle=True)
    started = subprocess.Popen(
        [sys.executable, "-c", CODE, str(folder), str(SAMPLES)], stdout=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert started.stdout is not None
    yield started, started.stdout.readline().strip()
    started.terminate()
    assert started.wait(60) == 0
    started.stdout.close()


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.fault(
    "20,000 good, bad and rude requests",
    does="loses none; memory stays within 5 % of that after the first 1,000",
)
def test_a_long_time_loses_nothing_and_leaks_nothing(process: Any, record_property: Any) -> None:
    started, address = process
    first = send(address, 1, SETTLED)
    settled = memory(started.pid)
    rest = send(address, SETTLED + 1, REQUESTS)
    ended = memory(started.pid)
    lost = [line for client in first + rest for line in client.lost]
    answers = sum((client.answers for client in first + rest), Counter())
    assert lost == []
    assert sum(answers.values()) == REQUESTS
    record_property("soak: requests sent; lost", f"{sum(answers.values()):,}; {len(lost)}")
    record_property("soak: answers by status (0: clients that went away)", str(dict(sorted(answers.items()))))
    record_property("soak: memory after 1,000 requests; after all", f"{settled / 1e6:.0f} MB; {ended / 1e6:.0f} MB")
    assert ended <= 1.05 * settled
