"""Imports what only some uses of idness need, and says how to install it where it is not there."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from typing import Any

from idness.core.compiler import compiler_later
from idness.core.errors import IdnessError


def needed(module: str, who: str, extra: str, error: type[IdnessError] = IdnessError) -> Any:
    """Import a module of an optional package, or say who needs it and which extra of idness brings it."""
    try:
        with compiler_later() if module.partition(".")[0] == "torchvision" else nullcontext():
            return importlib.import_module(module)
    except ImportError as missing:
        package = (missing.name or module).partition(".")[0].replace("_", "-")
        raise error(f"{who}: needs {package}; run pip install 'idness[{extra}]'") from missing
