from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "src" / "idness" / "benchmarks" / "cifar6" / "base.safetensors"


@pytest.mark.slow
@pytest.mark.skipif(not WEIGHTS.is_file(), reason="the embedded network is not there")
def test_the_engineers_example_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "engineer.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "guard" / "guard.json").is_file()
    assert (tmp_path / "guard.onnx").is_file()
    assert "flagged" in done.stdout
