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
from idness.core.scripts import Script, expect, identity_of

_ENTRIES = TypeAdapter(dict[str, dict[str, str]])


def remember(spec: str) -> None:
    """Note that the user asked for this model, which has been loaded; does nothing for models that are not Python files."""
    script = Script.named(spec)
    if script is None:
        return
    # Without a writable home the user names the model each time, as the error then says.
    with suppress(IdnessError):
        atomic_write(_list(), json.dumps(_known() | {_key(script): script.sources()}, indent=1, sort_keys=True))


def check(spec: str, what: str = "the guard's network", more: str = "", code: str = "") -> str:
    """Refuse a Python file that the user has not asked for before, and give the model with the folder where it lies.

    Files name it without its folder, which is nobody else's business. Of the files of that name that the user has run, it is
    the one of the same code, where that is known, else one in the current folder before others.

    Args:
        spec: the model.
        what: whose network it is, for the message.
        more: what the user names beside the model.
        code: the script's identity, where it is known.
    """
    script = Script.named(spec)
    if script is None:
        return spec
    found = {key: sources for key, sources in _candidates(script).items() if _unchanged(sources)}
    chosen = next(
        (key for key, sources in found.items() if identity_of(script.call, sources) == code), next(iter(found), None)
    )
    if chosen is not None:
        expect(found[chosen])
        return chosen
    if not script.file.is_file() and script.file.parent != Path():
        raise ModelError(f"{what} is made by {spec}, but there is no such file; give model='path/to/file.py:FUNCTION'")
    named = spec if script.file.is_file() else f"path/to/{spec}"
    raise ModelError(
        f"{what} is made by {spec}, a Python file that you have not run with idness in its present form;"
        f" look at it, then name it yourself: model={named!r}{more}"
    )


def _candidates(script: Script) -> dict[str, dict[str, str]]:
    """Give what was run that a script without a folder may be, that of the current folder first; one with a folder is itself."""
    known, here = _known(), _key(script)
    if script.file.parent != Path():
        return {here: known.get(here, {})}
    ending = f"/{script.file.name}:{script.call}"
    return {here: known.get(here, {})} | {key: known[key] for key in known if key.replace(os.sep, "/").endswith(ending)}


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
