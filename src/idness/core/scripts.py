"""Reads what a person names in a Python file of theirs, such as `file.py:make(width=2)`.

A file can import its neighbours, as it could if it were run: its folder is on the path while it loads. What was run is
known by its content, neighbours included.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from idness.core.errors import OptionError, ScriptError
from idness.core.files import key_of, sha256_of
from idness.core.method_text import read_options

CALL = re.compile(r"(.+\.py):\s*([^\W\d]\w*)\s*(?:\((.*)\))?\s*", re.DOTALL)
MODULE = "idness_user_"
"""What stands before the file's name in that of its module."""

_run: dict[Path, dict[str, str]] = {}
"""The files that each script consists of, itself first, each with the hash of what was run."""
_imported: dict[str, ModuleType] = {}
"""The neighbours that scripts have imported."""
_read: dict[str, str] = {}
"""The hash of each neighbour as it was run."""
_expected: dict[str, str] = {}
"""Files that were checked and have not run yet, with the hash that they must have."""


@dataclass(frozen=True)
class Script:
    """Names an object of a Python file, and the arguments to call it with."""

    file: Path
    name: str
    arguments: str

    @classmethod
    def named(cls, text: str) -> Script | None:
        """Read `file.py:NAME` or `file.py:NAME(argument=value, ...)`; none where the text is something else."""
        match = CALL.fullmatch(text)
        return None if match is None else cls(Path(match[1]).expanduser(), match[2], (match[3] or "").strip())

    def __str__(self) -> str:
        return f"{self.file}:{self.call}"

    @property
    def call(self) -> str:
        """The object and its arguments, as they were written."""
        return f"{self.name}({self.arguments})" if self.arguments else self.name

    @property
    def options(self) -> dict[str, Any]:
        """The arguments by name."""
        try:
            return read_options(self.arguments, str(self))
        except OptionError as error:
            raise ScriptError(
                f"arguments are written as {self.file.name}:{self.name}(argument=value, ...), got {str(self)!r}"
            ) from error

    def load(self) -> Any:
        """Run the file and give the object."""
        module = _module(self.file)
        if not hasattr(module, self.name):
            offered = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
            raise ScriptError(f"{self.file}: has no {self.name!r}; it has {', '.join(offered) or 'nothing to call'}")
        return getattr(module, self.name)

    def make(self, kind: type) -> Any:
        """Run the file and call the object with the arguments; an object of this kind is taken as it is."""
        options = self.options  # read first: what is misspelt is told before anything runs
        with _neighbours(self.file):
            found = self.load()
            if isinstance(found, kind) and not options:
                return found
            _check_call(self, found, options)
            try:
                return found(**options)
            except Exception as error:
                raise ScriptError(f"{self}: {_told(self.file, error)}") from error

    def sources(self) -> dict[str, str]:
        """Give the hash of each file that was run for it, by path; the file's own where it has not been run."""
        file = self.file.resolve()
        return dict(_run.get(file) or {str(file): sha256_of(file.read_bytes())})

    def identity(self) -> str:
        """Hash the call and the code, neighbours included, wherever it lies."""
        return identity_of(self.call, self.sources())


def identity_of(call: str, sources: Mapping[str, str]) -> str:
    """Hash a call and the code that it runs, given the hash of each of its files."""
    return key_of(call, *sources.values())


def expect(sources: Mapping[str, str]) -> None:
    """Let these files run from now on only as they are: what was checked is what runs."""
    _expected.update({str(Path(file).resolve()): digest for file, digest in sources.items()})


def _read_once(file: Path) -> tuple[bytes, str]:
    """Read code that is about to run, with its hash."""
    content = file.read_bytes()
    digest = sha256_of(content)
    if _expected.pop(str(file.resolve()), digest) != digest:
        raise ScriptError(f"{file}: has changed since it was looked at; name it yourself again")
    return content, digest


class _Loader(SourceFileLoader):
    """Runs the very bytes of a neighbour that were hashed, never a compiled copy that may be of other ones."""

    def get_code(self, fullname: str) -> Any:
        file = Path(self.get_filename(fullname))
        content, _read[str(file)] = _read_once(file)
        return compile(content, str(file), "exec")


class _Finder(MetaPathFinder):
    """Finds the modules of one folder before any other finder does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        found = PathFinder.find_spec(name, [str(self._folder)] if path is None else list(path), target)
        if found is None or not found.origin or not found.origin.endswith(".py"):
            return None
        if not _lies_in(self._folder, name, found.origin):
            return None
        places = found.submodule_search_locations
        return importlib.util.spec_from_file_location(
            name, found.origin, loader=_Loader(name, found.origin), submodule_search_locations=places
        )


def _check_call(script: Script, found: Any, options: dict[str, Any]) -> None:
    if not callable(found):
        raise ScriptError(f"{script}: must be something to call, got {type(found).__name__}")
    try:
        takes = inspect.signature(found)
    except ValueError:  # some callables do not tell what they take
        return
    try:
        takes.bind(**options)
    except TypeError as error:
        raise ScriptError(
            f"{script}: {error}; it takes {takes}, and arguments are written as {script.file.name}:{script.name}(argument=value)"
        ) from error


def _module(path: Path) -> ModuleType:
    """Run a file anew, with what it imports of its folder."""
    file = path.resolve()
    try:
        content, digest = _read_once(file)
    except OSError as error:
        raise ScriptError(f"no file at {path} ({error.strerror}); write path/to/file.py:NAME") from error
    _forget()
    spec = importlib.util.spec_from_file_location(f"{MODULE}{file.stem}", file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and forward references look their module up there
    _run[file] = {str(file): digest}
    with _neighbours(file):
        try:
            # Of the bytes that were hashed: what is known of the file is what ran.
            exec(compile(content, str(file), "exec"), vars(module))
        except Exception as error:
            raise ScriptError(f"{path}: cannot be imported; it {_told(file, error)}") from error
    return module


@contextmanager
def _neighbours(path: Path) -> Iterator[None]:
    """Let what runs inside the block import the files beside this one, and take note of them."""
    file, before = path.resolve(), dict(sys.modules)
    importlib.invalidate_caches()
    sys.path.insert(0, str(file.parent))
    finder = _Finder(file.parent)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.path.remove(str(file.parent))
        beside = {name: Path(place) for name, place in _files().items() if _lies_in(file.parent, name, place)}
        _imported.update({name: sys.modules[name] for name in beside if sys.modules[name] is not before.get(name)})
        if file in _run:
            hashes = {place: _read.get(str(place)) or sha256_of(place.read_bytes()) for place in beside.values()}
            _run[file] |= {str(place): hashes[place] for _, place in sorted(beside.items())}


def _files() -> dict[str, str]:
    """Give the files of all modules at hand."""
    found = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    return {name: file for name, file in found.items() if isinstance(file, str)}


def _lies_in(folder: Path, module: str, file: str) -> bool:
    """Say whether a module was found in a folder itself, and not in a library somewhere below it."""
    # Thousands of modules are asked about: as texts, for paths take most of the time that opening a network takes.
    top = f"{str(folder).rstrip(os.sep)}{os.sep}{module.partition('.')[0]}"
    return (file == f"{top}.py" or file.startswith(f"{top}{os.sep}")) and Path(file).is_file()


def _forget() -> None:
    """Let neighbours be imported anew: another script's may have the same names, or they may have changed since."""
    for name, module in _imported.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    _imported.clear()


def _told(file: Path, error: Exception) -> str:
    """Say what went wrong while a file ran, and at which of its lines."""
    lines, step = [], error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == str(file.resolve()):
            lines.append(f" at line {step.tb_lineno}")
        step = step.tb_next
    return f"fails{lines[-1] if lines else ''} with {type(error).__name__}: {error}"
