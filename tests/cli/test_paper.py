"""The commands that tell of the paper and of a network: reproduce, analyze, doctor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from idness.paper.studies.analyze import STUDIES
from tests.cli.running import idness


def test_reproduce_without_data_names_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    done = idness("reproduce", "cifar10", "--data", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "cifar10: CIFAR-10, each of six OOD sets (Table 8, appendix): not reproduced" in done.stdout
    assert "5.80 / 98.72" in done.stdout  # the paper's own numbers
    assert ["svhn", "cifar10", "64", "MB,"] in [line.split()[:4] for line in done.stdout.splitlines()]
    assert f"SVHN('{tmp_path}', 'test', download=True)" in (tmp_path / "out" / "reproduce.md").read_text()
    assert "wrote reproduce.json, reproduce.md" in done.stderr
    as_json = idness("reproduce", "cifar10", "--data", tmp_path, "--out", tmp_path / "out", "--json", "-q")
    assert json.loads(as_json.stdout)["tables"]["cifar10"]["status"] == "not reproduced"
    assert as_json.stderr == ""


def test_reproduce_refuses_a_table_that_is_not_there() -> None:
    done = idness("reproduce", "cifar-10")
    assert done.returncode == 2
    assert done.stderr.strip() == "idness: unknown table 'cifar-10'; did you mean 'cifar10'?"


def test_analyze_writes_figures_and_prints_a_line_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: STUDIES[name] for name in ("Gaussianity", "Scale ratio")}  # drawing all of them takes long
    monkeypatch.setattr("idness.paper.studies.analyze.STUDIES", few)
    done = idness("analyze", "--limit", "60", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for name in few:
        assert f"\n{name}\n" in done.stdout
    assert "7 degrees of freedom" in done.stdout
    assert "wrote gaussianity.svg" in done.stderr
    assert (tmp_path / "out" / "README.md").is_file()
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {"gaussianity", "ratios", "equal-energy"}


def test_the_doctor_takes_what_the_network_does_not_say(net_spec: str, weights: Path, id_folder: Path) -> None:
    given = ("--data", id_folder, "--size", 12, "--mean", ".5,.4,.3", "--std", ".2,.2,.2", "--limit", 60)
    done = idness("doctor", net_spec, "--weights", weights, *given)
    assert done.returncode == 0, done.stderr
    assert "preprocessing: resize (12, 12)" in done.stderr
    assert "(0.5, 0.4, 0.3), std (0.2, 0.2, 0.2)" in done.stderr
