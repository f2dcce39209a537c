"""Hears how far a long job is."""

from __future__ import annotations


class Listener:
    """Is told of phases, progress and remarks, and does nothing; the command line shows them."""

    def phase(self, name: str, total: int) -> None:
        """Hear that a phase of so many steps begins."""

    def advance(self, steps: int) -> None:
        """Hear that some steps of the phase are done."""

    def note(self, text: str) -> None:
        """Hear a remark."""

    def warn(self, text: str) -> None:
        """Hear a warning."""
