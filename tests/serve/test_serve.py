from __future__ import annotations

import base64
import io
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from colour_world import COLOURS, known, ood_picture
from PIL import Image

from idness.core.errors import InputError, OptionError
from idness.data import Preprocessing
from idness.guard import Guard
from idness.guard.neighbours import Gallery

pytest.importorskip("fastapi")
from idness.serve.limits import Limits
from tests.serve.serving import Served, error_of, running, until

SMALL = Limits(
    body=200_000, pixels=250_000, images=4, queue=8, requests=8, head_seconds=0.6, body_seconds=0.6, answer_seconds=5
)


def png(picture: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return buffer.getvalue()


RED, ODD = png(known("red", 3)), png(ood_picture(2))
PART = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n%s\r\n'


@pytest.fixture(scope="module")
def shown(trained: torch.nn.Module) -> Guard:
    from colour_world import HOW, known_tensors
    from tiny_net import Tiny

    guard = Guard(trained, "scale", preprocessing=HOW, class_names=Tiny.class_names)
    guard.calibrate([known_tensors(200)[0]])
    pictures = [known(list(COLOURS)[index % 4], index) for index in range(12)]
    acts = guard.split.split(torch.stack([HOW(picture) for picture in pictures]))
    guard.gallery = Gallery.of(pictures, acts.features, acts.logits.argmax(dim=1), guard.detector.score(acts))
    return guard


@pytest.fixture(scope="module")
def served(shown: Guard) -> Iterator[Served]:
    with running(shown, SMALL) as found:
        yield found


def test_all_three_kinds_of_body_give_what_the_guard_says(served: Served, shown: Guard) -> None:
    wanted = shown.judge(RED, ODD).records()
    form = served.client.post("/v1/score", files=[("images", ("a.png", RED)), ("images", ("b.png", ODD))]).json()
    text = [base64.b64encode(RED).decode(), "data:image/png;base64," + base64.b64encode(ODD).decode()]
    plain = served.client.post("/v1/score", json={"images": text}).json()
    alone = served.client.post("/v1/score", content=RED, headers={"Content-Type": "image/png"}).json()
    single = served.client.post("/v1/score", json={"image": text[0]}).json()
    assert form["recall"] == 0.95
    assert [result["name"] for result in form["results"]] == ["a.png", "b.png"]
    for results in (form["results"], plain["results"]):
        for result, record in zip(results, wanted, strict=True):
            assert result["score"] == pytest.approx(record["score"], rel=1e-5)
            assert {key: result[key] for key in ("label", "class", "is_ood")} == {
                key: record[key] for key in ("label", "class", "is_ood")
            }
            assert result["p_value"] == pytest.approx(record["p_value"], abs=1e-6)
    assert alone["results"][0]["score"] == pytest.approx(wanted[0]["score"], rel=1e-5)
    assert single["results"][0]["is_ood"] is False
    assert plain["results"][1]["is_ood"] is True


def test_neighbours_are_named_and_shown(served: Served) -> None:
    answer = served.client.post(
        "/v1/score?neighbours=3", content=png(known("green", 1)), headers={"Content-Type": "image/png"}
    )
    near = answer.json()["results"][0]["neighbours"]
    assert len(near) == 3
    assert near[0]["index"] == 1
    assert near[0]["class"] == "green"
    assert near[0]["similarity"] == pytest.approx(1.0, abs=1e-3)
    picture = served.client.get(f"/v1/calibration/{near[0]['index']}")
    assert Image.open(io.BytesIO(picture.content)).size == (24, 24)
    assert served.client.get("/v1/calibration/99").status_code == 404
    assert served.client.post("/v1/score?neighbours=999", content=RED).status_code == 422


def bomb() -> bytes:
    """A small PNG that claims, and would unpack to, 30,000 x 30,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(3_000_000)))
        + chunk(b"IEND", b"")
    )


HOSTILE = {
    "empty": (b"", "is an empty file"),
    "html": (b"<html><script>alert(1)</script>", "got a web page"),
    "truncated": (png(known("red", 1, side=200), "JPEG")[:900], "is cut off: its end is missing"),
    "bomb": (bomb(), "at most 250,000 pixels"),
    "large": (png(Image.new("RGB", (600, 600))), "at most 250,000 pixels"),
    "svg": (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "got an SVG drawing"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "got text"),
    "pickle": (b"\x80\x04\x95\x1a\x00\x00\x00", "got something else"),
    "noise": (np.random.default_rng(0).bytes(5_000), "got something else"),
    "png cut short": (RED[:-60], "is cut off: its end is missing"),
    "png of zeros": (RED[:40] + bytes(200), "must be one of"),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_file_has_its_problem_and_the_others_their_verdicts(served: Served, name: str) -> None:
    content, reason = HOSTILE[name]
    started = time.monotonic()
    files = [("images", ("good.png", RED)), ("images", ("../../etc/<x>.png", content)), ("images", ("odd.png", ODD))]
    answer = served.client.post("/v1/score", files=files)
    assert answer.status_code == 200
    good, bad, odd = answer.json()["results"]
    assert (good["is_ood"], odd["is_ood"]) == (False, True)
    # Nothing of a verdict: a client that reads one by mistake fails instead of trusting it.
    assert set(bad) == {"name", "problem"}
    assert bad["name"] == "../../etc/<x>.png"
    assert reason in bad["problem"]
    assert "b'" not in bad["problem"]
    assert time.monotonic() - started < 3


def test_a_request_without_any_image_that_can_be_judged_fails_and_says_why_of_each(served: Served) -> None:
    files = [("images", ("a.svg", b"<svg/>")), ("images", ("b.png", b""))]
    answer = served.client.post("/v1/score", files=files)
    assert answer.status_code == 422
    assert error_of(answer).startswith("image 1 (a.svg): must be one of JPEG")
    assert error_of(answer).endswith("; none of the other 1 can be judged either")
    assert [(entry["name"], "problem" in entry) for entry in answer.json()["results"]] == [
        ("a.svg", True),
        ("b.png", True),
    ]
    counted = served.client.get("/metrics").text
    assert served.client.post("/v1/score", content=b"", headers={"Content-Type": "image/png"}).status_code == 422
    assert _images(served.client.get("/metrics").text) == _images(counted)


def _images(metrics: str) -> float:
    return next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith("idness_images_total"))


def _picture(result: dict[str, Any]) -> np.ndarray:
    kind, _, content = result["picture"].partition(";base64,")
    assert kind in ("data:image/png", "data:image/webp")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB"))


def _turned(image: Image.Image) -> bytes:
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    image.save(buffer, "PNG", exif=exif)
    return buffer.getvalue()


def _frames(kind: str) -> bytes:
    buffer = io.BytesIO()
    red, blue = (Image.new("RGB", (24, 24), colour) for colour in ("red", "blue"))
    red.save(buffer, kind, save_all=True, append_images=[blue])
    return buffer.getvalue()


def _see_through() -> bytes:
    return png(Image.new("RGBA", (24, 24), (255, 0, 0, 0)))


@pytest.mark.parametrize(
    ("content", "seen", "more"),
    [
        (_frames("GIF"), Image.new("RGB", (24, 24), "red"), True),
        (_frames("TIFF"), Image.new("RGB", (24, 24), "red"), True),
        (_see_through(), Image.new("RGB", (24, 24), "white"), False),
        (_turned(known("green", 2)), known("green", 2).transpose(Image.Transpose.ROTATE_270), False),
        (png(known("blue", 2), "TIFF"), known("blue", 2), False),
    ],
    ids=["gif", "tiff of two pages", "transparent", "turned", "tiff"],
)
def test_a_picture_comes_back_as_the_network_saw_it(
    served: Served, shown: Guard, content: bytes, seen: Image.Image, more: bool
) -> None:
    [result] = served.client.post("/v1/score?picture=true", files=[("images", content)]).json()["results"]
    assert shown.preprocessing is not None
    assert np.array_equal(_picture(result), shown.preprocessing.pixels(seen))
    assert result["first_frame_only"] is more
    [plain] = served.client.post("/v1/score", files=[("images", content)]).json()["results"]
    assert plain["picture"] is None


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"x", "text/plain", 415),
        (b"x", "", 415),
        (b"{", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"a":' * 20_000 + b"1" + b"}" * 20_000, "application/json", 400),
        (b"[]", "application/json", 422),
        (b'{"images": "x"}', "application/json", 422),
        (b'{"images": [1]}', "application/json", 422),
        (b'{"images": []}', "application/json", 422),
        (b'{"image": "not base64!"}', "application/json", 422),
        (b'{"images": ["", "", "", "", ""]}', "application/json", 413),
        (b"\xff\xfe\x00", "application/json", 400),
        (b"nothing", "multipart/form-data", 400),
        (b"nothing", "multipart/form-data; boundary=x", 400),
        (
            b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\ntext\r\n--x--\r\n",
            "multipart/form-data; boundary=x",
            422,
        ),
        (b"--x\r\n\r\n\r\n--x--\r\n", "multipart/form-data; boundary=x", 400),
        # A whole image, and a second one of which the end, or all but a part of its head, is missing.
        (PART % RED + (PART % RED)[:-40], "multipart/form-data; boundary=x", 400),
        (PART % RED + PART[:30], "multipart/form-data; boundary=x", 400),
    ],
)
def test_bodies_that_cannot_be_used_are_told_apart(served: Served, body: bytes, kind: str, status: int) -> None:
    answer = served.client.post("/v1/score", content=body, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert error_of(answer)
    assert served.client.get("/healthz").status_code == 200


def test_text_that_is_not_base64_is_not_taken_for_an_image(served: Served) -> None:
    """A lax reader would skip the marks and find a whole image."""
    text = base64.b64encode(RED).decode()
    answer = served.client.post("/v1/score", json={"images": [text, text[:8] + "!?" + text[8:]]})
    good, bad = answer.json()["results"]
    assert good["is_ood"] is False
    assert bad == {"name": "image 2", "problem": "is not base64; send the bytes of an image in base64"}


def test_too_many_images_in_a_form(served: Served) -> None:
    answer = served.client.post("/v1/score", files=[("images", (f"{index}.png", RED)) for index in range(5)])
    assert answer.status_code == 413
    assert "4 images" in error_of(answer)


def test_oversize_bodies_are_refused_announced_or_not(served: Served) -> None:
    large = bytes(SMALL.body + 1)
    announced = served.client.post("/v1/score", content=large, headers={"Content-Type": "image/png"})
    streamed = served.client.post(
        "/v1/score", content=(large[:50_000] for _ in range(9)), headers={"Content-Type": "image/png"}
    )
    packed = served.client.post(
        "/v1/score", content=RED, headers={"Content-Type": "image/png", "Content-Encoding": "gzip"}
    )
    assert [announced.status_code, streamed.status_code, packed.status_code] == [413, 413, 415]
    assert "200,000 bytes" in error_of(announced)
    claim = (
        b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 99999999999\r\n\r\n"
    )
    assert served.raw(claim).startswith(b"HTTP/1.1 413")


def test_slow_clients_are_cut_off(served: Served) -> None:
    head = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 1000\r\n\r\n"
    started = time.monotonic()
    assert served.raw(head, *(b"x" for _ in range(20)), pause=0.08).startswith(b"HTTP/1.1 408")
    assert served.raw(b"GET / HT") == b""  # a head that never ends
    assert served.raw() == b""  # a connection that says nothing
    assert time.monotonic() - started < 9
    assert served.client.get("/healthz").status_code == 200


def test_broken_http_is_answered_and_survived(served: Served) -> None:
    assert served.raw(b"\x16\x03\x01\x02\x00hello\r\n\r\n").startswith(b"HTTP/1.1 400")
    endless = served.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * 2_000_000 + b"\r\n\r\n")
    assert endless == b"" or endless.startswith(b"HTTP/1.1 400")
    assert served.client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml",
        "/page/../../guard.py",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/v1/calibration/../../x",
        "/etc/passwd",
    ],
)
def test_no_path_reaches_the_file_system(served: Served, path: str) -> None:
    answer = served.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 422"))


def test_page_docs_and_openapi_come_with_safe_headers(served: Served) -> None:
    for path in ("/", "/docs", "/page.js", "/shared.js", "/list.js", "/chart.js", "/docs.js", "/page.css", "/icon.svg"):
        answer = served.client.get(path)
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert b"http://" not in answer.content.replace(b"http://www.w3.org", b"")
        assert b"https://" not in answer.content
    api = served.client.get("/openapi.json").json()
    assert set(api["paths"]["/v1/score"]["post"]["requestBody"]["content"]) == {
        "multipart/form-data",
        "application/json",
        "image/*",
    }
    assert {"/healthz", "/readyz", "/metrics", "/v1/guard", "/v1/calibration"} <= set(api["paths"])


def test_guard_and_calibration_are_described(served: Served, shown: Guard) -> None:
    about = served.client.get("/v1/guard").json()
    assert about["method"] == "scale(percentile=85)"
    assert about["calibration_images"] == 200
    info = served.client.get("/v1/calibration").json()
    assert sum(info["counts"]) == 200
    assert info["quantiles"] == sorted(info["quantiles"])
    assert len(info["quantiles"]) == 200
    assert about["thresholds"]["0.95"][0] == pytest.approx(info["quantiles"][9])


def test_metrics_count_what_happened(served: Served) -> None:
    def value(name: str) -> float:
        lines = served.client.get("/metrics").text.splitlines()
        return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    before = value("idness_images_total"), value("idness_ood_images_total")
    served.client.post("/v1/score", files=[("images", RED), ("images", ODD), ("images", ODD)])
    assert value("idness_images_total") == before[0] + 3
    assert value("idness_ood_images_total") == before[1] + 2
    served.client.get("/made/up/by/a/stranger")
    text = served.client.get("/metrics").text
    assert "stranger" not in text
    assert 'path="other",status="404"' in text
    assert value("idness_drift_alarm") in (0.0, 1.0)  # other tests have sent whatever they like
    assert "idness_queue_images 0.0" in text


def test_many_clients_at_once_share_batches_and_each_gets_its_own_answer(shown: Guard) -> None:
    pictures = [png(known(list(COLOURS)[seed % 4], seed)) for seed in range(48)]
    wanted = shown.judge(*pictures)
    with running(shown, batch=16) as served, ThreadPoolExecutor(24) as pool:
        answers = list(
            pool.map(
                lambda body: served.client.post("/v1/score", content=body, headers={"Content-Type": "image/png"}),
                pictures,
            )
        )
        text = served.client.get("/metrics").text
    found = torch.tensor([answer.json()["results"][0]["score"] for answer in answers])
    torch.testing.assert_close(found, wanted.score, rtol=1e-5, atol=1e-4)
    batches = next(float(line.split()[1]) for line in text.splitlines() if line.startswith("idness_batch_images_count"))
    assert batches < 48


class Blocked:
    """Holds the worker inside the network until it is let go."""

    def __init__(self, guard: Guard) -> None:
        self.gate, self.inside = threading.Event(), threading.Event()
        self._handle = guard.model.register_forward_pre_hook(self._wait)

    def _wait(self, *_: object) -> None:
        self.inside.set()
        self.gate.wait(20)

    def __enter__(self) -> Blocked:
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self._handle.remove()


def post(served: Served, count: int = 1) -> int:
    return served.client.post("/v1/score", files=[("images", RED)] * count).status_code


def test_overload_is_turned_away_and_what_was_accepted_is_answered(shown: Guard) -> None:
    limits = Limits(images=4, queue=6, requests=50, answer_seconds=20)
    with running(shown, limits, batch=4) as served, ThreadPoolExecutor(4) as pool:
        with Blocked(shown) as blocked:
            accepted = pool.submit(post, served, 4)
            until(blocked.inside.is_set)
            refused = served.client.post("/v1/score", files=[("images", RED)] * 3)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert "busy" in error_of(refused)
            also = pool.submit(post, served, 2)
            until(lambda: "idness_queue_images 6.0" in served.client.get("/metrics").text)
            assert served.client.get("/healthz").status_code == 200
        assert accepted.result() == 200
        assert also.result() == 200
        assert post(served) == 200


def test_more_requests_than_allowed_are_turned_away(shown: Guard) -> None:
    with running(shown, Limits(requests=1), batch=1) as served, ThreadPoolExecutor(1) as pool:
        with Blocked(shown) as blocked:
            accepted = pool.submit(post, served)
            until(blocked.inside.is_set)
            refused = served.client.post("/v1/score", files=[("images", RED)])
            assert refused.status_code == 503
            assert "1 requests are under way" in error_of(refused)
        assert accepted.result() == 200
        assert post(served) == 200


def test_images_of_several_sizes_are_judged_in_one_request(trained: torch.nn.Module) -> None:
    how = Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    guard = Guard(trained, "msp", preprocessing=how)
    guard.calibrate([torch.stack([how(known("red", seed)) for seed in range(30)])])
    images = [png(known("red", seed, side=side)) for seed, side in enumerate((16, 24, 16, 40))]
    with running(guard, batch=4) as served:
        answer = served.client.post("/v1/score", files=[("images", image) for image in images])
    assert answer.status_code == 200
    scores = [float(guard.judge(image).score) for image in images]
    assert [record["score"] for record in answer.json()["results"]] == pytest.approx(scores, rel=1e-4)


def test_an_answer_that_takes_too_long_is_given_up_and_its_place_freed(shown: Guard) -> None:
    with running(shown, Limits(answer_seconds=0.5), batch=1) as served:
        with Blocked(shown):
            assert post(served) == 504
        until(lambda: post(served) == 200)
        assert "idness_queue_images 0.0" in served.client.get("/metrics").text


def test_a_network_that_fails_once_does_not_end_the_worker(shown: Guard) -> None:
    with running(shown, batch=1) as served:
        handle = shown.model.register_forward_pre_hook(lambda *_: 1 / 0)
        try:
            # The server closes the connection after an error of its own: the next request must not meet that half-way.
            headers = {"Content-Type": "image/png", "Connection": "close"}
            answer = served.client.post("/v1/score", content=RED, headers=headers)
        finally:
            handle.remove()
        assert answer.status_code == 500
        assert "ZeroDivisionError" in error_of(answer)
        assert post(served) == 200


def test_api_key_guards_the_api_and_nothing_else(shown: Guard) -> None:
    with running(shown, key="open-sesame-please") as served:
        for headers in ({}, {"X-API-Key": "wrong"}, {"Authorization": "Bearer open-sesame-pleas"}):
            stranger = served.client
            stranger.headers.pop("X-API-Key", None)
            answer = stranger.post("/v1/score", content=RED, headers={"Content-Type": "image/png", **headers})
            assert answer.status_code == 401
            assert "API key" in error_of(answer)
            assert stranger.get("/metrics", headers=headers).status_code == 401
            assert stranger.get("/healthz").status_code == 200
            assert stranger.get("/").status_code == 200
        for headers in (
            {"X-API-Key": "open-sesame-please"},
            {"Authorization": "Bearer open-sesame-please"},
            {"Authorization": "bearer open-sesame-please"},
        ):
            answer = served.client.post("/v1/score", content=RED, headers={"Content-Type": "image/png", **headers})
            assert answer.status_code == 200


def test_drift_shows_in_the_metrics(shown: Guard) -> None:
    with running(shown, Limits(images=64)) as served:
        for first in range(0, 320, 64):
            files = [("images", png(ood_picture(first + seed))) for seed in range(64)]
            assert served.client.post("/v1/score", files=files).status_code == 200
        text = served.client.get("/metrics").text
    assert "idness_drift_alarm 1.0" in text
    share = next(float(line.split()[1]) for line in text.splitlines() if line.startswith("idness_ood_share"))
    assert share > 0.7


def test_what_cannot_be_served_is_said(shown: Guard) -> None:
    with pytest.raises(InputError, match="must be calibrated"), running(Guard(shown.split, "msp")):
        pass
    with pytest.raises(OptionError, match="cannot listen"), running(shown, host="203.0.113.1", port=1):
        pass
    with pytest.raises(OptionError, match="must fit the queue"):
        Limits(images=10, queue=5)


def test_rates_are_told_for_networks_of_the_embedded_classes_only(served: Served) -> None:
    from idness import load_model
    from idness.data import embedded
    from idness.serve.samples import TRIED

    assert served.client.get("/v1/rates").json() == {}
    model, how = load_model("cifar6:base"), embedded.preprocessing()
    images = [how(image) for image in embedded.load("id_val").images[:100]]
    guard = Guard(model, "msp", preprocessing=how, class_names=embedded.load("id_test").classes)
    with running(guard.calibrate([torch.stack(images)]), batch=32) as own:
        rates = own.client.get("/v1/rates").json()
        assert own.client.get("/v1/rates").json() == rates
    assert {role: len(p_values) for role, p_values in rates.items()} == dict.fromkeys(("id", "near", "far"), TRIED)
    passing = {role: np.mean(np.array(p_values) > 0.05) for role, p_values in rates.items()}
    assert passing["id"] > passing["near"] > passing["far"]
