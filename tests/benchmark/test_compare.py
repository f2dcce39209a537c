from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from idness.benchmark.compare import Comparison, compare, gather, verdict
from idness.benchmark.results import Report
from idness.core.errors import InputError, OptionError, StoreError
from idness.core.text import points
from idness.intervals import Difference, compare_auroc, compare_fpr
from idness.metrics import FPRS
from idness.report.comparison import to_html, to_markdown
from tests.cli.running import idness
from tests.measured import bench
from tests.report.test_html import outline

ROWS = ("msp", "ebo", "scale")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks, each with three seeds: the trained one, disturbed a little and disturbed much."""
    root = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        bench(root / f"long-seed{seed}", seed=seed, disturbed=0.1, rows=ROWS)
        bench(root / f"short_seed{seed}", seed=seed, disturbed=0.5, rows=ROWS)
    return root


@pytest.fixture(scope="module")
def pair(runs: Path) -> Comparison:
    return compare(gather([f"a={runs / 'short_seed0'}", f"b={runs / 'long-seed0' / 'results.json'}"]))


def line(found: Comparison, metric: str, name: str, row: str) -> object:
    block = next(block for block in found.blocks if (block.metric, block.name) == (metric, name))
    return next(line for line in block.lines if line.row == row)


def test_single_results_differ_by_paired_tests_on_the_same_images(pair: Comparison, runs: Path) -> None:
    old, new = Report.load(runs / "short_seed0"), Report.load(runs / "long-seed0")
    scores = [report.scores.of("ebo", name) for report in (new, old) for name in ("id_test", "pale")]
    found = line(pair, "auroc", "pale", "ebo")
    change = found.changes[0]
    assert (change.value, change.low, change.high, change.p_value) == pytest.approx(compare_auroc(*scores), abs=1e-6)
    assert [value.mean for value in found.values] == [r.methods["ebo"].sets["pale"].auroc for r in (old, new)]
    for metric in FPRS:
        ours, theirs = line(pair, metric, "pale", "ebo").changes[0], compare_fpr(metric, scores[:2], scores[2:])
        assert ours.value == pytest.approx(theirs.value, abs=1e-9)
        # Two bootstraps with other random numbers.
        assert ours.low == pytest.approx(theirs.low, abs=0.05)
        assert ours.high == pytest.approx(theirs.high, abs=0.05)


def test_a_result_does_not_differ_from_itself(runs: Path) -> None:
    found = compare(gather([f"a={runs / 'long-seed0'}", f"b={runs / 'long-seed0'}"]))
    for block in found.blocks:
        for each in block.lines:
            change = each.changes[0]
            assert change is not None
            assert (change.value, change.low, change.high, change.verdict) == (0, 0, 0, "")
    assert found.notes == ()


def test_seeds_of_one_run_become_mean_and_spread(runs: Path) -> None:
    found = compare(gather([str(path) for path in sorted(runs.iterdir())]))
    assert found.names == ("long", "short")
    assert found.runs == (3, 3)
    assert "single training run" not in " ".join(found.notes)
    series = [
        [Report.load(runs / f"{name}seed{seed}").methods["ebo"].groups["far"].auroc for seed in range(3)]
        for name in ("long-", "short_")
    ]
    got = line(found, "auroc", "far", "ebo")
    assert [value.mean for value in got.values] == pytest.approx([np.mean(some) for some in series])
    assert [value.spread for value in got.values] == pytest.approx([np.std(some, ddof=1) for some in series])
    expected = stats.ttest_ind(series[1], series[0], equal_var=False)
    assert got.changes[0].p_value == pytest.approx(expected.pvalue)
    assert (got.changes[0].low, got.changes[0].high) == pytest.approx(tuple(expected.confidence_interval()))


def test_one_run_against_several_has_no_interval(runs: Path) -> None:
    found = compare(gather([f"one={runs / 'short_seed0'}", f"many={runs / 'long-seed0'},{runs / 'long-seed1'}"]))
    assert line(found, "auroc", "near", "ebo").changes[0].low is None
    assert "measure more seeds" in to_markdown(found)


def test_other_images_are_refused_with_all_that_differs(runs: Path, tmp_path: Path) -> None:
    other = bench(tmp_path / "other", rows=ROWS, near=("pale", "other"))
    other.sets["noise"] = dataclasses.replace(other.sets["noise"], sha256="0" * 64, images=3)
    other.recall = 0.9
    (tmp_path / "other" / "results.json").write_text(other.to_json())
    with pytest.raises(InputError) as caught:
        compare(gather([str(runs / "long-seed0"), str(tmp_path / "other")]))
    text = str(caught.value)
    for part in ("recall (0.95 and 0.9)", "mixed (only in long)", "other (only in other)", "noise (150 and 3)"):
        assert part in text


def test_other_skipped_images_are_refused(runs: Path, tmp_path: Path) -> None:
    report = Report.load(runs / "long-seed0")
    scores = dict(report.scores.arrays)
    scores["index/pale"] = scores["index/pale"][::-1].copy()
    report.attach(scores, {})
    report.save(tmp_path / "skipped")
    with pytest.raises(InputError, match="the images skipped in pale"):
        compare(gather([str(runs / "long-seed0"), str(tmp_path / "skipped")]))


def test_what_else_differs_is_noted(runs: Path, tmp_path: Path) -> None:
    report = bench(tmp_path / "x", rows=("msp", "ebo"))
    report.precision["used"] = "bf16"
    report.model.spec = "another"
    (tmp_path / "x" / "results.json").write_text(report.to_json())
    notes = " ".join(compare(gather([str(runs / "long-seed0"), str(tmp_path / "x")])).notes)
    for part in ("is a single training run", "networks differ", "precision differ", "not in every result: scale"):
        assert part in notes


def test_without_scores_there_are_values_but_no_intervals(runs: Path, tmp_path: Path) -> None:
    alone = tmp_path / "results.json"
    alone.write_bytes((runs / "long-seed0" / "results.json").read_bytes())
    found = compare(gather([str(runs / "short_seed0"), str(alone)]))
    shown = line(found, "auroc", "near", "ebo")
    [change] = shown.changes
    assert change.value == pytest.approx(shown.values[1].mean - shown.values[0].mean)
    assert (change.low, change.high, change.p_value, change.verdict) == (None, None, None, "")
    assert "have no interval: tests need their scores.safetensors" in " ".join(found.notes)
    text = to_markdown(found)
    assert points(change.value) in text
    assert "without intervals, their significance is unknown" in text


def test_wrong_calls_are_reported(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="at least two results; runs that differ only in the seed count as one"):
        compare(gather([str(runs / "long-seed0"), str(runs / "long-seed1")]))
    with pytest.raises(StoreError, match="no results.json"):
        gather([str(tmp_path)])
    with pytest.raises(OptionError, match="name=folder"):
        gather(["=", "b"])
    for name, row in (("a", "msp"), ("b", "ebo")):
        bench(tmp_path / name, rows=(row,))
    with pytest.raises(InputError, match="no method in common"):
        compare(gather([str(tmp_path / "a"), str(tmp_path / "b")]))


def test_folders_of_one_name_are_named_with_their_parents(runs: Path, tmp_path: Path) -> None:
    copied = [Report.load(runs / "long-seed0").save(tmp_path / parent / "out").parent for parent in ("p", "q")]
    assert list(gather(list(map(str, copied)))) == ["out", "q/out"]


def test_up_is_better_for_auroc_and_down_for_fpr(pair: Comparison, runs: Path) -> None:
    certain = Difference(0.1, 0.05, 0.2, 0.001)
    assert verdict("auroc", certain) == "better"
    assert verdict("fpr_at_id_recall", certain) == verdict("auroc", Difference(-0.1, -0.2, -0.05, 0.001)) == "worse"
    assert verdict("auroc", certain._replace(low=-0.1)) == ""
    back = compare(gather([f"b={runs / 'long-seed0'}", f"a={runs / 'short_seed0'}"]))
    for found, signs in ((pair, {"", "better"}), (back, {"", "worse"})):
        assert {change.verdict for block in found.blocks for line in block.lines for change in line.changes} == signs
    text = to_markdown(pair)
    assert text.count("✓") - 1 == sum(c.verdict == "better" for b in pair.blocks for x in b.lines for c in x.changes)
    assert text.count("✗") - 1 == sum(c.verdict == "worse" for b in pair.blocks for x in b.lines for c in x.changes)


def test_hostile_entrant_names_stay_text(pair: Comparison) -> None:
    evil = dataclasses.replace(pair, names=("<img src=x onerror=alert(1)>", "b"), notes=("<b>x</b>",))
    found = outline(to_html(evil))
    assert "img" not in [tag for tag, _ in found.tags]


def test_the_command_prints_a_table_of_80_columns_and_names_its_files(runs: Path, tmp_path: Path) -> None:
    both = runs / "short_seed0", runs / "long-seed0"
    done = idness("compare", *both, "--out", tmp_path / "out", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "AUROC, near OOD" in done.stdout
    assert "\x1b" not in done.stdout
    assert "wrote compare.md, compare.html to" in done.stderr
    assert (tmp_path / "out" / "compare.md").read_text(encoding="utf-8").count("### ") == 3 * 6
    found = outline((tmp_path / "out" / "compare.html").read_text(encoding="utf-8"))
    assert found.faults == []
    assert sum(tag == "table" for tag, _ in found.tags) == 3 * 6
    printed = json.loads(idness("compare", *both, "--json").stdout)
    assert printed["names"] == ["short", "long"]
    assert len(printed["blocks"]) == 18
