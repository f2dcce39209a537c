from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from idness.benchmark.results import Report
from idness.core.errors import OptionError
from idness.metrics import NAMES
from idness.report import tables
from idness.report.tables import Cell, Heading, Table, by_set, latex, markdown, rich_table, summary, terminal_tables
from tests.benchmark.test_results import make_report

SETS = ("cat", "frog", "ship", "mnist", "fashion-mnist", "quickdraw", "textures", "traffic-lights")


def full() -> Report:
    return make_report(rows=("msp", "ebo", "ash-s", "tempscale", "scale"), sets=SETS)


def printed(shown: list[Table], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    for table in shown:
        console.print(rich_table(table))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_terminal_tables_fit_80_columns_and_use_more() -> None:
    many = make_report(rows=("msp",), sets=tuple(f"set-number-{number}" for number in range(30)))
    for report, width, least in ((full(), 80, 60), (many, 80, 60), (many, 140, 80)):
        text = printed(terminal_tables(report, width, sets=True), width)
        assert least < max(map(len, text.splitlines())) <= width
        assert "…" not in text
    assert text.count("number-") == 2 * 30


def test_the_best_is_marked_and_headings_have_the_convention() -> None:
    table = summary(full())
    headings = [str(heading) for heading in table.headings]
    assert headings[:3] == ["method", "near\nAUROC", "near\nFPR at 95 %\nID recall"]
    best = {heading: [row[0].text for row in table.rows if row[place].mark] for place, heading in enumerate(headings)}
    assert best["near\nAUROC"] == ["scale"]
    assert best["far\nAUROC"] == ["msp"]
    assert best["near\nFPR at 95 %\nID recall"] == ["msp"]  # a low rate is the good one
    assert len(best["ID acc.\nshaped"]) == 5  # all are equal
    assert "OOD recall" in str(summary(full(), "ood").headings[2])
    with pytest.raises(OptionError, match="id .* or ood"):
        summary(full(), "95")


def test_values_are_percent_with_their_error() -> None:
    assert str(summary(full()).rows[-1][1]) == "90.00 ±1.0"
    assert by_set(full(), "auroc", ["frog"]).rows[0][1].text == "94.10"
    report = full()
    report.id_accuracy = None
    assert "ID acc.\nshaped" not in map(str, summary(report).headings)


def test_options_and_how_they_were_chosen() -> None:
    report = full()
    report.failed = {"knn": "no images", "mds": "no images"}
    report.methods["msp"].dropped = ["k=1000: too many"]
    table = tables.options(report)
    assert [cell.text for cell in table.rows[-1]] == ["msp", "percentile 85", "best of 2", "90.00"]
    assert table.notes == ["not run: knn, mds (no images)", "msp: setting dropped, k=1000: too many"]


def test_markdown_and_latex_escape() -> None:
    report = make_report(rows=("a|b_c<x>",))
    text = markdown(summary(report))
    assert r"a\|b_c&lt;x>" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace(r"\|", "").count("|") for line in rows}) == 1
    tex = latex(summary(report))
    assert r"b\_c" in tex
    assert r"95 \%" in tex
    assert tex.count(r"\begin") == tex.count(r"\end")


def test_csv_has_every_number() -> None:
    lines = list(csv.DictReader(io.StringIO(tables.csv_text(full()))))
    assert len(lines) == 5 * (2 + 8)
    first = next(line for line in lines if line["name"] == "frog" and line["method"] == "scale")
    assert float(first["auroc"]) == full().methods["scale"].sets["frog"].auroc
    assert float(first["auroc_low"]) < float(first["auroc"]) < float(first["auroc_high"])
    assert set(NAMES) <= set(first)


def test_text_forms_have_intervals_and_signs() -> None:
    cell = Cell("+1.00", "better", " [+0.5 to +1.5]", "+0.5 to +1.5", sort="0.01")
    table = Table("Change", [Heading("method", words=True), Heading("new\nminus old")], [[Cell("ebo"), cell]])
    assert "| ebo | +1.00 [+0.5 to +1.5] ✓ |" in markdown(table)
    assert "|---|--:|" in markdown(table)
    assert r"ebo & +1.00 [+0.5 to +1.5] \checkmark \\" in latex(table)
    assert r"{lr}" in latex(table)
    assert "+1.00 [+0.5 to +1.5] ✓" in printed([table], 80)


@pytest.fixture(scope="module")
def measured(folder: Path) -> Report:
    return Report.load(folder)


def test_the_main_table_is_best_first_with_signs(measured: Report) -> None:
    assert measured.answer is not None
    lines = printed(terminal_tables(measured, 80), 80).splitlines()[3:]
    names = [line.split()[0] for line in lines]
    assert names == list(measured.answer.auroc)
    means = [float(re.search(r"[\d.]+(?= ±)", line)[0]) for line in lines]  # type: ignore[index]
    assert means == sorted(means, reverse=True)
    assert lines[0].split()[1] == "★"
    tied = {line.split()[0] for line in lines if line.split()[1] == "≈"}
    assert tied == set(measured.answer.ties)
    # Numbers are aligned with and without a sign.
    assert len({line.index("±") for line in lines}) == 1


def test_a_long_table_keeps_the_recommended_method_and_the_baselines(measured: Report) -> None:
    assert measured.answer is not None
    many = {f"row-{number:02d}": next(iter(measured.methods.values())) for number in range(30)}
    report = replace(measured, methods={**many, **measured.methods})
    means = {**dict.fromkeys(many, 0.99), **measured.answer.auroc}
    ends = {**dict.fromkeys(many, (0.98, 1.0)), **measured.answer.intervals}
    report.answer = replace(measured.answer, auroc=means, intervals=ends)
    [table] = terminal_tables(report, 80)
    names = [row[0].text for row in table.rows]
    assert len(names) == 21
    assert {"msp", "ebo", "scale", measured.answer.use} <= set(names)
    assert table.notes[-1].startswith("16 more methods are in results.md")
    assert len(terminal_tables(report, 80, sets=True)[-1].rows) == 37


def test_every_file_has_the_answer_and_the_order(measured: Report, tmp_path: Path) -> None:
    assert measured.answer is not None
    tables.write_tables(measured, tmp_path)
    order = list(measured.answer.auroc)
    text = (tmp_path / "results.md").read_text()
    assert text.startswith(f"{measured.answer.sentence} {measured.answer.cost}\n")
    rows = [line.split(" | ")[0][2:] for line in text.splitlines() if line.startswith("| ")]
    assert rows[1 : len(order) + 1] == order
    tex = (tmp_path / "results.tex").read_text()
    assert tex.startswith(f"% {measured.answer.sentence}\n% {measured.answer.cost}\n")
    assert r"$\star$" in tex
    lines = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert list(dict.fromkeys(line["method"] for line in lines)) == order
    assert {line["method"] for line in lines if line["use"] == "1"} == {measured.answer.use}
    assert lines[0]["rank"] == "1"
    assert {"best", "tie"} <= {line["auroc_mark"] for line in lines}
