"""The server as a separate process, and how it stops."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from colour_world import known

from idness.guard import Guard
from tests.serve.serving import RED, png

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
from idness.serve import serve
folder = Path(sys.argv[1])
guard = Guard.load(folder, load_weights(tiny_net.make(), next(folder.glob("weights-*"))))
serve(guard, port=0, batch=4, started=lambda address: print(address, flush=True))
print("ended", flush=True)
"""


@pytest.mark.fault(
    "SIGTERM or SIGINT while requests are in progress",
    does="every request whose connection was accepted is answered; no process is left",
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_loses_no_accepted_request_and_leaves_nothing_behind(
    guard: Guard, number: signal.Signals, tmp_path: Path
) -> None:
    """The network waits before every batch, so that many requests are in progress when the signal arrives."""
    words = [sys.executable, "-c", CODE, str(guard.save(tmp_path / "guard", bundle=True)), str(SAMPLES), "0.15"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment
    ) as started, ExitStack() as stack:  # fmt: skip
        stack.callback(started.kill)
        assert started.stdout is not None
        address = started.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
        place = "127.0.0.1", int(address.rpartition(":")[2])
        in_transit, _ = (stack.enter_context(socket.create_connection(place, timeout=60)) for _ in range(2))
        in_transit.sendall(request(RED)[:200])  # the other stays idle, and does not delay the stop
        time.sleep(0.3)
        sent = [stack.enter_context(socket.create_connection(place, timeout=60)) for _ in range(24)]
        for seed, link in enumerate(sent):
            link.sendall(request(png(known("red", seed))))
        # Some requests are in the queue, some still in socket buffers. Six batches take about a second.
        started.send_signal(number)
        time.sleep(0.3)
        in_transit.sendall(request(RED)[200:])
        for link in (*sent, in_transit):
            answer = b"".join(iter(lambda link=link: link.recv(65536), b""))
            assert answer.startswith(b"HTTP/1.1 200")
            assert b'"is_ood"' in answer
        assert started.wait(20) == 0
        assert started.stdout.read().strip().endswith("ended")
        with pytest.raises(ProcessLookupError):
            os.killpg(started.pid, 0)


def request(body: bytes) -> bytes:
    kind = b"Content-Type: image/png\r\nConnection: close"
    return b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n%s\r\nContent-Length: %d\r\n\r\n" % (kind, len(body)) + body
