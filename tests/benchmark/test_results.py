from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idness.benchmark.results import (
    SCORES,
    THUMBS,
    BenchmarkInfo,
    MethodResult,
    Metrics,
    ModelInfo,
    Report,
    SetInfo,
    Wrong,
)
from idness.core.errors import StoreError
from idness.metrics import NAMES


def metrics(value: float) -> Metrics:
    return Metrics(**dict.fromkeys(NAMES, value), intervals={"auroc": (value - 0.01, value + 0.01)})


def make_report(rows: tuple[str, ...] = ("msp", "scale"), sets: tuple[str, ...] = ("cat", "mnist")) -> Report:
    methods = {
        row: MethodResult(
            method=row,
            label=f"{row}(percentile=85)",
            about="Scores.",
            options={"percentile": 85.0},
            chosen_by="validation",
            validation_auroc=0.9,
            tried=[{"options": {"percentile": 85.0}, "auroc": 0.9}, {"options": {"percentile": 90.0}, "auroc": 0.8}],
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
            "cat": SetInfo(role="near", images=5, source="cat", sha256="cd", skipped=[{"item": "x", "reason": "bad"}])
        },
        id_accuracy=0.94,
        methods=methods,
        wrong={"scale": {"near": [wrong]}},
    )


def test_json_round_trip_and_no_absent_key() -> None:
    report = make_report()
    text = report.to_json()
    assert Report.from_json(text) == report
    assert Report.from_json(text).to_json() == text
    assert next(iter(json.loads(text))) == "schema_version"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 99}, "schema_version 99 is newer than 1; update"),
        ({"methods": 3}, r"\(methods: .*object, got 3\); run"),
    ],
)
def test_damaged_and_other_files_are_reported_by_the_field(change: Any, message: str) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        Report.from_json(json.dumps(json.loads(make_report().to_json()) | change))
    assert "\n" not in str(caught.value)


def test_odd_file_names_survive() -> None:
    report = make_report()
    report.sets["cat"].skipped[0]["item"] = "caf\udce9 ü.png"  # as Python gives a name that is no UTF-8
    assert Report.from_json(report.to_json()).sets["cat"].skipped[0]["item"] == "caf? ü.png"


def test_a_report_of_no_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"contains no results\.json; pass a folder"):
        Report.load(tmp_path)
    with pytest.raises(StoreError, match="save it first"):
        _ = make_report().scores


def with_scores(first: float = 0.0) -> Report:
    report = make_report()
    scores = {
        "scores/msp/cat": np.arange(first, first + 3, dtype=np.float32),
        "index/cat": np.arange(3),
        "predicted/cat": np.zeros(3, np.int64),
    }
    report.attach(scores, {"cat/3": np.zeros((4, 5, 3), np.uint8)})
    return report


def test_scores_and_thumbnails_come_back(tmp_path: Path) -> None:
    report = with_scores()
    assert report.scores.of("msp", "cat").tolist() == [0, 1, 2]
    report.save(tmp_path)
    found = Report.load(tmp_path)
    assert found == report
    assert found.scores.of("msp", "cat").tolist() == [0, 1, 2]
    assert found.scores.index("cat").tolist() == [0, 1, 2]
    assert found.thumbs["cat/3"].shape == (4, 5, 3)
    with pytest.raises(KeyError, match="did you mean"):
        found.scores.of("mps", "cat")
    Report.load(tmp_path).save(tmp_path / "copy")
    assert Report.load(tmp_path / "copy").scores.of("msp", "cat").tolist() == [0, 1, 2]
    make_report().save(tmp_path)
    assert Report.load(tmp_path).thumbs == {}  # an earlier run's do not stay
    assert not Report.load(tmp_path).has_scores


@pytest.mark.parametrize("name", [SCORES, THUMBS])
def test_files_that_are_not_those_of_the_report_are_reported(name: str, tmp_path: Path) -> None:
    with_scores().save(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    found = Report.load(tmp_path)
    with pytest.raises(StoreError, match=f"{name}: is damaged .*sha256.*run the benchmark again"):
        _ = found.scores if name == SCORES else found.thumbs


@pytest.mark.fault(
    "a disk that is really full (no file may grow further) while new results replace old ones",
    does="the old results stay complete and readable by compare; never a mixture",
)
def test_a_disk_that_is_really_full_never_mixes_two_runs(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    with_scores().save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    sizes = sorted(len(content) for content in before.values())
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Nothing fits, then the smallest file, then all but the last byte of the largest.
    for largest in (0, sizes[0], sizes[1], sizes[2] - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, most[1]))
        try:
            with pytest.raises(StoreError, match="cannot write .*; free space"):
                with_scores(first=7.0).save(tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, most)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        assert Report.load(tmp_path).scores.of("msp", "cat").tolist() == [0, 1, 2]
    with_scores(first=7.0).save(tmp_path)
    assert Report.load(tmp_path).scores.of("msp", "cat").tolist() == [7, 8, 9]


def test_notebook_and_table_views() -> None:
    report = make_report()
    text = str(report)
    assert len(text) < 1000
    assert all(row.label in text for row in report.methods.values())
    assert all(name in text for name in report.benchmark.groups)
    pytest.importorskip("pandas")
    frame = report.to_dataframe()
    assert len(frame) == 2 * 4
    assert set(NAMES) <= set(frame.columns)
    found = frame.set_index(["method", "name"]).loc[("msp", "cat")]
    expected = report.methods["msp"].sets["cat"]
    low, high = expected.intervals["auroc"]
    assert tuple(found[["auroc_low", "auroc", "auroc_high"]]) == pytest.approx((low, expected.auroc, high))
    assert frame["fpr_at_id_recall_low"].isna().all()
