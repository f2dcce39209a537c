"""Write the table of results in README.md from results/cifar6: python tools/readme_results.py

Its numbers are those of `idness bench --out results/cifar6/base` and `idness bench --model cifar6:ish --out
results/cifar6/ish`; a test compares the two.
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START, END = "<!-- results: made by python tools/readme_results.py -->", "<!-- end of results -->"
ROWS = (
    "msp",
    "mls",
    "ebo",
    "tempscale",
    "gen",
    "mds",
    "rmds",
    "knn",
    "react",
    "dice",
    "chain",
    "ash-s",
    "ash-p",
    "ash-b",
    "scale",
)
NETWORKS = {"base": "base network", "ish": "after ISH"}


def cell(group: dict[str, float], metric: str) -> str:
    """Write one number in percent."""
    return f"{100 * group[metric]:.1f}"


def table() -> str:
    """Make the table, best of each column in bold."""
    results = {name: json.loads((ROOT / "results" / "cifar6" / name / "results.json").read_text()) for name in NETWORKS}
    columns = [
        (name, group, metric)
        for name in NETWORKS
        for group in ("near", "far")
        for metric in ("auroc", "fpr_at_id_recall")
    ]
    titles = [f"{NETWORKS[name]}, {group} {'AUROC' if metric == 'auroc' else 'FPR'}" for name, group, metric in columns]
    values = {row: [float(cell(results[n]["methods"][row]["groups"][g], m)) for n, g, m in columns] for row in ROWS}
    best = [
        (max if metric == "auroc" else min)(values[row][place] for row in ROWS)
        for place, (_, _, metric) in enumerate(columns)
    ]
    lines = ["| method | " + " | ".join(titles) + " |", "|---|" + "--:|" * len(columns)]
    for row in ROWS:
        shown = (f"**{v:.1f}**" if v == b else f"{v:.1f}" for v, b in zip(values[row], best, strict=True))
        lines.append(f"| `{row}` | " + " | ".join(shown) + " |")
    accuracy = ", ".join(f"{NETWORKS[n]} {100 * r['id_accuracy']:.2f} %" for n, r in results.items())
    return "\n".join([*lines, "", f"ID accuracy: {accuracy}."])


def main() -> None:
    """Put the table between its marks."""
    path = ROOT / "README.md"
    text = path.read_text()
    before, after = text.split(START)[0], text.split(END)[1]
    path.write_text(f"{before}{START}\n{table()}\n{END}{after}")
    print("wrote README.md")


if __name__ == "__main__":
    main()
