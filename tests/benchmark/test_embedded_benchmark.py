from __future__ import annotations

from pathlib import Path

import pytest

from idness.benchmark import Settings, run
from idness.benchmark.results import Report
from idness.detectors.registry import rows


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return run("cifar6", None, Settings(cache=tmp_path_factory.mktemp("cache")))


@pytest.mark.slow
def test_the_embedded_benchmark_runs_without_any_argument(report: Report) -> None:
    assert set(report.methods) == set(rows())
    assert not report.failed
    assert all("nearly the same" in text for text in report.warnings)  # CIFAR-10 has a few of these
    assert report.model.spec == "cifar6:base"
    assert report.id_accuracy is not None
    assert report.id_accuracy > 0.9
    assert {name: info.images for name, info in report.sets.items() if info.role.startswith("id_")} == {
        "id_train": 2000,
        "id_val": 500,
        "id_test": 3000,
    }
    assert report.benchmark.groups["near"] == ["cat", "frog", "ship"]
    assert len(report.benchmark.groups["far"]) == 5
    # A trained network tells digits and drawings from photographs of what it knows.
    assert report.methods["ebo"].groups["far"].auroc > 0.85
    assert report.methods["ebo"].groups["near"].auroc > 0.75


@pytest.mark.slow
def test_no_image_serves_twice_where_it_must_not(report: Report) -> None:
    assert not any(found["images"] for found in report.duplicates)
    validation = {name for name, info in report.sets.items() if info.role == "ood_val"}
    assert validation == {"horse", "groceries"}
    assert not validation & {name for names in report.benchmark.groups.values() for name in names}


@pytest.mark.slow
def test_a_second_run_is_instant_and_equal(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path)
    found = Report.load(tmp_path)
    assert found == report
    assert len(found.thumbs) > 50
