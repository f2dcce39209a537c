from __future__ import annotations

from typing import Any, NamedTuple

from idness.guard import Guard


class Prepared(NamedTuple):
    guard: Guard
    notes: list[str]


def prepared(*arguments: Any, **options: Any) -> Prepared:
    """Make a guard as the command line does, and return it with the remarks."""
    notes: list[str] = []
    return Prepared(Guard.for_images(*arguments, notes=notes, **options), notes)
