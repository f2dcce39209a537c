"""Numbers in the README are those of the files under results/."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]


def test_the_table_is_the_one_that_the_results_give():
    tool = runpy.run_path(str(ROOT / "tools" / "readme_results.py"))
    text = (ROOT / "README.md").read_text()
    assert text.split(tool["START"])[1].split(tool["END"])[0].strip() == tool["table"]()


def test_screenshots_exist():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(pictures) == 2
    for path in pictures:
        with Image.open(ROOT / path) as picture:
            assert min(picture.size) > 600


def test_the_snippet_prints_what_the_readme_shows(tmp_path):
    text = (ROOT / "README.md").read_text()
    code, shown = text.split("```python\n")[1].split("```\n\n```text\n")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == shown.split("```")[0], done.stderr
    assert list(tmp_path.iterdir()) == []


def test_links_lead_to_files():
    for page in ("README.md", "docs/llms.txt"):
        folder = (ROOT / page).parent
        links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text())
        assert [link for link in links if not (folder / link).exists()] == []


def test_versions_agree():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"| idness {version.rpartition('.')[0]} |" in (ROOT / "README.md").read_text()


def test_gains_and_speeds_are_those_that_were_measured():
    text = " ".join((ROOT / "README.md").read_text().split())
    photos = json.loads((ROOT / "results/bench/photos/results.json").read_text())["methods"]
    mean = {
        name: sum(photos[name]["groups"][group]["auroc"] for group in ("near", "far")) / 2 for name in ("ebo", "scale")
    }
    assert (
        f"SCALE gains {100 * (mean['scale'] - mean['ebo']):.1f} points of mean AUROC over the energy score on photographs"
        in text
    )
    rows = json.loads((ROOT / "results/speed/peer.json").read_text())["rows"]
    ratio = {row["work"].split(",")[0]: round(row["ratio"]) for row in rows if "=512" in row["size"]}
    assert f"SCALE is {ratio['SCALE']} times as fast, DICE {ratio['DICE']} times" in text
    whole = json.loads((ROOT / "results/speed/whole.json").read_text())["rows"]
    first = {row["network"]: row["ratio"] for row in reversed(whole) if "onnxruntime, all methods" in row["what"]}
    assert f"{first['mobilenet']:.2f} of the CPU time of an ordinary eager pass of MobileNetV2" in text


def test_goals_are_told_as_they_were_measured(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    goals = importlib.import_module("goals")
    assert (ROOT / "results/speed/goals.md").read_text() == goals.text(goals.GOALS)
