"""What a person looks at: tables, figures, the answer, and one HTML page that holds them all."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_html"]


def write_html(folder: Path) -> Path:
    """Write `report.html` into a folder that holds the results of a benchmark, and return its path."""
    from idness.report.html import write_html as write

    return write(folder)
