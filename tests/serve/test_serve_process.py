"""The server as a separate process, and how it stops."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from colour_world import known

from idness.guard import Guard
from tests.serve.serving import png

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
CODE = """
import sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[2]]
import tiny_net
forward, seconds = tiny_net.Tiny.forward, float(sys.argv[3])
tiny_net.Tiny.forward = lambda self, images: (time.sleep(seconds), forward(self, images))[1]
from idness.guard import Guard
from idness.networks.load import load_weights
from idness.serve import app, serve
app.LAST_CALL = 1.0  # on a busy machine, too
folder = Path(sys.argv[1])
guard = Guard.load(folder, load_weights(tiny_net.make(), next(folder.glob("weights-*"))))
serve(guard, port=0, batch=4, started=lambda address: print(address, flush=True))
print("ended", flush=True)
"""


@contextmanager
def server_process(guard: Guard, folder: Path, seconds: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve a guard in a process whose network waits before every batch; yield the process and its address."""
    started = subprocess.Popen(
        [sys.executable, "-c", CODE, str(guard.save(folder, bundle=True)), str(SAMPLES), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert started.stdout is not None
    with started.stdout:
        address = started.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
        yield started, address
        if started.poll() is None:
            started.kill()
        started.wait()


@pytest.fixture
def process(guard: Guard, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A slow server, so that many requests are in progress when a signal arrives."""
    with server_process(guard, tmp_path / "guard", 0.15) as found:
        yield found


def request(body: bytes) -> bytes:
    kind = b"Content-Type: image/png\r\nConnection: close"
    return b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n%s\r\nContent-Length: %d\r\n\r\n" % (kind, len(body)) + body


def read_all(link: socket.socket) -> bytes:
    answer = b""
    while piece := link.recv(65536):
        answer += piece
    return answer


@pytest.mark.fault(
    "SIGTERM or SIGINT while requests are in progress",
    does="every request whose connection was accepted is answered; no process is left",
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_loses_no_accepted_request_and_leaves_nothing_behind(process, number: signal.Signals) -> None:
    started, address = process
    host, port = address.removeprefix("http://").split(":")
    with ExitStack() as stack:
        links = [stack.enter_context(socket.create_connection((host, int(port)), timeout=60)) for _ in range(24)]
        bodies = [request(png(known("red", seed))) for seed in range(24)]
        for link, body in zip(links[:20], bodies, strict=False):
            link.sendall(body)
        # Some requests are in the queue, some still in socket buffers. Six batches take about a second.
        started.send_signal(number)
        time.sleep(0.3)  # until the stop has begun
        for link, body in zip(links[20:], bodies[20:], strict=True):
            link.sendall(body)
        answers = [read_all(link) for link in links]
    assert all(answer.startswith(b"HTTP/1.1 200") and b'"is_ood"' in answer for answer in answers)
    assert started.wait(20) == 0
    assert started.stdout.read().strip().endswith("ended")
    with pytest.raises(ProcessLookupError):
        os.killpg(started.pid, 0)


def test_an_idle_client_does_not_delay_the_stop(process) -> None:
    started, address = process
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20), httpx.Client() as client:
        assert client.get(f"{address}/healthz").status_code == 200  # and this one stays open, idle
        started.send_signal(signal.SIGTERM)
        assert started.wait(10) == 0
