"""Responses of the service."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from colour_world import COLOURS, known
from PIL import Image

from idness.data import Preprocessing
from idness.guard import Guard

pytest.importorskip("fastapi")
from idness.serve import Limits
from tests.serve.serving import ODD, PNG, RED, Served, error_of, png, running, until


@pytest.fixture(scope="module")
def served(shown: Guard) -> Iterator[Served]:
    with running(shown, Limits(pixels=250_000, images=4, queue=8)) as found:
        yield found


def test_every_kind_of_body_gets_the_verdicts_of_the_guard(served: Served, shown: Guard) -> None:
    wanted = shown.judge(RED, ODD).records()
    text = [base64.b64encode(RED).decode(), "data:image/png;base64," + base64.b64encode(ODD).decode()]
    form = served.client.post("/v1/score", files=[("images", ("a.png", RED)), ("images", ("b.png", ODD))]).json()
    answers = [
        form["results"],
        served.client.post("/v1/score", json={"images": text}).json()["results"],
        served.client.post("/v1/score", json={"image": text[0]}).json()["results"],
        served.score(RED).json()["results"],
    ]
    assert form["recall"] == 0.95
    assert [result["image"] for result in form["results"]] == ["a.png", "b.png"]
    assert [len(results) for results in answers] == [2, 2, 1, 1]
    for results in answers:
        for result, record in zip(results, wanted, strict=False):
            assert result["score"] == pytest.approx(record["score"], rel=1e-5)
            assert result["p_value"] == pytest.approx(record["p_value"], abs=1e-6)
            assert all(result[name] == record[name] for name in ("label", "class", "is_ood"))
    assert [result["is_ood"] for result in form["results"]] == [False, True]


def test_nearest_calibration_images(served: Served) -> None:
    answer = served.client.post("/v1/score?neighbours=3", content=png(known("green", 1)), headers=PNG)
    near = answer.json()["results"][0]["neighbours"]
    assert len(near) == 3
    assert near[0]["index"] == 1
    assert near[0]["class"] == "green"
    assert near[0]["similarity"] == pytest.approx(1.0, abs=1e-3)
    picture = served.client.get(f"/v1/calibration/{near[0]['index']}")
    assert Image.open(io.BytesIO(picture.content)).size == (24, 24)
    assert served.client.get("/v1/calibration/99").status_code == 404
    assert served.client.post("/v1/score?neighbours=999", content=RED).status_code == 422


HOSTILE = {
    "empty": (b"", "is an empty file"),
    "truncated": (png(known("red", 1, side=200), "JPEG")[:900], "is truncated (its end is missing)"),
    "large": (png(Image.new("RGB", (600, 600))), "at most 250,000 pixels"),
    "svg": (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "got something else"),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_file_has_its_problem_and_the_others_their_verdicts(served: Served, name: str) -> None:
    content, reason = HOSTILE[name]
    files = [("images", ("good.png", RED)), ("images", ("../../etc/<x>.png", content)), ("images", ("odd.png", ODD))]
    answer = served.client.post("/v1/score", files=files)
    assert answer.status_code == 200
    good, bad, odd = answer.json()["results"]
    assert (good["is_ood"], odd["is_ood"]) == (False, True)
    assert set(bad) == {"image", "error"}  # no field of a verdict that a client could read by mistake
    assert bad["image"] == "../../etc/<x>.png"
    assert reason in bad["error"]
    assert "b'" not in bad["error"]


def test_text_that_is_not_base64_is_not_decoded(served: Served) -> None:
    text = base64.b64encode(RED).decode()
    good, bad = served.client.post("/v1/score", json={"images": [text, text[:8] + "!?" + text[8:]]}).json()["results"]
    assert good["is_ood"] is False
    assert (bad["image"], bad["error"]) == ("image 2", "is not valid base64; send the bytes of an image in base64")


def test_a_request_without_a_usable_image_fails_with_the_problem_of_each(served: Served) -> None:
    before = served.metric("idness_images_total")
    answer = served.client.post("/v1/score", files=[("images", ("a.svg", b"<svg/>")), ("images", ("b.png", b""))])
    assert answer.status_code == 422
    assert error_of(answer).startswith("image 1 (a.svg): must be one of JPEG")
    assert error_of(answer).endswith("; the other 1 cannot be judged either")
    assert all("error" in entry for entry in answer.json()["results"])
    assert served.score(b"").status_code == 422
    assert served.metric("idness_images_total") == before


def frames(kind: str) -> bytes:
    buffer = io.BytesIO()
    red, blue = (Image.new("RGB", (24, 24), colour) for colour in ("red", "blue"))
    red.save(buffer, kind, save_all=True, append_images=[blue])
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "seen", "more"),
    [
        (frames("GIF"), Image.new("RGB", (24, 24), "red"), True),
        (png(known("blue", 2), "TIFF"), known("blue", 2), False),
    ],
    ids=["gif", "tiff"],
)
def test_an_image_is_returned_as_the_network_saw_it(
    served: Served, shown: Guard, content: bytes, seen: Image.Image, more: bool
) -> None:
    [result] = served.client.post("/v1/score?picture=true", files=[("images", content)]).json()["results"]
    kind, _, data = result["picture"].partition(";base64,")
    assert kind in ("data:image/png", "data:image/webp")
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))
    assert shown.preprocessing is not None
    assert np.array_equal(picture, shown.preprocessing.pixels(seen))
    assert result["first_frame_only"] is more
    assert served.score(content).json()["results"][0]["picture"] is None


def test_pages_have_security_headers_and_the_api_is_described(served: Served) -> None:
    for path in ("/", "/docs", "/page.js", "/shared.js", "/list.js", "/chart.js", "/docs.js", "/page.css", "/icon.svg"):
        answer = served.client.get(path)
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert b"http://" not in answer.content.replace(b"http://www.w3.org", b"")
        assert b"https://" not in answer.content
    api = served.client.get("/openapi.json").json()
    body = api["paths"]["/v1/score"]["post"]["requestBody"]["content"]
    assert set(body) == {"multipart/form-data", "application/json", "image/*"}
    assert {"/healthz", "/readyz", "/metrics", "/v1/guard", "/v1/calibration"} <= set(api["paths"])


def test_metrics_count_requests_and_images(served: Served) -> None:
    before = served.metric("idness_images_total"), served.metric("idness_ood_images_total")
    served.score(RED, ODD, ODD)
    assert served.metric("idness_images_total") == before[0] + 3
    assert served.metric("idness_ood_images_total") == before[1] + 2
    served.client.get("/made/up/by/a/stranger")
    text = served.client.get("/metrics").text
    assert "stranger" not in text
    assert 'path="other",status="404"' in text
    assert "idness_queue_images 0.0" in text


def test_clients_share_batches_and_each_gets_its_own_answer(shown: Guard) -> None:
    pictures = [png(known(list(COLOURS)[seed % 4], seed)) for seed in range(48)]
    batches: list[int] = []
    counting = shown.model.register_forward_pre_hook(lambda _, inputs: batches.append(len(inputs[0])))
    with running(shown) as served, ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(served.score, pictures))
    counting.remove()
    assert len(batches) < 48
    found = torch.tensor([answer.json()["results"][0]["score"] for answer in answers])
    torch.testing.assert_close(found, shown.judge(*pictures).score, rtol=1e-5, atol=1e-4)


def test_images_of_several_sizes_are_judged_in_one_request(trained: torch.nn.Module) -> None:
    how = Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    guard = Guard(trained, "msp", preprocessing=how)
    guard.calibrate([torch.stack([how(known("red", seed)) for seed in range(30)])])
    images = [png(known("red", seed, side=side)) for seed, side in enumerate((16, 24, 16, 40))]
    with running(guard, batch=4) as served:
        results = served.score(*images).json()["results"]
    scores = [float(guard.judge(image).score) for image in images]
    assert [result["score"] for result in results] == pytest.approx(scores, rel=1e-4)


class Blocked:
    """Blocks the worker inside the network until the block ends."""

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


def test_overload_is_refused_and_accepted_requests_are_answered(shown: Guard) -> None:
    limits = Limits(images=4, queue=6, answer_seconds=20)
    with running(shown, limits, batch=4) as served, ThreadPoolExecutor(4) as pool:
        with Blocked(shown) as blocked:
            accepted = pool.submit(served.score, *[RED] * 4)
            until(blocked.inside.is_set)
            refused = served.score(*[RED] * 3)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert "busy (4 images are waiting)" in error_of(refused)
            also = pool.submit(served.score, *[RED] * 2)
            until(lambda: served.metric("idness_queue_images") == 6)
            assert served.client.get("/healthz").status_code == 200
        assert [accepted.result().status_code, also.result().status_code] == [200, 200]
        assert served.score().status_code == 200


def test_an_answer_that_takes_too_long_is_given_up_and_its_place_freed(shown: Guard) -> None:
    with running(shown, Limits(answer_seconds=0.5), batch=1) as served:
        with Blocked(shown):
            assert served.score().status_code == 504
        until(lambda: served.score().status_code == 200)
        assert served.metric("idness_queue_images") == 0


def test_samples_are_photographs_with_a_role_if_the_network_has_their_classes(served: Served) -> None:
    from idness.data import embedded
    from idness.serve.service import samples

    listed = served.client.get("/v1/samples").json()
    assert {sample["role"] for sample in listed} == {"picture"}
    for name in embedded.NETWORKS:
        assert {role for _, role, *_ in samples(tuple(embedded.classes(name)))} == {"id", "near", "far"}
    image = served.client.get("/v1/samples/0")
    assert image.headers["content-type"] == "image/avif"
    assert Image.open(io.BytesIO(image.content)).size == (224, 224)
    assert served.client.get(f"/v1/samples/{len(listed)}").status_code == 404
