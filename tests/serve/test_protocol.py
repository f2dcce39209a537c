"""The Open Inference Protocol, exported guards, and the documented container."""

from __future__ import annotations

import base64
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from colour_world import HOW, known, known_tensors, ood_picture

from idness.guard import Guard
from idness.guard.onnx import GraphGuard

pytest.importorskip("fastapi")
pytest.importorskip("onnxruntime")
from idness.serve import Limits
from tests.serve.serving import ODD, RED, Served, error_of, running, until

ROOT = Path(__file__).resolve().parents[2]
INFER = "/v2/models/guard/infer"
PICTURES = [known("red", 3), ood_picture(2)]
INPUTS = np.stack([HOW.normalize_array(np.array(HOW.pixels(picture))) for picture in PICTURES])

TEXT = [base64.b64encode(content).decode() for content in (RED, ODD)]
FILES = {"name": "images", "datatype": "BYTES", "shape": [2], "data": TEXT}


@pytest.fixture(scope="module")
def graph(shown: Guard, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shown.to_onnx(tmp_path_factory.mktemp("graph") / "guard.onnx")


@pytest.fixture(scope="module", params=["torch", "onnx"])
def served(request: pytest.FixtureRequest, shown: Guard, graph: Path) -> Iterator[Served]:
    guard: Any = shown if request.param == "torch" else GraphGuard(graph)
    with running(guard, Limits(images=4, queue=8)) as found:
        yield found


def tensor(name: str, data: Any, kind: str = "FP32") -> dict[str, Any]:
    values = np.asarray(data)
    return {"name": name, "datatype": kind, "shape": list(values.shape), "data": values.ravel().tolist()}


def outputs(answer: httpx.Response) -> dict[str, list[Any]]:
    assert answer.status_code == 200, answer.text
    return {output["name"]: output["data"] for output in answer.json()["outputs"]}


def test_metadata_and_health(served: Served) -> None:
    get = served.client.get
    assert get("/v1/guard").json()["method"] == "scale(percentile=85)"
    info = get("/v1/calibration").json()
    assert (sum(info["counts"]), len(info["quantiles"])) == (200, 200)
    assert get("/v1/guard").json()["thresholds"]["0.95"][0] == pytest.approx(info["quantiles"][9])
    assert get("/v2").json()["extensions"] == ["binary_tensor_data"]
    assert all(get(f"/v2/health/{state}").json()[state] is True for state in ("live", "ready"))
    assert get("/v2/models/guard/ready").json() == {"name": "guard", "ready": True}
    about = get("/v2/models/guard").json()
    assert about["inputs"] == [{"name": "images", "datatype": "FP32", "shape": [-1, 3, 16, 16]}]
    assert [entry["name"] for entry in about["outputs"]] == ["label", "score", "p_value", "is_ood"]
    assert "unknown model 'x'" in error_of(get("/v2/models/x"))


def test_tensors_and_files_get_the_same_verdicts(served: Served, shown: Guard) -> None:
    wanted = shown.judge(*PICTURES)
    for entry in (tensor("images", INPUTS), FILES):
        answer = served.client.post(INFER, json={"id": "7", "inputs": [entry]})
        found = outputs(answer)
        assert (answer.json()["id"], answer.json()["model_name"]) == ("7", "guard")
        assert found["score"] == pytest.approx(wanted.score.tolist(), rel=1e-3)
        assert found["is_ood"] == [False, True]
        assert found["label"] == wanted.label.tolist()
    only = {"inputs": [tensor("images", INPUTS)], "outputs": [{"name": "p_value"}]}
    assert list(outputs(served.client.post(INFER, json=only))) == ["p_value"]


def test_binary_tensors(served: Served, shown: Guard) -> None:
    packed = b"".join(struct.pack("<I", len(content)) + content for content in (RED, ODD))
    for kind, shape, blob in (("FP32", [2, 3, 16, 16], INPUTS.tobytes()), ("BYTES", [2], packed)):
        entry = {"name": "images", "datatype": kind, "shape": shape, "parameters": {"binary_data_size": len(blob)}}
        head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
        answer = served.client.post(INFER, content=head + blob, headers=headers)
        cut = int(answer.headers["Inference-Header-Content-Length"])
        found, rest = json.loads(answer.content[:cut])["outputs"], answer.content[cut:]
        assert [output["parameters"]["binary_data_size"] for output in found] == [16, 8, 8, 2]
        assert np.frombuffer(rest[16:24], "<f4") == pytest.approx(shown.judge(*PICTURES).score.tolist(), rel=1e-3)
        assert np.frombuffer(rest[-2:], "?").tolist() == [False, True]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ([], 400, "must be JSON with the input 'images'"),
        ({"inputs": [tensor("pictures", INPUTS)]}, 400, "'images'"),
        ({"inputs": [tensor("images", INPUTS) | {"shape": [7]}]}, 400, "'images'"),
        ({"inputs": [tensor("images", INPUTS, "INT8")]}, 422, "FP32, or BYTES"),
        ({"inputs": [tensor("images", INPUTS[:, :, :10])]}, 422, "must have the shape [-1, 3, 16, 16]"),
        ({"inputs": [tensor("images", INPUTS[:, 0])]}, 422, "must have the shape"),
        ({"inputs": [tensor("images", np.repeat(INPUTS, 3, axis=0))]}, 413, "1 to 4 images, got 6"),
        ({"inputs": [tensor("images", INPUTS)], "outputs": [{"name": "x"}]}, 422, "unknown output 'x'"),
        ({"inputs": [FILES | {"data": [*TEXT, "?"]}]}, 422, "image 3: is not valid base64"),
    ],
)  # fmt: skip
def test_wrong_requests_are_refused_in_one_line(served: Served, body: Any, status: int, said: str) -> None:
    answer = served.client.post(INFER, json=body)
    assert answer.status_code == status
    assert said in error_of(answer)


@pytest.mark.parametrize("per_class", [False, True])
def test_the_graph_takes_a_threshold(shown: Guard, tmp_path: Path, per_class: bool) -> None:
    guard = Guard(shown.split, "msp", preprocessing=HOW).calibrate([known_tensors(200)[0]], 0.9, per_class=per_class)
    exported = GraphGuard(guard.to_onnx(tmp_path / "guard.onnx"))
    plain = exported.session.run(None, {"images": INPUTS})
    assert plain[3].tolist() == guard(known_tensors(1)[0].new_tensor(INPUTS)).is_ood.tolist()
    for limit, flags in ((1e9, [True, True]), (-1e9, [False, False])):
        given = {"images": INPUTS, "threshold": np.full(4 if per_class else 1, limit, np.float32)}
        assert exported.session.run(None, given)[3].tolist() == flags


def test_the_documented_container_starts_in_an_empty_home(graph: Path, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    [file] = re.findall(r"<!-- file: Containerfile -->\n```text\n(.*?)```", text, re.DOTALL)
    command = json.loads(re.search(r"^CMD (\[.+\])$", file, re.MULTILINE)[1])  # type: ignore[index]
    health = re.search(r"^HEALTHCHECK CMD python -c \"(.+)\"$", file, re.MULTILINE)[1]  # type: ignore[index]
    [copied] = re.findall(r"^COPY (guard\S*) (\S+)$", file, re.MULTILINE)
    assert copied[1] in command
    (tmp_path / "srv").mkdir()
    (tmp_path / "home").mkdir()
    place = tmp_path / "srv" / Path(copied[1]).name
    place.write_bytes(graph.read_bytes())
    port = "18473"
    words = [{copied[1]: str(place), "8000": port}.get(word, word) for word in command]
    # A torch that cannot be imported shows that the container's process does without.
    (tmp_path / "no_torch" / "torch").mkdir(parents=True)
    (tmp_path / "no_torch" / "torch" / "__init__.py").write_text("raise ImportError('torch is not needed')")
    path = f"{tmp_path / 'no_torch'}{os.pathsep}{ROOT / 'src'}"
    environment = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"], "PYTHONPATH": path}
    environment["IDNESS_API_KEY"] = "0123456789abcdef"
    assert words[0] == "idness"
    process = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=tmp_path / "srv", env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        check = [sys.executable, "-c", health.replace("8000", port)]
        until(
            lambda: (
                process.poll() is not None or subprocess.run(check, capture_output=True, check=False).returncode == 0
            )
        )
        assert process.poll() is None, process.stderr and process.stderr.read()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"X-API-Key": "0123456789abcdef"}) as client:
            answer = client.post("/v1/score", files=[("images", RED), ("images", ODD)])
            assert [result["is_ood"] for result in answer.json()["results"]] == [False, True]
            assert client.get("/v2/models/guard/ready").status_code == 200
    finally:
        process.terminate()
        assert process.wait(20) == 0
        assert process.stderr is not None
        process.stderr.close()
