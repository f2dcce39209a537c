from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_researchers_example_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "researcher.py"), str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "mean AUROC" in done.stdout
    assert "difference" in done.stdout
    written = {"report.html", "results.json", "roc.svg", "roc.png", "scores.safetensors"}
    assert written <= {path.name for path in tmp_path.iterdir()}
