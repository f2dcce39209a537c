"""Run the tutorials and store their outputs: python tools/notebooks.py [NAME ...]

The notebooks in docs/tutorials are stored with their outputs; the site shows them, and a test runs them and compares the outputs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

TUTORIALS = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
RESET = "%reset -sf"


def tutorials() -> dict[str, Path]:
    """Return the notebooks by name."""
    return {path.stem: path for path in sorted(TUTORIALS.glob("*.ipynb"))}


@contextmanager
def one_kernel(folder: Path) -> Iterator[Any]:
    """Yield a function that runs notebooks in a folder in one process, since importing torch is slow."""
    client = NotebookClient(
        nbformat.v4.new_notebook(), timeout=300, coalesce_streams=True, resources={"metadata": {"path": str(folder)}}
    )
    with client.setup_kernel():

        def run(notebook: NotebookNode) -> NotebookNode:
            fresh = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(RESET), *notebook.cells])
            client.nb = fresh
            client.code_cells_executed = 0
            for place, cell in enumerate(fresh.cells):
                client.execute_cell(cell, place, store_history=False)
            return nbformat.v4.new_notebook(
                cells=[_clean(cell) for cell in fresh.cells[1:]], metadata=notebook.metadata
            )

        yield run


def read(path: Path) -> NotebookNode:
    """Return a notebook."""
    return nbformat.read(path, as_version=4)


def _clean(cell: NotebookNode) -> NotebookNode:
    """Return a cell without fields that differ between runs."""
    cell.metadata = {}
    for output in cell.get("outputs", ()):
        output.get("data", {}).pop("text/plain", None) if len(output.get("data", {})) > 1 else None
    return cell


def main(names: list[str]) -> None:
    """Run the given notebooks, or all of them."""
    with one_kernel(TUTORIALS) as run:
        for name, path in tutorials().items():
            if not names or name in names:
                done = run(read(path))
                for place, cell in enumerate(done.cells):
                    cell.id = f"{name}-{place}"
                nbformat.write(done, path)
                print(f"{name}: {sum(cell.cell_type == 'code' for cell in done.cells)} cells")


if __name__ == "__main__":
    main(sys.argv[1:])
