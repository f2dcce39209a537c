"""What can go wrong, in one hierarchy: each message says who, what is allowed, what came and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MANY = 100
"""More names than this are not listed in a message."""


class IdnessError(Exception):
    """Lets a caller catch every error that idness raises on purpose."""


class OptionError(IdnessError, ValueError):
    """Says that an option has a value that is not allowed."""


class InputError(IdnessError, ValueError):
    """Says that activations, scores or labels cannot be used as they are."""


class UnknownNameError(IdnessError, KeyError):
    """Says that a name is not known, and which one was perhaps meant."""

    def __str__(self) -> str:
        # KeyError would show the message in quotes.
        return str(self.args[0])


class NotFittedError(IdnessError, RuntimeError, AttributeError):
    """Says that a detector or guard was used before `fit` or `calibrate`, or asked for what it has yet to learn."""


class ModelError(IdnessError, RuntimeError):
    """Says that a network cannot be loaded or split into features and head."""


class ScriptError(IdnessError, RuntimeError):
    """Says that a Python file of the user's cannot be run as asked."""


class DataError(IdnessError, ValueError):
    """Says that a data set or an image cannot be read."""


class MissingError(DataError):
    """Says that a data set is not there, or empty, so that one may go on without it."""


class StoreError(IdnessError, RuntimeError):
    """Says that files on disk are missing, damaged, of another program or cannot be written."""


class ExportError(IdnessError, RuntimeError):
    """Says that a guard cannot be expressed in the wanted format."""


class ClusterError(IdnessError, RuntimeError):
    """Says that a cluster does not answer, or that a worker of it cannot do its part."""


class IdnessWarning(UserWarning):
    """Lets a caller filter every warning of idness."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Make the error for an unknown name, with the nearest known one as a suggestion."""
    choices = sorted(known)
    near = get_close_matches(name.lower(), choices, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(choices)}"
    if not near and len(choices) > MANY:
        closest = get_close_matches(name.lower(), choices, n=5, cutoff=0.0)
        hint = f"the closest of {len(choices):,} names are {', '.join(closest)}"
    return UnknownNameError(f"unknown {kind} {name!r}; {hint}")
