"""The server as a process of its own: what happens when it is told to stop."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from colour_world import known

from idness.guard import Guard
from tests.serve.serving import RED, png

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
# A slow network, so that many requests are under way when the signal comes.
CODE = """
import sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[2]]
import tiny_net
forward = tiny_net.Tiny.forward
tiny_net.Tiny.forward = lambda self, images: (time.sleep(0.15), forward(self, images))[1]
from idness.guard import Guard
from idness.networks.load import load_weights
from idness.serve import serve
folder = Path(sys.argv[1])
guard = Guard.load(folder, load_weights(tiny_net.make(), next(folder.glob("weights-*"))))
serve(guard, port=0, batch=4, started=lambda address: print(address, flush=True))
print("ended", flush=True)
"""


@pytest.fixture
def process(guard: Guard, tmp_path: Path):
    folder = guard.save(tmp_path / "guard", bundle=True)
    started = subprocess.Popen(
        [sys.executable, "-c", CODE, str(folder), str(SAMPLES)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert started.stdout is not None
    address = started.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
    yield started, address
    if started.poll() is None:
        started.kill()
    started.wait()
    started.stdout.close()


def request(body: bytes) -> bytes:
    kind = b"Content-Type: image/png\r\nConnection: close"
    return b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n%s\r\nContent-Length: %d\r\n\r\n" % (kind, len(body)) + body


def read_all(link: socket.socket) -> bytes:
    answer = b""
    while piece := link.recv(65536):
        answer += piece
    return answer


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_loses_no_accepted_request_and_leaves_nothing_behind(process, number: signal.Signals) -> None:
    started, address = process
    host, port = address.removeprefix("http://").split(":")
    with ExitStack() as stack:
        links = [stack.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in range(24)]
        for seed, link in enumerate(links):
            link.sendall(request(png(known("red", seed))))
        # At once: some requests are in the queue, some still in the system's buffers. Six batches take about a second.
        started.send_signal(number)
        answers = [read_all(link) for link in links]
    assert all(answer.startswith(b"HTTP/1.1 200") and b'"is_ood"' in answer for answer in answers)
    assert started.wait(20) == 0
    assert started.stdout.read().strip().endswith("ended")
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)


def test_a_half_sent_request_is_still_served_after_the_signal(process) -> None:
    started, address = process
    host, port = address.removeprefix("http://").split(":")
    whole = request(RED)
    with socket.create_connection((host, int(port)), timeout=20) as link:
        link.sendall(whole[:200])
        time.sleep(0.3)
        started.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        link.sendall(whole[200:])
        assert link.recv(65536).startswith(b"HTTP/1.1 200")
    assert started.wait(20) == 0


def test_a_stalled_client_does_not_keep_the_server_from_stopping(process) -> None:
    started, address = process
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20), httpx.Client() as client:
        assert client.get(f"{address}/healthz").status_code == 200  # and this one stays open, idle
        started.send_signal(signal.SIGTERM)
        assert started.wait(10) == 0


class Flood(threading.Thread):
    """Asks again and again, each time on a new connection, until the door is closed."""

    def __init__(self, host: str, port: str, seed: int) -> None:
        super().__init__()
        self.place, self.whole = (host, int(port)), request(png(known("red", seed)))
        self.answered = self.refused = 0
        self.lost: list[str] = []

    def run(self) -> None:
        while not self.refused:
            try:
                link = socket.create_connection(self.place, timeout=30)
            except ConnectionRefusedError:
                self.refused += 1
                return
            try:
                with link:
                    link.sendall(self.whole)
                    answer = read_all(link)
            except OSError as error:
                self.lost.append(repr(error))
                continue
            if re.match(rb"HTTP/1.1 (200|503) ", answer):
                self.answered += 1
            else:
                self.lost.append(repr(answer[:40]))


@pytest.mark.fault(
    "SIGTERM in the middle of a flood of requests that does not end",
    does="every request whose connection was made is answered, later ones are refused at the door; no orphan",
)
def test_a_stop_in_a_flood_answers_every_connection_that_was_made(process) -> None:
    started, address = process
    clients = [Flood(*address.removeprefix("http://").split(":"), seed) for seed in range(32)]
    for client in clients:
        client.start()
    time.sleep(1.0)
    started.send_signal(signal.SIGTERM)
    for client in clients:
        client.join(60)
    assert [line for client in clients for line in client.lost] == []
    assert all(client.refused for client in clients)
    assert sum(client.answered for client in clients) > 32
    assert started.wait(20) == 0
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)
