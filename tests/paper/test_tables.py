from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from idness import paper
from idness.detectors.registry import parse

ROUNDING = 0.0101
"""The largest rounding error of a printed average: half a unit for each part, and rounding in between."""


def wrong_averages() -> Iterator[tuple[object, ...]]:
    for table in map(paper.load, paper.names()):
        for row in table.rows:
            for group, members in table.groups.items():
                for place, metric in enumerate(("fpr", "auroc")):
                    if all(name in row.cells for name in members):
                        mean = sum(row.cells[name][place] for name in members) / len(members)
                        if abs(mean - row.means[group][place]) > ROUNDING:
                            yield table.name, row.name, group, metric, row.means[group][place], round(mean, 2)


def disagreements() -> Iterator[tuple[object, ...]]:
    """Yield averages that two tables print differently."""
    pairs = [(paper.load("imagenet"), "imagenet-sets", {})]
    pairs += [(paper.load("cifar"), name, {f"CIFAR-{name[5:]}": "average"}) for name in ("cifar10", "cifar100")]
    for table, other, renamed in pairs:
        theirs = {row.name: row.means for row in paper.load(other).rows}
        for row in table.rows:
            for column in renamed or row.means:
                for here, there, metric in zip(
                    row.means[column], theirs[row.name][renamed.get(column, column)], ("fpr", "auroc"), strict=True
                ):
                    if here != there:
                        yield table.name, row.name, column, metric, here, other, there


def test_averages_are_the_means_of_their_sets_but_for_the_listed_slips() -> None:
    keys = {
        "average": ("table", "row", "column", "metric", "printed", "computed"),
        "disagreement": ("table", "row", "column", "metric", "printed", "other", "there"),
    }
    for kind, found in (("average", wrong_averages()), ("disagreement", disagreements())):
        listed = [tuple(slip[key] for key in keys[kind]) for slip in paper.listed_slips() if slip["kind"] == kind]
        assert sorted(found) == sorted(listed)


def test_columns_are_the_sets_of_each_group_and_its_average() -> None:
    assert paper.load("cifar10").columns == ["SVHN", "LSUN-c", "LSUN-r", "iSUN", "Textures", "Places365", "average"]


@pytest.mark.parametrize("name", [name for name in paper.names() if not paper.load(name).values])
def test_every_comparison_says_its_protocol(name: str) -> None:
    table = paper.load(name)
    assert table.fpr in ("fpr_at_id_recall", "fpr_at_ood_recall")
    assert table.rows
    for row in table.rows:
        assert row.cells or row.means
        if row.method is not None:
            parse(row.method)
        for low_is_good, high_is_good in [*row.cells.values(), *row.means.values()]:
            assert 0 <= low_is_good <= 100
            assert 50 <= high_is_good <= 100


def test_the_papers_own_percentiles_are_kept() -> None:
    for name, percentile in (("imagenet", 85), ("cifar10", 95), ("cifar100", 90)):
        methods = {row.name: row.method for row in paper.load(name).rows}
        assert methods["SCALE"] == f"scale(percentile={percentile})"


@pytest.mark.shared
def test_every_number_is_as_the_paper_prints_it(shared_data: Path) -> None:
    texts = list((shared_data.parent / "paper").glob("000_*.txt"))
    if not texts:
        pytest.skip("the paper's text is not there")
    text = re.sub(r"\^\{\\pm\{?[\d.]+\}?\}", "", texts[0].read_text())
    lines = [tuple(float(number) for number in re.findall(r"\d+\.\d+", line)) for line in text.splitlines()]
    for name in set(paper.names()) - {"chi_square", "percentiles"}:
        table = paper.load(name)
        for row in table.rows:
            pairs = [row.means.get(column) or row.cells[column] for column in table.columns]
            numbers = [value for pair in pairs for value in pair]
            numbers += [row.id_accuracy] if row.id_accuracy is not None else []
            assert tuple(numbers) in lines, (name, row.name)
    columns = zip(*[line for line in lines if len(line) == 14 and line[0] in (62.45, 24.08)], strict=True)
    printed = [pair for row in paper.load("percentiles").rows for pair in zip(*row.means.values(), strict=True)]
    assert list(columns) == printed
    for value in paper.load("chi_square").values.values():
        assert (value,) in lines
