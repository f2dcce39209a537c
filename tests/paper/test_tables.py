from __future__ import annotations

import re
from pathlib import Path

import pytest

from idness import paper
from idness.core.errors import UnknownNameError
from idness.detectors.registry import parse


def test_averages_are_the_means_of_their_sets_but_for_the_listed_slips() -> None:
    listed = [slip for slip in paper.listed_slips() if slip.kind != "text"]
    found = paper.find_slips()
    assert all(slip in listed for slip in found)  # equal but for their notes
    assert len(found) == len(listed)


def test_most_averages_were_indeed_checked() -> None:
    checked = 0
    for name in paper.names():
        table = paper.load(name)
        for row in table.rows:
            checked += sum(all(part in row.cells for part in members) for members in table.groups.values())
    assert checked == 9 * 2 + 7 + 6 + 6


@pytest.mark.parametrize("name", [name for name in paper.names() if paper.load(name).kind != "p-values"])
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


def test_unknown_names_say_what_was_meant() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'cifar10'"):
        paper.load("cifar-10")


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
