"""Writes `src/idness/methods/catalogue.json`, from which `idness list` answers at once: run it after a method changed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from idness.detectors.catalogue import PLACE, written

PLACE.write_text(written(), encoding="utf-8")
