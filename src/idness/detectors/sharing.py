"""Methods that need the same of the same images, such as the axes of their covariance, find what another has computed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
MOST = 12
"""How many results are kept; the oldest goes first. A matrix of 2,048 features takes 34 MB."""


class _Kept:
    """What shared functions gave, and the digests of tensors that were looked at, as long as these live."""

    def __init__(self) -> None:
        self.results: dict[Hashable, Any] = {}
        self.digests: MutableMapping[Tensor, tuple[int, Hashable]] = WeakTensorKeyDictionary()

    def key(self, value: Any) -> Hashable:
        """Tell values apart: tensors by what they hold, all else by itself."""
        if isinstance(value, list | tuple):
            return tuple(map(self.key, value))
        if not isinstance(value, Tensor):
            known: Hashable = value
            return known
        changes = -1 if value.is_inference() else value._version
        seen = self.digests.get(value)
        if seen is None or seen[0] != changes or changes < 0:
            bits = value.detach().cpu().contiguous().numpy().data
            digest = hashlib.sha256(bits).digest(), value.shape, value.dtype, value.device
            seen = self.digests[value] = changes, digest
        return seen[1]


_kept: ContextVar[_Kept | None] = ContextVar("kept", default=None)


@contextmanager
def sharing() -> Iterator[None]:
    """Keep what functions marked as `shared` give, until the outermost of these blocks ends."""
    if _kept.get() is not None:
        yield
        return
    token = _kept.set(_Kept())
    try:
        yield
    finally:
        _kept.reset(token)


def shared(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function give again what it gave for the same arguments; within `sharing` only, and never to be changed in place.

    Tensors are the same where their values are, anything else where it is equal.
    """

    @wraps(function)
    def found(*arguments: P.args, **named: P.kwargs) -> R:
        kept = _kept.get()
        if kept is None:
            return function(*arguments, **named)
        results, key = kept.results, (function, kept.key(arguments), kept.key(tuple(named.items())))
        if key not in results:
            results[key] = function(*arguments, **named)
            if len(results) > MOST:
                del results[next(iter(results))]
        result: R = results[key]
        return result

    return found


def grouped(items: Sequence[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Put together what has the same key and so may share work; in the order of the items."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
