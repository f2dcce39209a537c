"""Remembers which model files a person has run, so that a guard from elsewhere cannot make us run code.

A guard names its network. Where that is a Python file, loading it runs the file. A file that its user has named on the
command line before is run again unasked, as long as its content is the same; any other must be named anew.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from idness.core.errors import IdnessError, ModelError
from idness.core.files import atomic_write, sha256_of


def remember(spec: str) -> None:
    """Note that the user asked for this model; does nothing for models that are not Python files."""
    key = _key(spec)
    if key is None or key in _known():
        return
    # Without a writable home the user names the model each time, as the error then says.
    with suppress(IdnessError):
        atomic_write(_list(), json.dumps(sorted(_known() | {key}), indent=1))


def check(spec: str) -> None:
    """Refuse a Python file that the user has not asked for before."""
    key = _key(spec)
    if key is not None and key not in _known():
        raise ModelError(
            f"the guard's network is made by {spec}, a Python file that you have not run with idness in its present form;"
            f" look at it, then name it yourself: model={spec!r}"
        )


def _key(spec: str) -> str | None:
    source = spec.rpartition(":")[0]
    if not source.endswith(".py"):
        return None
    file = Path(source).resolve()
    if not file.is_file():
        raise ModelError(
            f"the guard's network is made by {spec}, but there is no such file; give model='path/to/file.py:FUNCTION'"
        )
    return sha256_of((f"{file}\n", file.read_bytes()))


def _known() -> set[str]:
    try:
        return set(json.loads(_list().read_text()))
    except (OSError, ValueError):
        return set()


def _list() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "idness" / "models.json"
