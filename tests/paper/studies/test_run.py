from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from idness.benchmark.protocol import Benchmark, Settings
from idness.paper.studies.analyze import STUDIES, analyze

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
    found = analyze(small(), bench, settings=Settings(command="idness analyze small.toml"))
    assert [study.name for study in found.studies] == list(STUDIES)
    for study in found.studies:
        assert not study.line.startswith(("not done", "does not apply")), study.line
        assert study.figures
    written = found.save(tmp_path)
    names = {path.name for path in written}
    drawn = "gaussianity mu-sigma proposition percentiles ratios equal-energy tradeoff ish-weights"
    wanted = {f"{name}.{kind}" for name in drawn.split() for kind in ("svg", "png")}
    assert names == wanted | {"analysis.json", "README.md"}
    numbers = json.loads((tmp_path / "analysis.json").read_text())
    assert numbers["final_relu"] == "ReLU and average pooling"
    assert set(numbers["images"]) == {"id", "cat", "mnist", "textures"}
    assert all(50 <= count <= 60 for count in numbers["images"].values())
    assert set(numbers["analyses"]["Gaussianity"]["sets"]) == {"ID", "cat", "mnist", "textures"}
    text = (tmp_path / "README.md").read_text()
    counts = ", ".join(f"{name} {count}" for name, count in numbers["images"].items())
    assert f"Made by `idness analyze small.toml`. Images: {counts}; at most 1,000 of each set, evenly spaced." in text
    assert numbers["command"] == "idness analyze small.toml"
    for name in (name for name in names if name.endswith(".svg")):
        assert f"]({name})" in text


def test_a_network_without_a_final_relu_says_where_analyses_do_not_apply(bench: Benchmark) -> None:
    found = {study.name: study.line for study in analyze(small(nn.SiLU), bench, limit=20).studies}
    for name in ("Gaussianity", "Mean and variance", "Percentile", "Scale ratio", "ISH"):
        assert found[name].startswith("does not apply"), name
    assert "leads with AUROC" in found["Trade-off"]
