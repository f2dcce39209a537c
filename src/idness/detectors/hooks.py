"""Completes what a method's class writes, so that it may leave out whatever follows from the rest."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

FASTER = (
    ("shape", "shaped_logits"),
    ("edit", "shaped_logits"),
    ("shaped_logits", "rate_many"),
    ("rate", "rate_many"),
    ("learn", "learn_many"),
)
"""Hooks, each with another that gives the same in a faster way."""


def complete(cls: type) -> None:
    """Make a new class of detectors whole.

    A class that writes a hook anew does not inherit its parent's faster way to the same, which would pass it over. One that
    writes only the hook for many detectors has the hook for one as well. The options of its parents are checked even
    where it forgets to ask for it.
    """
    for hook, faster in FASTER:
        if hook in vars(cls) and faster not in vars(cls):
            setattr(cls, faster, _plain(cls, faster))
    for one, many, alone in (("learn", "learn_many", _learn_alone), ("rate", "rate_many", _rate_alone)):
        if many in vars(cls) and getattr(cls, one) is _plain(cls, one):
            setattr(cls, one, alone)
    if "__post_init__" in vars(cls):
        setattr(cls, "__post_init__", _after_parents(cls, vars(cls)["__post_init__"]))  # noqa: B010


def _plain(cls: type, hook: str) -> Any:
    """Find a hook as the first class of all has it, where it is written in terms of the others."""
    return next(vars(base)[hook] for base in reversed(cls.__mro__) if hook in vars(base))


def _learn_alone(self: Any, head: Any, train: Any, val: Any) -> None:
    self.learn_many([self], head, train, val)


def _rate_alone(self: Any, acts: Any) -> Any:
    return self.rate_many([self], acts)[0]


def _after_parents(cls: Any, own: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(own)
    def checked(self: Any) -> None:
        super(cls, self).__post_init__()
        own(self)

    return checked
