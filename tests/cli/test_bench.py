from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from idness.benchmark.protocol import Benchmark
from idness.benchmark.results import Report
from tests.cli.running import idness
from tests.pictures import world


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world(tmp_path_factory.mktemp("world"))


def bench(place: Path, *more: object, **environment: str) -> subprocess.CompletedProcess[str]:
    words = ("--model", f"{place.parent}/net.py:make", "--weights", place.parent / "weights.safetensors")
    return idness("bench", place, *words, "--cache", place.parent / "cache", *more, cwd=place.parent, **environment)


def test_writes_every_file_prints_tables_and_names_the_files(place: Path) -> None:
    done = bench(place, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    folder = place.parent / "idness-results"
    names = {path.name for path in folder.iterdir() if path.name != ".idness.json"}
    wanted = "results.json results.csv results.md results.tex scores.safetensors thumbs.safetensors report.html"
    assert set(wanted.split()) <= names
    assert "near" in done.stdout
    assert "FPR at 95 %" in done.stdout
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("wrote idness-results/report.html and, in the same folder, ")
    assert all(name in last for name in names)
    assert "preprocessing: mean" in done.stderr
    report = Report.load(folder)
    assert report.answer is not None
    assert " ".join(done.stdout.split()).endswith(f"{report.answer.sentence} {report.answer.cost}")
    assert len(done.stdout.splitlines()) <= 40
    assert "by set" not in done.stdout
    assert str(place.parent) not in (folder / "results.json").read_text()
    assert report.provenance["command"].startswith("idness bench mine.toml --model net.py:make")


def test_json_is_the_only_thing_on_standard_output(place: Path) -> None:
    done = bench(place, "--json", "--quiet", "--methods", "ebo,scale(percentile=90)", "--out", "other")
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["schema_version"] == 1
    assert list(found["methods"]) == ["ebo", "scale(percentile=90)"]
    assert found["methods"]["scale(percentile=90)"]["chosen_by"] == "given"
    assert (place.parent / "other" / "results.json").read_text() == done.stdout


def test_template(tmp_path: Path) -> None:
    done = idness("bench", "--init", "mine.toml", cwd=tmp_path)
    assert done.returncode == 0
    assert "wrote mine.toml" in done.stderr
    assert Benchmark.load(tmp_path / "mine.toml").class_names == ("first", "second", "third")
    again = idness("bench", "--init", "mine.toml", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists" in again.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--methods", "scal"), "did you mean 'scale'"),
        (("--precision", "fp8"), "precision must be one of"),
        (("--fpr", "95"), "fpr must be"),
        (("--batch-size", "0"), "greater than or equal to 1"),
        (("--data", "nowhere"), "--data nowhere does not exist"),
        (("--data", "net.py"), "--data net.py is not a folder"),
        (("--device", "abacus"), "device must be"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(place: Path, words: tuple[str, ...], message: str) -> None:
    done = bench(place, *words)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_detector_of_a_file_is_a_row(place: Path) -> None:
    folder = place.parent
    (folder / "my_file.py").write_text(
        "from dataclasses import dataclass\n\nfrom idness.detectors.detector import Detector\n\n\n@dataclass\n"
        "class MyDetector(Detector):\n    def rate(self, acts):\n        return acts.logits.amax(dim=1)\n"
    )
    done = bench(place, "--methods", f"mls,{folder}/my_file.py:MyDetector", "--out", "own")
    assert done.returncode == 0, done.stderr
    found = Report.load(folder / "own")
    assert list(found.methods) == ["mls", "mydetector"]
    assert found.methods["mydetector"].groups["near"].auroc == found.methods["mls"].groups["near"].auroc
    assert str(folder) not in (folder / "own" / "results.json").read_text()


def test_a_run_that_is_stopped_goes_on_where_it_was(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    words = ("--methods", "ebo", "--cache", place.parent / "stopped", "--out", "stopped-results")
    with monkeypatch.context() as patch:
        patch.setattr("idness.benchmark.runner.choose", stop)
        assert bench(place, *words).returncode == 130
    assert not (place.parent / "stopped-results").exists()
    assert bench(place, *words).returncode == 0
    assert Report.load(place.parent / "stopped-results").time["images"] == 0  # all are in the store
