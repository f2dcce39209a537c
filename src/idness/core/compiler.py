"""Imports torchvision without torch's compiler, of which it wants one function, and which takes ten times as long to load."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

WANTED = "is_compile_supported"
"""The function: torchvision asks it when regions of feature maps are aligned, which no classifier does."""
PLACES = ("torch._dynamo", "torch._dynamo.utils")


class _Later(ModuleType):
    """Stands in for a module of the compiler, which is loaded as soon as anything else of it is asked for."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"{self.__name__} has no attribute {name!r}")
        return _is_compile_supported if name == WANTED else getattr(_loaded(self.__name__), name)


@contextmanager
def compiler_later() -> Iterator[None]:
    """Import in this block what wants the compiler without having it loaded; where it is loaded nothing changes."""
    if "torch" not in sys.modules or any(place in sys.modules for place in PLACES):
        yield
        return
    sys.modules.update({place: _Later(place) for place in PLACES})
    try:
        yield
    finally:
        _make_way()


def _is_compile_supported(device: str) -> Any:
    return getattr(_loaded(PLACES[1]), WANTED)(device)


def _loaded(place: str) -> ModuleType:
    _make_way()
    return importlib.import_module(place)


def _make_way() -> None:
    for place in PLACES:
        if isinstance(sys.modules.get(place), _Later):
            del sys.modules[place]
