"""Decisions for single images: a classifier with a detector and a calibrated threshold.

Names are imported on first use, so that an exported guard judges images without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idness.guard.guard import Guard
    from idness.guard.verdict import Verdict

__all__ = ["Guard", "Verdict"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(f"idness.guard.{name.lower()}"), name)
    raise AttributeError(f"module 'idness.guard' has no attribute {name!r}")
