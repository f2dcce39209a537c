"""A server in a thread, and a client that can be as rude as it likes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx

from idness.guard import Guard
from idness.serve.limits import Limits
from idness.serve.server import make_server


@dataclass
class Served:
    """The address of a running server, and a client for it."""

    host: str
    port: int
    client: httpx.Client
    server: Any

    def raw(self, *parts: bytes, pause: float = 0.0, wait: float = 10.0) -> bytes:
        """Send bytes as they are, with pauses between, and read until the server closes."""
        with socket.create_connection((self.host, self.port), timeout=wait) as link:
            with suppress(BrokenPipeError, ConnectionResetError):
                for part in parts:
                    link.sendall(part)
                    time.sleep(pause)
            answer = b""
            # Reset when the server has closed with some of what was sent unread.
            with suppress(ConnectionResetError):
                while piece := link.recv(65536):
                    answer += piece
            return answer


@contextmanager
def running(guard: Guard, limits: Limits | None = None, **options: Any) -> Iterator[Served]:
    server, listener = make_server(guard, limits=limits, **options)
    host, port = listener.getsockname()[:2]
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    headers = {"X-API-Key": options["key"]} if options.get("key") else {}
    client = httpx.Client(base_url=f"http://{host}:{port}", headers=headers, timeout=30)
    try:
        until(lambda: server.started and client.get("/readyz").status_code == 200)
        yield Served(host, port, client, server)
    finally:
        client.close()
        server.should_exit = True
        thread.join(60)
        listener.close()
        assert not thread.is_alive()


def until(true: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def error_of(answer: httpx.Response) -> str:
    """The one line of an error answer."""
    told = json.loads(answer.content)
    assert set(told) - {"results"} == {"error"}
    assert "\n" not in told["error"]
    return str(told["error"])
