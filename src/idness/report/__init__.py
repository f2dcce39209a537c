"""Tables, figures and the HTML page of a benchmark's results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from idness.benchmark.results import Report

__all__ = ["write_html"]


def write_html(folder: str | os.PathLike[str], report: Report | None = None) -> Path:
    """Write `report.html` for a report, by default the one in the folder, into the folder; return its path."""
    from idness.benchmark.results import PAGE, Report, results_folder
    from idness.report.page import render

    return results_folder(folder).write({PAGE: render(report or Report.load(os.fspath(folder)))})[0]
