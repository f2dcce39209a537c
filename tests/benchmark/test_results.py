from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idness.benchmark.results import (
    METRICS,
    BenchmarkInfo,
    MethodResult,
    Metrics,
    ModelInfo,
    Report,
    SetInfo,
    Skipped,
    Sweep,
    Trial,
    Wrong,
)
from idness.core.errors import StoreError


def metrics(value: float) -> Metrics:
    return Metrics(**dict.fromkeys(METRICS, value), intervals={"auroc": (value - 0.01, value + 0.01)})


def make_report(rows: tuple[str, ...] = ("msp", "scale"), sets: tuple[str, ...] = ("cat", "mnist")) -> Report:
    methods = {
        row: MethodResult(
            method=row,
            label=f"{row}(percentile=85)",
            about="Scores.",
            options={"percentile": 85.0},
            chosen_by="validation",
            validation_auroc=0.9,
            tried=[Trial(options={"percentile": 85.0}, auroc=0.9), Trial(options={"percentile": 90.0}, auroc=0.8)],
            id_accuracy_shaped=0.93,
            seconds={"fit": 0.1, "search": 0.2, "score": 0.3},
            sets={name: metrics(0.9 + place / 100 + number / 1000) for number, name in enumerate(sets)},
            groups={"near": metrics(0.9 + place / 100), "far": metrics(0.95 - place / 100)},
        )
        for place, row in enumerate(rows)
    }
    wrong = Wrong(set="cat", index=3, item="<b>.png", score=1.5, label=None, predicted=2)
    return Report(
        benchmark=BenchmarkInfo(
            name="tiny", title="A tiny one", classes=["a", "b"], groups={"near": list(sets[:1]), "far": list(sets[1:])}
        ),
        model=ModelInfo(
            spec="net", weights=None, weights_sha256="ab", layer="fc", features=4, classes=2, parameters=10
        ),
        preprocessing={"resize": None},
        precision={"asked": "fp32", "used": "fp32", "why": "as asked"},
        sets={
            "cat": SetInfo(role="near", images=5, source="cat", sha256="cd", skipped=[Skipped(item="x", reason="bad")])
        },
        id_accuracy=0.94,
        methods=methods,
        sweep=Sweep(percentiles=[0.0], auroc={"scale": {"near": [0.5]}}, ebo={"near": 0.5}),
        wrong={"scale": {"near": [wrong]}},
    )


def test_json_round_trip_and_no_absent_key() -> None:
    report = make_report()
    text = report.to_json()
    assert Report.from_json(text) == report
    assert Report.from_json(text).to_json() == text
    assert next(iter(json.loads(text))) == "schema_version"


def valid(value: Any, schema: dict[str, Any]) -> bool:
    """Check the part of JSON Schema that ours uses."""
    if "anyOf" in schema:
        return any(valid(value, option) for option in schema["anyOf"])
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": int | float,
        "null": type(None),
        "boolean": bool,
    }
    if "type" in schema and not isinstance(value, kinds[schema["type"]]):
        return False
    if isinstance(value, dict):
        inner = schema.get("properties", {})
        rest = schema.get("additionalProperties", {})
        return all(name in value for name in schema.get("required", [])) and all(
            valid(item, inner.get(key, rest)) for key, item in value.items()
        )
    if isinstance(value, list):
        parts = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
        return len(parts) == len(value) and all(valid(item, part) for item, part in zip(value, parts, strict=True))
    return True


def test_what_is_written_fits_the_schema() -> None:
    schema = Report.schema()
    written = json.loads(make_report().to_json())
    assert valid(written, schema)
    del written["methods"]["msp"]["sets"]["cat"]["auroc"]
    assert not valid(written, schema)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found | {"schema_version": 99}, "newer than 1; update"),
        (lambda found: {key: found[key] for key in found if key != "schema_version"}, "no schema_version"),
        (lambda found: found | {"methods": 3}, "is damaged"),
        (lambda found: {key: found[key] for key in found if key != "model"}, "is damaged"),
    ],
)
def test_foreign_and_damaged_files_are_told(change: Any, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        Report.from_json(json.dumps(change(json.loads(make_report().to_json()))))


def test_no_json_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no JSON"):
        Report.from_json("{")
    with pytest.raises(StoreError, match="holds no results.json"):
        Report.load(tmp_path)
    with pytest.raises(StoreError, match="save it first"):
        _ = make_report().scores


def test_unknown_keys_of_a_later_minor_version_are_ignored() -> None:
    found = json.loads(make_report().to_json()) | {"mood": "fine"}
    assert Report.from_json(json.dumps(found)) == make_report()


def test_scores_and_thumbnails_come_back(tmp_path: Path) -> None:
    report = make_report()
    scores = {
        "scores/msp/cat": np.arange(3, dtype=np.float32),
        "index/cat": np.arange(3),
        "predicted/cat": np.zeros(3, np.int64),
    }
    report.attach(scores, {"cat/3": np.zeros((4, 5, 3), np.uint8)})
    assert report.scores.of("msp", "cat").tolist() == [0, 1, 2]
    report.save(tmp_path)
    found = Report.load(tmp_path)
    assert found == report
    assert found.scores.of("msp", "cat").tolist() == [0, 1, 2]
    assert found.scores.index("cat").tolist() == [0, 1, 2]
    assert found.scores.labels("cat") is None
    assert found.thumbs["cat/3"].shape == (4, 5, 3)
    with pytest.raises(KeyError, match="did you mean"):
        found.scores.of("mps", "cat")
    make_report().save(tmp_path)
    assert Report.load(tmp_path).thumbs == {}  # an earlier run's do not stay


def test_notebook_and_table_views() -> None:
    report = make_report(rows=("<script>",))
    assert "<script>" not in report._repr_html_()
    pytest.importorskip("pandas")
    frame = make_report().to_dataframe()
    assert len(frame) == 2 * 4
    assert set(METRICS) <= set(frame.columns)
