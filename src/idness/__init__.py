"""Out-of-distribution detection for image classifiers.

Names are imported on first use, so that `idness --help` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idness import intervals, methods, metrics, training
    from idness.activations.store import FeatureStore
    from idness.benchmark.protocol import Benchmark
    from idness.benchmark.results import Report
    from idness.core.types import Activations, Head
    from idness.detectors.detector import Detector, Enhancer
    from idness.detectors.registry import available, build
    from idness.guard.guard import Guard
    from idness.guard.verdict import Verdict
    from idness.networks.load import load_model
    from idness.networks.split import SplitModel

    __version__: str

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
    "Activations": "core.types",
    "Benchmark": "benchmark.protocol",
    "Detector": "detectors.detector",
    "Enhancer": "detectors.detector",
    "FeatureStore": "activations.store",
    "Guard": "guard.guard",
    "Head": "core.types",
    "Report": "benchmark.results",
    "SplitModel": "networks.split",
    "Verdict": "guard.verdict",
    "available": "detectors.registry",
    "build": "detectors.registry",
    "load_model": "networks.load",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("idness")
    if name in _HOMES:
        return getattr(importlib.import_module(f"idness.{_HOMES[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"idness.{name}")
    raise AttributeError(f"module 'idness' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
