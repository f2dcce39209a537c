"""Remembers which model files a person has run, so that a guard from elsewhere cannot make us run code.

A guard names its network. Where that is a Python file, loading it runs the file. A file that its user has named on the
command line before is run again unasked, as long as the function, its arguments and the content of the file and of the
neighbours that it imports are the same; any other must be named anew.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from idness.core.errors import IdnessError, ModelError
from idness.core.files import atomic_write, sha256
from idness.core.scripts import Script

_ENTRIES = TypeAdapter(dict[str, dict[str, str]])


def remember(spec: str) -> None:
    """Note that the user asked for this model, which has been loaded; does nothing for models that are not Python files."""
    script = _script(spec)
    if script is None:
        return
    # Without a writable home the user names the model each time, as the error then says.
    with suppress(IdnessError):
        atomic_write(_list(), json.dumps(_known() | {_key(script): script.sources()}, indent=1, sort_keys=True))


def check(spec: str, what: str = "the guard's network", how: str = "") -> None:
    """Refuse a Python file that the user has not asked for before.

    Args:
        spec: the model.
        what: whose network it is, for the message.
        how: how the user names it, where it takes more than the model.
    """
    script = _script(spec, what)
    if script is not None and not _unchanged(_known().get(_key(script), {})):
        raise ModelError(
            f"{what} is made by {spec}, a Python file that you have not run with idness in its present form;"
            f" look at it, then name it yourself: {how or f'model={spec!r}'}"
        )


def _script(spec: str, what: str = "the network") -> Script | None:
    script = Script.named(spec)
    if script is not None and not script.file.is_file():
        raise ModelError(f"{what} is made by {spec}, but there is no such file; give model='path/to/file.py:FUNCTION'")
    return script


def _key(script: Script) -> str:
    return f"{script.file.resolve()}:{script.call}"


def _unchanged(sources: dict[str, str]) -> bool:
    try:
        return bool(sources) and all(sha256(file) == digest for file, digest in sources.items())
    except OSError:
        return False


def _known() -> dict[str, dict[str, str]]:
    """Give what was run, by file and call, with the hash of each file that belongs to it."""
    try:
        return _ENTRIES.validate_json(_list().read_bytes(), strict=True)
    except (OSError, ValidationError):
        return {}


def _list() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "idness" / "models.json"
