"""Numbers in the README are those of the files under results/."""

from __future__ import annotations

import importlib
import json
import re
import runpy
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]


def test_the_table_is_the_one_that_the_results_give():
    tool = runpy.run_path(str(ROOT / "tools" / "readme_results.py"))
    text = (ROOT / "README.md").read_text()
    assert text.split(tool["START"])[1].split(tool["END"])[0].strip() == tool["table"]()


def test_pictures_are_there_and_the_first_python_example_is_short():
    text = (ROOT / "README.md").read_text()
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(pictures) == 2
    for path in pictures:
        with Image.open(ROOT / path) as picture:
            assert min(picture.size) > 600
    assert len(text.split("```python\n")[1].split("```")[0].strip().splitlines()) < 12


def test_speeds_are_those_that_were_measured():
    text = (ROOT / "README.md").read_text()
    peer = json.loads((ROOT / "results/speed/peer.json").read_text())["rows"]
    small, large = (
        {row["work"].split(",")[0]: round(row["ratio"]) for row in peer if size in row["size"]}
        for size in ("=512", "=2048")
    )
    assert (
        f"SCALE {small['SCALE']} times as fast ({large['SCALE']} times with ImageNet's head), DICE {small['DICE']} times"
        in text
    )
    whole = json.loads((ROOT / "results/speed/whole.json").read_text())["rows"]
    first = {row["network"]: row["ratio"] for row in reversed(whole) if "onnxruntime, all methods" in row["what"]}
    assert f"{first['mobilenet']:.2f} of the time on MobileNetV2, {first['densenet']:.2f} on DenseNet-101" in text
    cost = {
        row["what"]: row["ratio"] for row in json.loads((ROOT / "results/speed/bench_cost.json").read_text())["rows"]
    }
    assert f"takes 1/{int(cost['a pass per method and option'])} of the time" in text
    assert f"and {cost['whole bench: all methods, all options, error bars']:.2f}\n  times the bare passes" in text


def test_goals_are_told_as_they_were_measured(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    goals = importlib.import_module("goals")
    assert (ROOT / "results/speed/goals.md").read_text() == goals.text(goals.GOALS)
