"""Limits and refusals: hosts, origins, tokens, large, slow and malformed requests, networks that fail."""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from colour_world import HOW, known_tensors
from PIL import Image
from torch import nn

from idness.core.errors import InputError, ModelError, OptionError
from idness.guard import Guard

pytest.importorskip("fastapi")
from idness.serve import Limits, serve
from tests.cli.running import idness
from tests.serve.serving import HEAD, PART, PNG, RED, Served, error_of, png, running

KEY = "a-long-enough-token"


@pytest.fixture(scope="module")
def served(shown: Guard) -> Iterator[Served]:
    with running(shown, Limits(body=200_000, images=4, queue=8, body_seconds=0.6)) as found:
        yield found


@pytest.mark.fault(
    "a foreign page calls the service by a name that resolves to it (DNS rebinding)",
    does="responds with 421 to unknown host names; IP addresses and localhost are accepted",
)
def test_only_known_hosts_are_answered(shown: Guard) -> None:
    with running(shown, hosts=["Guard.example"]) as served:
        for host, status in (
            ("evil.example", 421), ("evil.example:80", 421), ("127.0.0.1.evil.example", 421), ("localhost.evil.example", 421),
            ("[::1", 421), ("localhost", 200), ("LOCALHOST:8000", 200), ("127.0.0.1:1", 200), ("[::1]:8000", 200),
            ("guard.example.", 200),
        ):  # fmt: skip
            for path in ("/v1/guard", "/", "/healthz"):
                assert served.client.get(path, headers={"Host": host}).status_code == status, host
        refused = served.client.get("/v1/calibration/0", headers={"Host": "evil.example"})
        assert error_of(refused) == "unknown host 'evil.example'; allow it with --allow-host evil.example"
    with running(shown, key=KEY) as served:  # a token makes the name irrelevant
        assert served.client.get("/v1/guard", headers={"Host": "evil.example"}).status_code == 200


@pytest.mark.fault(
    "a foreign page sends images to the service through its visitor's browser (a cross-site form)",
    does="responds with 403 to other origins, unless a token is required; no image is judged",
)
def test_other_origins_are_refused(shown: Guard) -> None:
    with running(shown, hosts=["guard.example"]) as served:
        own = f"{served.host}:{served.port}"
        for headers, status in (
            ({"Origin": "https://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Origin": "http://localhost:3000"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Sec-Fetch-Site": "same-site", "Origin": f"http://{own}"}, 403),
            ({}, 200), ({"Origin": f"http://{own}"}, 200), ({"Sec-Fetch-Site": "same-origin"}, 200), ({"Sec-Fetch-Site": "none"}, 200),
            ({"Origin": "https://guard.example"}, 200),
        ):  # fmt: skip
            assert served.score(**headers).status_code == status, headers
        assert served.client.get("/healthz", headers={"Origin": "https://evil.example"}).status_code == 200
        assert served.metric("idness_images_total") == 5
    with running(shown, key=KEY) as served:
        assert served.score(Origin="null").status_code == 200


def test_the_api_needs_the_key_and_nothing_else_does(shown: Guard) -> None:
    with running(shown, key=KEY) as served:
        del served.client.headers["X-API-Key"]
        for headers in ({}, {"X-API-Key": "wrong"}, {"Authorization": f"Bearer {KEY[:-1]}"}):
            refused = served.score(**headers)
            assert refused.status_code == 401
            assert "API key" in error_of(refused)
            for path, status in (("/metrics", 401), ("/v2/models/guard", 401), ("/v2/health/ready", 200), ("/", 200)):
                assert served.client.get(path, headers=headers).status_code == status
        for headers in ({"X-API-Key": KEY}, {"Authorization": f"Bearer {KEY}"}, {"Authorization": f"bearer {KEY}"}):
            assert served.score(**headers).status_code == 200


@pytest.mark.fault(
    "the service listens on an address that other machines can reach, without a token",
    does="refuses to start without --no-token",
)
def test_an_address_that_others_reach_needs_a_token(
    shown: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match=r"0\.0\.0\.0 is reachable from other machines.*pass key=, or no_token=True"):
        serve(shown, host="0.0.0.0", port=0)
    folder, token = shown.save(tmp_path / "guard", bundle=True), tmp_path / "token"
    model = f"{Path(__file__).resolve().parents[1] / 'samples' / 'tiny_net.py'}:make"
    command = ("serve", folder, "--model", model, "--weights", next(folder.glob("weights-*")), "--host", "0.0.0.0")
    refused = idness(*command)
    assert refused.returncode == 2
    assert "pass --token-file, or --no-token to allow everyone" in refused.stderr
    for content, line in (("short", "at least 16 ASCII characters"), ("two\nlines of a token", "one line"), ("", "16")):
        token.write_text(content)
        refused = idness(*command, "--token-file", token)
        assert refused.returncode == 2
        assert line in refused.stderr
    assert "cannot be read" in idness(*command, "--token-file", tmp_path / "none").stderr
    monkeypatch.setenv("IDNESS_API_KEY", "x")
    assert "IDNESS_API_KEY must be one line of at least 16" in idness(*command).stderr
    with pytest.raises(OptionError, match="at least 16"):
        serve(shown, key="x")


def test_bodies_that_are_too_large_are_refused(served: Served) -> None:
    large = bytes(200_001)
    announced = served.score(large)
    streamed = served.client.post("/v1/score", content=(large[:50_000] for _ in range(9)), headers=PNG)
    packed = served.score(**{"Content-Encoding": "gzip"})
    assert [announced.status_code, streamed.status_code, packed.status_code] == [413, 413, 415]
    assert "200,000 bytes" in error_of(announced)


def test_a_slow_body_is_cut_off(served: Served) -> None:
    assert served.raw(HEAD % 1000, *(b"x" for _ in range(20)), pause=0.08).startswith(b"HTTP/1.1 408")
    assert served.client.get("/healthz").status_code == 200


@pytest.mark.fault("more bytes of concurrent request bodies than the limit", does="responds with 503 and Retry-After")
def test_bodies_together_are_bounded(shown: Guard) -> None:
    with running(shown, Limits(held=50_000)) as served, ExitStack() as stack:
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
        assert served.score().status_code == 200


@pytest.mark.fault(
    "many small files that decode to more pixels than a request may have",
    does="refuses the request before any is decoded",
)
def test_pixels_are_bounded_for_the_request_as_a_whole(shown: Guard) -> None:
    large = png(Image.fromarray(np.zeros((5_000, 5_000), np.uint8)))
    with running(shown) as served:
        started = time.process_time()
        answer = served.score(*[large] * 64)
        assert answer.status_code == 413
        assert "200,000,000 pixels in total, got 1,600,000,000" in error_of(answer)
        assert time.process_time() - started < 2.5
        assert served.score().status_code == 200


@pytest.mark.fault("a request with many large images", does="small requests are answered meanwhile")
def test_a_large_request_does_not_hold_up_a_small_one(shown: Guard) -> None:
    large = png(Image.fromarray(np.zeros((3_000, 3_000), np.uint8)))
    with running(shown, batch=1) as served, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(served.score, *[large] * 16)
        time.sleep(0.2)
        assert served.score().status_code == 200
        assert not waiting.done()
        assert served.client.get("/healthz").status_code == 200
        assert waiting.result().status_code == 200


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"x", "text/plain", 415),
        (b"{", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"[]", "application/json", 422),
        (b'{"images": "x"}', "application/json", 422),
        (b'{"images": [1]}', "application/json", 422),
        (b'{"images": []}', "application/json", 422),
        (b'{"images": ["", "", "", "", ""]}', "application/json", 413),
        (b"nothing", "multipart/form-data", 400),
        (b"nothing", "multipart/form-data; boundary=x", 400),
        (PART % b"text" + b"--x--\r\n", "multipart/form-data; boundary=x", 422),
        (PART.replace(b"; filename", b"; other") % b"text" + b"--x--\r\n", "multipart/form-data; boundary=x", 422),
        (PART % RED * 5 + b"--x--\r\n", "multipart/form-data; boundary=x", 413),
    ],
)
def test_malformed_bodies_are_refused_in_one_line(served: Served, body: bytes, kind: str, status: int) -> None:
    answer = served.client.post("/v1/score", content=body, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert error_of(answer)
    assert served.client.get("/healthz").status_code == 200


class Failing(nn.Module):
    """A network that fails on demand, or returns a value that is not finite for white images."""

    def __init__(self, model: nn.Module, value: float = 0.0) -> None:
        super().__init__()
        self.model, self.value, self.broken = model, value, False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.broken:
            raise RuntimeError("no memory\nleft on this device")
        white = images.flatten(1).mean(dim=1, keepdim=True) > 1.5
        out: torch.Tensor = self.model(images + torch.where(white, self.value, 0.0)[:, :, None, None])
        return out


@pytest.mark.fault(
    "the network fails on a request, or at warm-up",
    does="on a request, responds with 500 and keeps the connection; at warm-up, exits with one line and code 2",
)
def test_the_connection_and_the_worker_survive_a_failure_of_the_network(trained: nn.Module) -> None:
    model = Failing(trained)
    guard = Guard(model, "msp", preprocessing=HOW).calibrate([known_tensors(40)[0]])
    with running(guard, batch=1) as served:
        model.broken = True
        answers = [served.score() for _ in range(3)]
        model.broken = False
        assert [answer.status_code for answer in answers] == [500] * 3
        assert "connection" not in answers[0].headers
        assert error_of(answers[0]) == "the server failed on this request (RuntimeError)"
        assert served.score().status_code == 200
    model.broken = True
    with pytest.raises(ModelError, match="fails on its first image.*no memory"):
        serve(guard, port=0)


@pytest.mark.fault("the port is in use", does="one line and exit code 2")
def test_invalid_arguments_are_refused(shown: Guard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OptionError, match="cannot listen on"):
        serve(shown, port=taken.getsockname()[1])
    with pytest.raises(InputError, match="must be calibrated"):
        serve(Guard(shown.split, "msp"))
    with pytest.raises(OptionError, match="must be at most queue"):
        Limits(images=10, queue=5)
    with pytest.raises(OptionError, match="body must be above 0"):
        Limits(body=0)


@pytest.mark.fault(
    "over HTTP, an image for which the network returns NaN or Inf, or whose pixels are NaN or Inf",
    does="OOD with its reason, in standard JSON, or refused; other images keep their verdicts",
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite(value: float, trained: nn.Module) -> None:
    guard = Guard(Failing(trained, value), "scale", preprocessing=HOW).calibrate([known_tensors(100)[0]])
    white, pixels = png(Image.new("RGB", (20, 20), "white")), io.BytesIO()
    Image.fromarray(np.full((20, 20), value, np.float32)).save(pixels, "TIFF")
    with running(guard, batch=8) as served:
        [plain] = served.score(RED).json()["results"]
        answer = served.score(RED, white, RED)
        results = json.loads(answer.content, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))["results"]
        assert [result["is_ood"] for result in results] == [False, True, False]
        for result in results[::2]:
            assert result["score"] == pytest.approx(plain["score"], rel=1e-4)
        assert results[1]["label"] == -1
        assert "not finite" in results[1]["reason"]
        assert served.score(pixels.getvalue()).status_code == 422
