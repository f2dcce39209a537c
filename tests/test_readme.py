"""Numbers in the README are those of the files under results/."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_table_is_the_one_that_the_results_give():
    tool = runpy.run_path(str(ROOT / "tools" / "readme_results.py"))
    text = (ROOT / "README.md").read_text()
    assert text.split(tool["START"])[1].split(tool["END"])[0].strip() == tool["table"]()
