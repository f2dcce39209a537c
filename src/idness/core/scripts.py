"""User scripts: objects in a Python file, such as `file.py:make(width=2)`, and the list of files that are approved to run.

A file runs if the user names it. A guard or a run folder also names its network; a Python file named there runs only if the user has
previously named the same file, with the same content, function and arguments.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from idness.core.errors import IdnessError, ModelError, ScriptError
from idness.core.files import atomic_write, key_of, sha256
from idness.core.options import read_options

CALL = re.compile(r"(.+\.py):\s*([^\W\d]\w*)\s*(?:\((.*)\))?\s*", re.DOTALL)
MODULE = "idness_user_"
"""Prefix of the module names of user scripts."""


@dataclass(frozen=True)
class Script:
    """An object of a Python file, and the arguments to call it with."""

    file: Path
    name: str
    arguments: str

    @classmethod
    def named(cls, text: str) -> Script | None:
        """Read `file.py:NAME` or `file.py:NAME(argument=value, ...)`; return `None` for any other text."""
        match = CALL.fullmatch(text)
        return None if match is None else cls(Path(match[1]).expanduser(), match[2], (match[3] or "").strip())

    def __str__(self) -> str:
        return f"{self.file}:{self.call}"

    @property
    def call(self) -> str:
        """The object and its arguments, as the user wrote them."""
        return f"{self.name}({self.arguments})" if self.arguments else self.name

    @property
    def key(self) -> str:
        """The call, preceded by the file's absolute path."""
        return f"{self.file.resolve()}:{self.call}"

    @property
    def options(self) -> dict[str, Any]:
        """The arguments by name."""
        return read_options(self.arguments, str(self))

    def load(self) -> Any:
        """Run the file and return the object."""
        file = self.file.resolve()
        try:
            content = file.read_bytes()
        except OSError as error:
            raise ScriptError(f"no file at {self.file} ({error.strerror}); write path/to/file.py:NAME") from error
        module = ModuleType(f"{MODULE}{file.stem}")
        module.__file__ = str(file)
        sys.modules[module.__name__] = module  # dataclasses look their module up there
        with _importing_from(file):
            try:
                exec(compile(content, str(file), "exec"), vars(module))
            except Exception as error:
                raise ScriptError(f"{self.file}: cannot be imported; it {_failure(file, error)}") from error
        if not hasattr(module, self.name):
            offered = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
            raise ScriptError(f"{self.file}: has no {self.name!r}; it has {', '.join(offered) or 'nothing to call'}")
        return getattr(module, self.name)

    def make(self, kind: type) -> Any:
        """Run the file, call the object with the arguments, and return the result; an instance of `kind` is returned as it is."""
        options = self.options  # read before the file runs
        with _importing_from(self.file):
            found = self.load()
            if isinstance(found, kind) and not options:
                return found
            if not callable(found):
                raise ScriptError(f"{self}: must be callable, got {type(found).__name__}")
            try:
                return found(**options)
            except Exception as error:
                raise ScriptError(f"{self}: {_failure(self.file, error)}") from error

    def identity(self) -> str:
        """Return a hash of the call and the file's content, independent of the folder."""
        return key_of(self.call, sha256(self.file))


def approve(spec: str) -> None:
    """Remember that the user named this model; do nothing for models that are not Python files."""
    script = Script.named(spec)
    if script is None:
        return
    # Without a writable home folder, the user has to name the model each time; the error then says how.
    with suppress(IdnessError):
        entry = {script.key: sha256(script.file)}
        atomic_write(_approvals_file(), json.dumps(_approvals() | entry, indent=1, sort_keys=True))


def approved(spec: str, what: str = "the guard's network", more: str = "", code: str = "") -> str:
    """Return a model with its file's folder; raise for a Python file that the user has not named before.

    Guards name a file without its folder. Among the approved files of that name, the one with the identity `code` is preferred, if
    known, then the one in the current folder. `what` and `more` are for the message: whose network it is, and what else to pass.
    """
    script = Script.named(spec)
    if script is None:
        return spec
    known, bare = _approvals(), script.file.parent == Path()
    alike = [key for key in known if bare and key.replace(os.sep, "/").endswith(f"/{script.file.name}:{script.call}")]
    present = [one for key in (script.key, *alike) if (one := Script.named(key)) and one.file.is_file()]
    found = [one for one in present if sha256(one.file) == known.get(one.key)]
    if found:
        return next((one for one in found if code and one.identity() == code), found[0]).key
    if not present and (alike or not bare):
        raise ModelError(f"{what} is created by {spec}, which does not exist; pass model='path/to/file.py:FUNCTION'")
    why = "that you have not run with idness in its present form; read it, then pass"
    named = present[0].key if present else f"path/to/{spec}"
    raise ModelError(f"{what} is created by {spec}, a Python file {why} model={named!r}{more}")


def _approvals() -> dict[str, Any]:
    """Return the approved calls, each with the hash of its file; empty if the list is missing or damaged."""
    try:
        return dict(json.loads(_approvals_file().read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


def _approvals_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "idness" / "models.json"


@contextmanager
def _importing_from(path: Path) -> Iterator[None]:
    """Allow imports from this file's folder while the block runs, as `python file.py` does."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


def _failure(file: Path, error: Exception) -> str:
    """Return a description of an error and the line of the file that raised it."""
    steps = traceback.extract_tb(error.__traceback__)
    lines = [f" at line {step.lineno}" for step in steps if step.filename == str(file.resolve())]
    return f"fails{lines[-1] if lines else ''} with {type(error).__name__}: {error}"
