from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from idness.benchmark.protocol import Benchmark
from idness.core.errors import ModelError
from idness.paper.studies.analyze import STUDIES, analyze
from idness.report.style import figure_svg
from idness.selection.doctor import diagnose

BENCH = """
classes = ["airplane", "automobile", "bird", "deer", "dog", "truck"]
[preprocessing]
mean = [0.4914, 0.4822, 0.4465]
std = [0.2023, 0.1994, 0.2010]
[id]
train = { path = "embedded:id_train", sample = 60 }
val = { path = "embedded:id_val", sample = 60 }
test = { path = "embedded:id_test", sample = 60 }
[ood_val]
horse = { path = "embedded:horse", sample = 60 }
[near]
cat = { path = "embedded:cat", sample = 60 }
[far]
mnist = { path = "embedded:mnist", sample = 60 }
textures = { path = "embedded:textures", sample = 60 }
"""
NETWORK = """
from torch import nn


def make():
    return nn.Sequential(
        nn.Conv2d(3, 160, 5, stride=4), nn.BatchNorm2d(160), nn.{end}(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(160, 6)
    )
"""


def small(end: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 160, 5, stride=4),
        nn.BatchNorm2d(160),
        end(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(160, 6),
    ).eval()


@pytest.fixture(scope="module")
def bench() -> Benchmark:
    return Benchmark.from_text(BENCH, "small")


@pytest.mark.timeout(900)
def test_every_analysis_speaks_and_draws(bench: Benchmark, tmp_path: Path) -> None:
    found = analyze(small(), bench)
    assert [study.name for study in found.studies] == list(STUDIES)
    for study in found.studies:
        assert not study.line.startswith(("not done", "does not apply")), study.line
        assert study.figures
    written = found.save(tmp_path)
    names = {path.name for path in written}
    assert {
        "gaussianity.svg",
        "moments.png",
        "mu-sigma.svg",
        "proposition.svg",
        "percentiles.svg",
        "ratios.svg",
    } <= names
    assert {"tradeoff.svg", "ish-weights.svg", "ish-images.png", "analysis.json", "README.md"} <= names
    numbers = json.loads((tmp_path / "analysis.json").read_text())
    assert numbers["final_relu"] == "ReLU and average pooling"
    assert set(numbers["images"]) == {"id", "cat", "mnist", "textures"}
    assert all(50 <= count <= 60 for count in numbers["images"].values())
    assert set(numbers["analyses"]["Gaussianity"]["sets"]) == {"ID", "cat", "mnist", "textures"}
    text = (tmp_path / "README.md").read_text()
    for name in (name for name in names if name.endswith(".svg")):
        assert f"]({name})" in text
    again = [study.figures for study in analyze(small(), bench, limit=60).studies[:2]]
    for name, (figure, alt) in (item for figures in again for item in figures.items()):
        assert figure_svg(figure, alt=alt, adaptive=False) in (tmp_path / f"{name}.svg").read_text()


def test_a_network_without_a_final_relu_says_where_analyses_do_not_apply(bench: Benchmark) -> None:
    found = {study.name: study.line for study in analyze(small(nn.SiLU), bench, limit=20).studies}
    for name in ("Gaussianity", "Mean and variance", "Percentile", "Scale ratio", "ISH"):
        assert found[name].startswith("does not apply"), name
    assert "leads with AUROC" in found["Trade-off"]


def test_the_doctor_looks_at_folders(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NETWORK.format(end="ReLU").replace("return nn", "net = nn") + PREPROCESSED)
    save_file(small().state_dict(), tmp_path / "w.safetensors")
    how: dict[str, Any] = {"weights": tmp_path / "w.safetensors", "limit": 80}
    measured = diagnose(f"{tmp_path / 'net.py'}:make", "embedded:id_val", "embedded:mnist", **how)
    names = {finding.name: finding for finding in measured.findings}
    assert names["final layer"].text == "the features come out of ReLU and average pooling"
    assert "measured on your OOD images" in names
    alone = diagnose(f"{tmp_path / 'net.py'}:make", "embedded:id_val", **how)
    assert "measured on shuffled ID images" in {finding.name for finding in alone.findings}


def test_without_weights_or_images_the_doctor_judges_the_structure(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text(NETWORK.format(end="SiLU"))
    save_file(small().state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(ModelError, match=r"model\.preprocessing"):
        diagnose(f"{tmp_path / 'bare.py'}:make", "embedded:id_val", weights=tmp_path / "w.safetensors")
    structure = diagnose(f"{tmp_path / 'bare.py'}:make", weights="none")
    assert not structure.suits
    assert structure.method == "gen"
    assert "silu, no ReLU" in next(finding.text for finding in structure.findings if finding.name == "final layer")
    (tmp_path / "good.py").write_text(NETWORK.format(end="ReLU6"))
    assert diagnose(f"{tmp_path / 'good.py'}:make", "embedded:id_val", weights="none").suits


def test_the_embedded_network_is_told_apart() -> None:
    """SCALE does not help the network that ships with idness; the doctor must say so from ID images alone."""
    found = diagnose("cifar6:base", limit=300)
    assert not found.suits
    assert found.method == "gen"
    assert "shuffled" in found.why
    assert {finding.name: finding.good for finding in found.findings}["final layer"] is True


PREPROCESSED = """
    net.preprocessing = {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2], "resize": [32, 32]}
    return net
"""
