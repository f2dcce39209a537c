"""What docs/idea.md says was measured is what lies under results/."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ANALYSIS = ROOT / "results" / "analysis"


def ratios(folder: str) -> dict[str, object]:
    return json.loads((ANALYSIS / folder / "analysis.json").read_text())["analyses"]["Scale ratio"]


@pytest.mark.parametrize(
    ("name", "folder", "part"),
    [("DenseNet-101", "cifar10-isun", "isun"), ("MobileNetV2", "imagenet-sample", "textures")],
)
def test_the_table_of_the_idea_has_the_measured_numbers(name: str, folder: str, part: str) -> None:
    found = ratios(folder)
    [line] = [line for line in (ROOT / "docs" / "idea.md").read_text().splitlines() if line.startswith(f"| {name}")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:] == [
        f"{found['percentile']:g}",
        f"{100 * found['id_larger'][part]:.0f} %",
        f"{100 * found['id_larger_at_equal_energy'][part]:.0f} %",
        f"{100 * found['scale_minus_ebo'][part]:+.1f}",
    ]


def test_the_embedded_network_is_told_as_measured() -> None:
    found = json.loads((ANALYSIS / "cifar6-ratios.json").read_text())
    larger = sum(chance > 0.5 for chance in found["id_larger"].values())
    text = " ".join((ROOT / "docs" / "idea.md").read_text().split())
    assert f"larger on ID images on {larger} of {len(found['id_larger'])} sets" in text
    equal = sum(chance > 0.5 for chance in found["id_larger_at_equal_energy"].values())
    assert f"at equal energy on {equal} of them" in text


def test_what_the_proof_starts_from_is_told_as_measured() -> None:
    text = " ".join((ROOT / "docs" / "idea.md").read_text().split())
    found = {
        name: json.loads((ANALYSIS / folder / "analysis.json").read_text())["analyses"]
        for name, folder in (("MobileNetV2", "imagenet-sample"), ("embedded", ""), ("DenseNet", "cifar10-isun"))
    }
    rejected = {name: 100 - 100 * parts["Gaussianity"]["sets"]["ID"]["accepted"] for name, parts in found.items()}
    assert (
        f"for {rejected['MobileNetV2']:.0f} % of the ID images of MobileNetV2, {rejected['embedded']:.0f} % of the embedded"
        in text
    )
    assert rejected["DenseNet"] == 100.0
    higher = {name: found[name]["Mean and variance"]["sets"] for name in ("MobileNetV2", "DenseNet")}
    assert f"MobileNetV2 ({100 * higher['MobileNetV2']['textures']['id_higher']:.0f} % of pairs)" in text
    assert f"DenseNet-101 ({100 * higher['DenseNet']['isun']['id_higher']:.0f} %)" in text


def reproduced_rows() -> list[str]:
    """The rows of docs/reproducing.md: ours and, in parentheses, the paper's FPR and AUROC of each set that was available."""
    tables = json.loads((ROOT / "results" / "reproduced" / "reproduce.json").read_text())["tables"]
    rows = []
    for name, title in (("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100")):
        cells = {(cell["row"], cell["column"], cell["metric"]): cell for cell in tables[name]["cells"]}
        for row in ("MSP", "EBO", "ReAct", "DICE", "ASH-S", "SCALE"):
            texts = []
            for column in ("SVHN", "iSUN", "Textures", "Places365"):
                pair = [cells[row, column, metric] for metric in ("fpr", "auroc")]
                ours, theirs = ("/".join(f"{cell[side]:.2f}" for cell in pair) for side in ("ours", "theirs"))
                texts.append(f"{ours} ({theirs})")
            rows.append(f"| {title}, {row} | {' | '.join(texts)} |")
    return rows


def test_the_page_on_reproducing_has_the_measured_numbers() -> None:
    text = (ROOT / "docs" / "reproducing.md").read_text()
    assert [row for row in reproduced_rows() if row not in text] == []
