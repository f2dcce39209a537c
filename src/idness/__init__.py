"""idness: knows when an image classifier is looking at something it was never trained on.

Names are imported when first used, so that `idness --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idness import intervals, methods, metrics, training
    from idness.benchmark import Benchmark
    from idness.detector import Detector, Enhancer
    from idness.guard import Guard
    from idness.model import SplitModel, load_model
    from idness.registry import available, build
    from idness.results import Report
    from idness.store import FeatureStore
    from idness.types import Activations, Head
    from idness.verdict import Verdict

__version__ = version("idness")
__all__ = [
    "Activations",
    "Benchmark",
    "Detector",
    "Enhancer",
    "FeatureStore",
    "Guard",
    "Head",
    "Report",
    "SplitModel",
    "Verdict",
    "available",
    "build",
    "intervals",
    "load_model",
    "methods",
    "metrics",
    "training",
]

_HOMES = {
    "Activations": "types",
    "Benchmark": "benchmark",
    "Detector": "detector",
    "Enhancer": "detector",
    "FeatureStore": "store",
    "Guard": "guard",
    "Head": "types",
    "Report": "results",
    "SplitModel": "model",
    "Verdict": "verdict",
    "available": "registry",
    "build": "registry",
    "load_model": "model",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"idness.{_HOMES[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"idness.{name}")
    raise AttributeError(f"module 'idness' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
