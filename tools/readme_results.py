"""Update the table of results in README.md from results/: python tools/readme_results.py

Its numbers are those of `idness bench photos --out results/bench/photos`, `idness reproduce cifar10 cifar100 cifar` and
`idness bench cifar6 --out results/cifar6/base`; a test compares the two.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
START, END = "<!-- results: made by python tools/readme_results.py -->", "<!-- end of results -->"
ROWS = ("msp", "ebo", "knn", "react", "dice", "ash-s", "scale", "fuse")
"""The methods of the table: baselines, methods that SCALE is compared with, and the recommended one."""
COLUMNS = {
    "photos, near": ("bench/photos", "groups", "near"),
    "photos, far": ("bench/photos", "groups", "far"),
    "CIFAR-10 vs iSUN (paper)": ("reproduced/cifar10", "sets", "isun"),
    "CIFAR-100 vs iSUN (paper)": ("reproduced/cifar100", "sets", "isun"),
    "cifar6, near": ("cifar6/base", "groups", "near"),
    "cifar6, far": ("cifar6/base", "groups", "far"),
}


def read(path: str) -> Any:
    """Read a JSON file of results/."""
    return json.loads((ROOT / "results" / path).read_text())


def row_of(methods: dict[str, Any], row: str) -> dict[str, Any] | None:
    """Return the results of a method by its name, or by its method if options were given."""
    name, _, variant = row.partition("-")
    for found, item in methods.items():
        given = found != item["method"] and item["method"] == name
        if found == row or (given and item["options"].get("variant", "") == variant):
            return dict(item)
    return None


def printed(table: str, row: str) -> float:
    """Return the AUROC that the paper prints for a method on iSUN, in percent."""
    cells = read("reproduced/reproduce.json")["tables"][table]["cells"]
    wanted = (row, "iSUN", "auroc")
    return next(cell["theirs"] for cell in cells if (cell["row"].lower(), cell["column"], cell["metric"]) == wanted)


def values(row: str) -> list[tuple[float, str]]:
    """Return a method's AUROC in each column, in percent, and its cell with half of its interval."""
    found = list[tuple[float, str]]()
    for folder, kind, name in COLUMNS.values():
        item = row_of(read(f"{folder}/results.json")["methods"], row)
        if item is None:
            found.append((0.0, "–"))
            continue
        low, high = item[kind][name]["intervals"]["auroc"]
        auroc, half = 100 * item[kind][name]["auroc"], 50 * (high - low)
        if kind == "groups":
            found.append((auroc, f"{auroc:.1f} ± {half:.1f}"))
        else:
            found.append((auroc, f"{auroc:.2f} ± {half:.2f} ({printed(folder.rpartition('/')[2], row):.2f})"))
    return found


def table() -> str:
    """Return the table, the highest number of each column in bold."""
    rows = {row: values(row) for row in ROWS}
    best = [max(cells[place][0] for cells in rows.values()) for place in range(len(COLUMNS))]
    lines = [f"| AUROC, percent | {' | '.join(COLUMNS)} |", "|---|" + "--:|" * len(COLUMNS)]
    for row, cells in rows.items():
        marked = [f"**{text}**" if auroc == top else text for (auroc, text), top in zip(cells, best, strict=True)]
        lines.append(f"| `{row}` | {' | '.join(marked)} |")
    return "\n".join(lines)


def main() -> None:
    """Write the table between its markers."""
    path = ROOT / "README.md"
    text = path.read_text()
    before, after = text.split(START)[0], text.split(END)[1]
    path.write_text(f"{before}{START}\n{table()}\n{END}{after}")
    print("wrote README.md")


if __name__ == "__main__":
    main()
