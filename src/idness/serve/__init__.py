"""An HTTP service for a guard, with a web page."""

from __future__ import annotations

from idness.serve.app import serve
from idness.serve.schemas import Limits

__all__ = ["Limits", "serve"]
