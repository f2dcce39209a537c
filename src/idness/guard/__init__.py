"""Decisions for single images: a detector and a calibrated threshold behind a classifier."""

from idness.guard.guard import Guard
from idness.guard.verdict import Verdict

__all__ = ["Guard", "Verdict"]
