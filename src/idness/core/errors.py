"""The hierarchy of errors. A message reads `<where>: <what is wrong>; <what to do>`."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class IdnessError(Exception):
    """Base class of all errors that idness raises deliberately."""


class OptionError(IdnessError, ValueError):
    """An option has a value that is not allowed."""


class InputError(IdnessError, ValueError):
    """Activations, scores or labels cannot be used as they are."""


class UnknownNameError(IdnessError, KeyError):
    """A name is unknown; the message suggests the nearest known one."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError shows its message in quotes


class NotFittedError(IdnessError, RuntimeError, AttributeError):
    """A detector or guard was used before `fit` or `calibrate`."""


class ModelError(IdnessError, RuntimeError):
    """A network cannot be loaded or split into features and head."""


class ScriptError(IdnessError, RuntimeError):
    """A Python file of the user cannot be run."""


class DataError(IdnessError, ValueError):
    """A data set or an image cannot be read."""


class MissingError(DataError):
    """A data set does not exist or is empty; some commands can continue without it."""


class StoreError(IdnessError, RuntimeError):
    """Files on disk are missing, damaged, written by another program, or cannot be written."""


class ExportError(IdnessError, RuntimeError):
    """A guard cannot be expressed in the requested format."""


class ClusterError(IdnessError, RuntimeError):
    """A cluster does not answer, or one of its workers cannot do its part."""


class IdnessWarning(UserWarning):
    """The category of all warnings issued by idness."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Return the error for an unknown name, with the nearest known names as a suggestion."""
    choices = sorted(known)
    near = get_close_matches(name.lower(), choices, n=1, cutoff=0.6)
    some = get_close_matches(name.lower(), choices, n=5, cutoff=0.0) if len(choices) > 100 else []
    rest = f"the closest are {', '.join(some)}" if some else f"known are {', '.join(choices)}"
    hint = f"did you mean {near[0]!r}?" if near else rest
    return UnknownNameError(f"unknown {kind} {name!r}; {hint}")


def needed(module: str, who: str, extra: str, error: type[IdnessError] = IdnessError) -> Any:
    """Import and return a module of an optional package; if it is missing, the error names the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        package = (missing.name or module).partition(".")[0].replace("_", "-")
        raise error(f"{who}: needs {package}; run pip install 'idness[{extra}]'") from missing
