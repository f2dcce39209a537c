"""Write the table of results in README.md from results/: python tools/readme_results.py

Its numbers are those of `idness bench --out results/cifar6/base`, `idness bench --model cifar6:ish --out results/cifar6/ish`
and `idness reproduce cifar10`, and of `idness bench results/bench/imagenet-sample/imagenet-sample.toml` with torchvision's MobileNetV2; a
test compares the two.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
START, END = "<!-- results: made by python tools/readme_results.py -->", "<!-- end of results -->"
ROWS = ("msp", "ebo", "knn", "react", "dice", "ash-s", "scale", "fuse")
"""What stands in the table, where it was measured: the plain ones, those SCALE is compared with, and what is recommended."""
COLUMNS = {
    "ImageNet against textures": ("bench/imagenet-sample", "far"),
    "CIFAR-10 against iSUN": ("reproduced/cifar10", "far"),
    "cifar6, near": ("cifar6/base", "near"),
    "cifar6, far": ("cifar6/base", "far"),
    "cifar6 after ISH, near": ("cifar6/ish", "near"),
    "cifar6 after ISH, far": ("cifar6/ish", "far"),
}


def results(folder: str) -> dict[str, Any]:
    """Read one benchmark's results."""
    found: dict[str, Any] = json.loads((ROOT / "results" / folder / "results.json").read_text())
    return found


def row_of(methods: dict[str, Any], row: str) -> dict[str, Any] | None:
    """Find a row by its name, or by its method where its options were given."""
    name, _, variant = row.partition("-")
    for found, item in methods.items():
        given = found != item["method"] and item["method"] == name
        if found == row or (given and item["options"].get("variant", "") == variant):
            return dict(item)
    return None


def values(row: str) -> list[tuple[float, float] | None]:
    """Give a row's AUROC and half of its interval in each column, in percent."""
    cells: list[tuple[float, float] | None] = []
    for folder, group in COLUMNS.values():
        item = row_of(results(folder)["methods"], row)
        found = item["groups"].get(group) if item else None
        if found is None:
            cells.append(None)
        else:
            low, high = found["intervals"]["auroc"]
            cells.append((100 * found["auroc"], 50 * (high - low)))
    return cells


def table() -> str:
    """Make the table, the highest number of each column in bold."""
    rows = {row: cells for row in ROWS if any(cells := values(row))}
    best = [max(cells[place][0] for cells in rows.values() if cells[place]) for place in range(len(COLUMNS))]
    lines = [f"| AUROC, percent | {' | '.join(COLUMNS)} |", "|---|" + "--:|" * len(COLUMNS)]
    for row, cells in rows.items():
        shown = ["–" if cell is None else f"{cell[0]:.1f} ± {cell[1]:.1f}" for cell in cells]
        marked = [f"**{t}**" if c and c[0] == b else t for t, c, b in zip(shown, cells, best, strict=True)]
        lines.append(f"| `{row}` | {' | '.join(marked)} |")
    return "\n".join(lines)


def main() -> None:
    """Put the table between its marks."""
    path = ROOT / "README.md"
    text = path.read_text()
    before, after = text.split(START)[0], text.split(END)[1]
    path.write_text(f"{before}{START}\n{table()}\n{END}{after}")
    print("wrote README.md")


if __name__ == "__main__":
    main()
