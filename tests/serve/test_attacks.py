"""The service under attack: names that lead to it, tokens, slow and huge requests, networks that fail."""

from __future__ import annotations

import io
import json
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from idness.core.errors import ModelError, OptionError
from idness.guard import Guard

pytest.importorskip("fastapi")
from idness.serve import serve
from idness.serve.limits import Limits
from tests.cli.running import idness
from tests.serve.serving import Served, error_of, running
from tests.serve.test_serve import RED

HEAD = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def one(trained: nn.Module) -> Guard:
    from colour_world import HOW, known_tensors
    from tiny_net import Tiny

    guard = Guard(trained, "scale", preprocessing=HOW, class_names=Tiny.class_names)
    return guard.calibrate([known_tensors(100)[0]])


def score(served: Served) -> httpx.Response:
    return served.client.post("/v1/score", content=RED, headers={"Content-Type": "image/png"})


@pytest.mark.fault(
    "a stranger's page calls the service by a name that leads to it (DNS rebinding)",
    does="answers 421 to names that it was not given; addresses and localhost pass",
)
def test_only_its_own_names_are_answered(one: Guard) -> None:
    with running(one, batch=1, hosts=["Guard.example"]) as served:
        for host, status in (
            ("evil.example", 421), ("evil.example:80", 421), ("127.0.0.1.evil.example", 421), ("localhost.evil.example", 421),
            ("localhost", 200), ("LOCALHOST:8000", 200), ("127.0.0.1:1", 200), ("[::1]:8000", 200), ("guard.example.", 200),
        ):  # fmt: skip
            for path in ("/v1/guard", "/", "/healthz"):
                answer = served.client.get(path, headers={"Host": host})
                assert answer.status_code == status, host
        refused = served.client.get("/v1/calibration/0", headers={"Host": "evil.example"})
        assert "--allow-host" in error_of(refused)
    with running(one, batch=1, key="a-long-enough-token") as served:  # the token says enough
        assert served.client.get("/v1/guard", headers={"Host": "evil.example"}).status_code == 200


@pytest.mark.fault(
    "a stranger's page sends images to the service through its visitor's browser (a cross-site form)",
    does="answers 403 to other origins, unless a token is needed anyway; no image is judged",
)
def test_other_origins_are_refused(one: Guard) -> None:
    with running(one, batch=1, hosts=["guard.example"]) as served:
        own = f"{served.host}:{served.port}"
        for headers, status in (
            ({"Origin": "https://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Origin": "http://localhost:3000"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Sec-Fetch-Site": "same-site", "Origin": f"http://{own}"}, 403),
            ({}, 200), ({"Origin": f"http://{own}"}, 200), ({"Sec-Fetch-Site": "same-origin"}, 200), ({"Sec-Fetch-Site": "none"}, 200),
            ({"Origin": "https://guard.example"}, 200),
        ):  # fmt: skip
            answer = served.client.post("/v1/score", content=RED, headers={"Content-Type": "image/png", **headers})
            assert answer.status_code == status, headers
        assert served.client.get("/healthz", headers={"Origin": "https://evil.example"}).status_code == 200
        assert "idness_images_total 5.0" in served.client.get("/metrics").text
    with running(one, batch=1, key="a-long-enough-token") as served:  # who has the token is no stranger
        assert (
            served.client.post(
                "/v1/score", content=RED, headers={"Content-Type": "image/png", "Origin": "null"}
            ).status_code
            == 200
        )


@pytest.mark.fault(
    "the service is bound to an address that others reach, without a token",
    does="refuses, unless --no-token says that anybody may ask",
)
def test_an_address_that_others_reach_needs_a_token(
    one: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match=r"0\.0\.0\.0 can be reached by others.*give key=, or no_token=True"):
        serve(one, host="0.0.0.0", port=0)
    folder, token = one.save(tmp_path / "guard", bundle=True), tmp_path / "token"
    model = Path(__file__).resolve().parents[1] / "samples" / "tiny_net.py"
    words = (
        "serve",
        folder,
        "--model",
        f"{model}:make",
        "--weights",
        next(folder.glob("weights-*")),
        "--host",
        "0.0.0.0",
    )
    refused = idness(*words)
    assert refused.returncode == 2
    assert "give --token-file, or --no-token if anybody may ask" in refused.stderr
    for content, line in (("short", "at least 16 ASCII characters"), ("two\nlines of a token", "one line"), ("", "16")):
        token.write_text(content)
        refused = idness(*words, "--token-file", token)
        assert refused.returncode == 2
        assert line in refused.stderr
    assert "cannot be read" in idness(*words, "--token-file", tmp_path / "none").stderr
    monkeypatch.setenv("IDNESS_API_KEY", "x")
    assert "IDNESS_API_KEY must hold one line of at least 16" in idness(*words).stderr
    with pytest.raises(OptionError, match="at least 16"):
        serve(one, key="x")


@pytest.mark.fault("as many slow bodies as there are places", does="lets the slowest go, so that others are served")
def test_slow_bodies_starve_nobody(one: Guard) -> None:
    with running(one, Limits(requests=8, body_seconds=60), batch=1) as served, ExitStack() as stack:
        links = [stack.enter_context(socket.create_connection((served.host, served.port))) for _ in range(12)]
        for link in links:
            link.sendall(HEAD % 1000 + b"x")
        time.sleep(0.3)
        started = time.monotonic()
        answers = [score(served).status_code for _ in range(4)]
        assert answers == [200] * 4
        assert time.monotonic() - started < 5
        links[0].settimeout(5)
        assert links[0].recv(4096).startswith(b"HTTP/1.1 408")  # and is told why


@pytest.mark.fault("more bytes of bodies at once than the service may hold", does="answers 503 with Retry-After")
def test_bodies_together_are_bounded(one: Guard) -> None:
    with running(one, Limits(held=50_000), batch=1) as served, ExitStack() as stack:
        links = [stack.enter_context(socket.create_connection((served.host, served.port))) for _ in range(4)]
        for link in links:
            link.sendall(HEAD % 90_000 + bytes(14_000))
            time.sleep(0.05)
        links[-1].settimeout(10)
        answer = links[-1].recv(4096).lower()
        assert answer.startswith(b"http/1.1 503")
        assert b"retry-after: 1" in answer
        for link in links:
            link.close()
        assert score(served).status_code == 200


def blank(side: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.fault(
    "many small files that unpack to more pixels than a request may have",
    does="refuses the request before any is unpacked; health checks and small requests are answered meanwhile",
)
def test_pixels_are_bounded_for_the_request_as_a_whole(one: Guard) -> None:
    large = blank(5_000)
    with running(one, batch=1) as served:
        started = time.process_time()
        answer = served.client.post("/v1/score", files=[("images", large)] * 64)
        assert answer.status_code == 413
        assert "200,000,000 pixels together, got 1,600,000,000" in error_of(answer)
        assert time.process_time() - started < 2.5
        assert score(served).status_code == 200


@pytest.mark.fault("a request of large images", does="leaves a decoder to small ones")
def test_a_large_request_does_not_hold_up_a_small_one(one: Guard) -> None:
    from concurrent.futures import ThreadPoolExecutor

    large = blank(3_000)
    with running(one, batch=1) as served, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(served.client.post, "/v1/score", files=[("images", large)] * 16)
        time.sleep(0.2)
        assert score(served).status_code == 200
        assert not waiting.done()
        assert served.client.get("/healthz").status_code == 200
        assert waiting.result().status_code == 200


@pytest.mark.fault("the service fails on a request", does="answers 500 in one line and keeps the connection")
def test_the_connection_survives_an_error_of_the_service(one: Guard) -> None:
    with running(one, batch=1) as served:
        handle = one.model.register_forward_pre_hook(lambda *_: 1 / 0)
        try:
            answers = [score(served) for _ in range(3)]
        finally:
            handle.remove()
        assert [answer.status_code for answer in answers] == [500] * 3
        assert "connection" not in answers[0].headers
        assert score(served).status_code == 200


class Failing(nn.Module):
    """Works until it is served."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.broken = model, False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.broken:
            raise RuntimeError("no memory\nleft on this device")
        out: torch.Tensor = self.model(images)
        return out


@pytest.mark.fault("the network fails when it is warmed up", does="the process ends with one line and exit code 2")
def test_a_network_that_cannot_be_warmed_up_ends_the_server(trained: nn.Module) -> None:
    from colour_world import HOW, known_tensors

    model = Failing(trained)
    guard = Guard(model, "msp", preprocessing=HOW).calibrate([known_tensors(40)[0]])
    model.broken = True
    with pytest.raises(ModelError, match="fails on its first image.*no memory"):
        serve(guard, port=0)


@pytest.mark.fault("several requests sent at once on one connection (pipelining)", does="answers each, in order")
def test_pipelined_requests_are_answered_in_order(served_once: Served) -> None:
    whole = HEAD % len(RED) + RED
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = served_once.raw(whole + whole + b"GET /v1/guard HTTP/1.1\r\nHost: localhost\r\n\r\n" + last)
    parts = answer.split(b"HTTP/1.1 ")[1:]
    assert [part[:3] for part in parts] == [b"200"] * 4
    assert b"is_ood" in parts[0]
    assert b"promise" in parts[2]
    assert b'"ok"' in parts[3]


@pytest.fixture(scope="module")
def served_once(one: Guard):
    with running(one, Limits(body=100_000), batch=1) as found:
        yield found


def chunked(*parts: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    head = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nConnection: close\r\n"
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + body


@pytest.mark.fault("chunked bodies: whole, endless, broken", does="judges the first, refuses the others")
def test_chunked_bodies(served_once: Served) -> None:
    assert served_once.raw(chunked(RED[:100], RED[100:], b"")).startswith(b"HTTP/1.1 200")
    assert served_once.raw(chunked(*[bytes(30_000)] * 6, b"")).startswith(b"HTTP/1.1 413")
    broken = chunked(RED).replace(b"\r\n\r\n", b"\r\n\r\nzz\r\n", 1)
    assert served_once.raw(broken).startswith(b"HTTP/1.1 400")
    # Two lengths that contradict each other are how one request is smuggled behind another.
    both = chunked(RED, b"").replace(b"Connection: close", b"Connection: close\r\nContent-Length: 4")
    assert not served_once.raw(both).startswith(b"HTTP/1.1 5")
    assert score(served_once).status_code == 200


@pytest.mark.fault("JSON nested a hundred thousand deep", does="answers 400 in one line")
@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"images":' * 50_000, b'{"images": [' + b"[" * 90_000])
def test_deep_json_is_refused(served_once: Served, text: bytes) -> None:
    answer = served_once.client.post("/v1/score", content=text[:99_000], headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    error_of(answer)


@pytest.mark.fault("the service's port is taken", does="one line and exit code 2")
def test_a_port_that_is_taken_is_told(one: Guard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OptionError, match="cannot listen on"):
        serve(one, port=taken.getsockname()[1])


class Overflowing(nn.Module):
    """Gives NaN or Inf for images that are nearly white, and what the network gives for others."""

    def __init__(self, model: nn.Module, value: float) -> None:
        super().__init__()
        self.model, self.value = model, value

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        white = images.flatten(1).mean(dim=1, keepdim=True) > 1.5
        out: torch.Tensor = self.model(images + torch.where(white, self.value, 0.0)[:, :, None, None])
        return out


@pytest.mark.fault(
    "an image for which the network gives NaN or Inf, over HTTP, alone and among others; a picture whose pixels are NaN or Inf",
    does="OOD with its reason, in JSON that every program reads; the others keep their verdicts. Such pictures are refused",
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_over_http(value: float, trained: nn.Module) -> None:
    from colour_world import HOW, known_tensors

    guard = Guard(Overflowing(trained, value), "scale", preprocessing=HOW).calibrate([known_tensors(100)[0]])
    white, pixels = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (20, 20), "white").save(white, "PNG")
    Image.fromarray(np.full((20, 20), value, np.float32)).save(pixels, "TIFF")

    def no_number(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    def ask(*files: bytes) -> list[dict[str, object]]:
        answer = served.client.post("/v1/score", files=[("images", file) for file in files])
        assert answer.status_code == 200
        found: list[dict[str, object]] = json.loads(answer.content, parse_constant=no_number)["results"]
        return found

    with running(guard, batch=8) as served:
        plain = ask(RED)[0]
        for files in ((white.getvalue(),), (RED, white.getvalue(), RED)):
            for file, found in zip(files, ask(*files), strict=True):
                if file == RED:
                    assert found["score"] == pytest.approx(plain["score"], rel=1e-4)
                    assert found["is_ood"] == plain["is_ood"] is False
                else:
                    assert found["is_ood"] is True
                    assert found["label"] == -1
                    assert "not finite" in str(found["reason"])
        refused = served.client.post("/v1/score", content=pixels.getvalue(), headers={"Content-Type": "image/tiff"})
        assert refused.status_code == 422
        assert "\n" not in refused.json()["error"]
