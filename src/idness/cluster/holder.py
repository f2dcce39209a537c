"""Tells all actors where the spans of a set are; it knows nothing of images, so that its process starts at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Holder:
    """Keeps the places of all spans in Ray's store, so that an actor knows only of those that it asks for."""

    def __init__(self, places: Mapping[int, Any]) -> None:
        self.places = places

    def place(self, number: int) -> list[Any]:
        """Give the place of one span, in a list: Ray would fetch by itself what stands alone."""
        return [self.places[number]]
