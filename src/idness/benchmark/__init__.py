"""Comparison of methods on sets of images: the protocol as data, the run, and its results."""

from idness.benchmark.protocol import Benchmark, Settings
from idness.benchmark.results import Report
from idness.benchmark.runner import run

__all__ = ["Benchmark", "Report", "Settings", "run"]
