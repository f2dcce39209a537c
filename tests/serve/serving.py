"""A server in a thread, and clients for it."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
from colour_world import known, ood_picture
from PIL import Image

from idness.guard import Guard
from idness.serve.app import Server
from idness.serve.schemas import Limits
from idness.serve.service import Service


def png(picture: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return buffer.getvalue()


RED, ODD = png(known("red", 3)), png(ood_picture(2))
PNG = {"Content-Type": "image/png"}
HEAD = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"
PART = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n%s\r\n'


@dataclass
class Served:
    """The address of a running server, and a client for it."""

    host: str
    port: int
    client: httpx.Client
    server: Any

    def score(self, *files: bytes, **headers: str) -> httpx.Response:
        """Send one image as it is, or several as a form."""
        if len(files) < 2:
            return self.client.post("/v1/score", content=(files or (RED,))[0], headers=PNG | headers)
        return self.client.post("/v1/score", files=[("images", file) for file in files])

    def metric(self, name: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def raw(self, *parts: bytes, pause: float = 0.0) -> bytes:
        """Send bytes with pauses between them, and read until the server closes the connection."""
        with socket.create_connection((self.host, self.port), timeout=20) as link:
            with suppress(BrokenPipeError, ConnectionResetError):
                for part in parts:
                    link.sendall(part)
                    time.sleep(pause)
            answer = b""
            with suppress(ConnectionResetError):  # the server closed before it had read everything
                while piece := link.recv(65536):
                    answer += piece
            return answer


@contextmanager
def running(guard: Guard, limits: Limits | None = None, batch: int = 16, **options: Any) -> Iterator[Served]:
    server = Server(Service(guard, limits or Limits(), batch), **options)
    host, port = server.listener.getsockname()[:2]
    thread = threading.Thread(target=server.run, args=([server.listener],))
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
        server.listener.close()
        assert not thread.is_alive()


def until(true: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def error_of(answer: httpx.Response) -> str:
    """The one line of an error answer."""
    content = json.loads(answer.content)
    assert set(content) - {"results"} == {"error"}
    assert "\n" not in content["error"]
    return str(content["error"])
