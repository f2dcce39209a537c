"""Serves a guard over HTTP: bounded in every direction, batched, watched, with a page to look at."""

from __future__ import annotations

from idness.serve.limits import Limits
from idness.serve.server import serve

__all__ = ["Limits", "serve"]
