"""Stored values of the golden suite: how they are normalised, written, read and compared."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

STORED = Path(__file__).resolve().parent / "stored"

VOLATILE = {
    "seconds", "time", "peak_memory", "provenance", "files", "versions", "command", "engine", "precision", "cost", "code",
    "version", "gain", "schema_version",
}  # fmt: skip
"""Keys whose values depend on the machine, the time, or the installed versions."""

COARSE = re.compile(r"fpr_at_|accepted|accuracy|rejected|share")
"""Shares of images: each image whose score lies at the threshold moves them by a step of 1/500, and on other processors two may."""


def normalised(value: Any, folder: Path | None = None) -> Any:
    """Return a JSON value without volatile fields; sentences become `<text>`, folders `<folder>`, floats six digits."""
    if isinstance(value, dict):
        return {str(key): normalised(part, folder) for key, part in value.items() if key not in VOLATILE}
    if isinstance(value, list | tuple):
        return [normalised(part, folder) for part in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if isinstance(value, str):
        value = value.replace(str(folder), "<folder>") if folder else value
        return value if " " not in value or re.fullmatch(r"[\w.-]+\(.*\)", value) else "<text>"
    return value


def differences(stored: Any, found: Any, path: str = "") -> list[str]:
    """Return one line for each value that differs by more than its tolerance."""
    if isinstance(stored, dict) and isinstance(found, dict):
        lines = [f"{path}.{key}: missing" for key in stored.keys() - found.keys()]
        lines += [f"{path}.{key}: new" for key in found.keys() - stored.keys()]
        for key in sorted(stored.keys() & found.keys()):
            lines += differences(stored[key], found[key], f"{path}.{key}")
        return lines
    if isinstance(stored, list) and isinstance(found, list):
        if len(stored) != len(found):
            return [f"{path}: {len(stored)} entries -> {len(found)}: {_short(stored)} -> {_short(found)}"]
        if path.startswith("scores."):
            return _scores(stored, found, path)
        pairs = zip(stored, found, strict=True)
        return [line for row, pair in enumerate(pairs) for line in differences(*pair, f"{path}[{row}]")]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (stored, found))
    if numbers and not (isinstance(stored, int) and isinstance(found, int)):
        allowed = 4.1e-3 if COARSE.search(path) else 2e-4
        same = math.isclose(stored, found, rel_tol=1e-4, abs_tol=allowed)
    else:
        same = stored == found and type(stored) is type(found)
    return [] if same else [f"{path}: {_short(stored)} -> {_short(found)}"]


def _scores(stored: list[float], found: list[float], path: str) -> list[str]:
    """Compare the scores of one method on one set, in standard deviations.

    Methods that count (histograms, ranks) jump where a feature lies at a border; so a few images may be off by 0.02.
    """
    old, new = np.asarray(stored, np.float64), np.asarray(found, np.float64)
    off = abs(new - old) / max(old.std(), 1e-6 * abs(old).max(), 1e-12)
    if np.quantile(off, 0.8) <= 1e-4 and off.max() <= 2e-2:
        return []
    worst = int(off.argmax())
    return [f"{path}: up to {off.max():.2g} standard deviations off, {old[worst]:.6g} -> {new[worst]:.6g}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else text[:97] + "..."


def read(name: str) -> Any:
    return json.loads((STORED / f"{name}.json").read_text(encoding="utf-8"))


def write(name: str, value: Any) -> None:
    STORED.mkdir(exist_ok=True)
    (STORED / f"{name}.json").write_text(_layout(value) + "\n", encoding="utf-8")


def _layout(value: Any, indent: str = "") -> str:
    """Return JSON with sorted keys; what fits on one line of 160 characters is on one line."""
    line = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(indent) + len(line) <= 160 or not isinstance(value, dict | list):
        return line
    inner = indent + " "
    if isinstance(value, list):
        if not isinstance(value[0], dict | list):
            return line
        parts, ends = [_layout(part, inner) for part in value], "[]"
    else:
        parts, ends = [f"{json.dumps(key)}: {_layout(value[key], inner)}" for key in sorted(value)], "{}"
    return ends[0] + ",".join(f"\n{inner}{part}" for part in parts) + f"\n{indent}{ends[1]}"
