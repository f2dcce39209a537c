from __future__ import annotations

import copy
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from idness.benchmark.answer import setting
from idness.benchmark.results import Report, best_first, describe_duplicates
from idness.core.text import drawn, duration, percentage, points, shorten, size
from idness.report import write_html
from idness.report.page import NAV, render, shown_images
from idness.report.page import warnings as page_warnings
from tests.measured import bench

VOID = {"meta", "input", "br", "link", "img", "hr", "image", "use", "path", "line", "circle", "rect"}
EVIL = "<script>alert(1)</script>"
HOSTILE = ('"><img src=x onerror=alert(1)>', "$\\frac{a}{b}$ & '`{{7*7}}")


class Outline(HTMLParser):
    """The elements of a page, the parts of their texts, and those that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, list[str]]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[list[str]] = []
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append((tag, self.texts[-1]))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.texts.append([])

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and (not self.open or self.open.pop()[0] != tag):
            self.faults.append(tag)

    def handle_data(self, data: str) -> None:
        for _, texts in self.open:
            texts.append(data)


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    return parser


def test_the_page_is_small_whole_and_refers_to_nothing_else(page: str) -> None:
    assert len(page.encode()) < 2_000_000
    assert "default-src 'none'" in page
    found = outline(page)
    assert found.faults == found.open == []
    ids = [attrs["id"] for _, attrs in found.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = {attrs.get(key) or "#" for _, attrs in found.tags for key in ("src", "href", "xlink:href")}
    assert all(target.startswith(("#", "data:")) for target in targets)
    anchors = {target[1:] for target in targets if target.startswith("#")} - {""}
    assert {anchor for anchor, _ in NAV} <= anchors <= set(ids)
    assert [attrs["id"] for tag, attrs in found.tags if tag == "section"] == [anchor for anchor, _ in NAV]
    pictures = [attrs for tag, attrs in found.tags if tag == "svg"]
    assert pictures
    assert all(attrs.get("aria-hidden") == "true" or attrs.get("aria-label") for attrs in pictures)
    assert {attrs.get("scope") for tag, attrs in found.tags if tag == "th"} == {"row", "col"}
    assert sum(tag == "table" for tag, _ in found.tags) == sum(tag == "caption" for tag, _ in found.tags)
    assert [tag for tag, _ in found.tags].count("h1") == 1


def test_a_warning_is_shown_once(report: Report) -> None:
    other = copy.copy(report)
    other.duplicates = [{"sets": ["id_train", "id_test"], "images": 0, "near": 1}]
    [line] = describe_duplicates(other.duplicates[:1])
    for warned in ([], [line, "another"]):
        other.warnings = warned
        assert page_warnings(other).count(line) == 1
        assert set(warned) <= set(page_warnings(other))


def test_near_duplicates_within_several_sets_take_one_line() -> None:
    pairs = [{"sets": [name], "images": 0, "near": count} for name, count in (("a", 2), ("b", 1))]
    assert describe_duplicates(pairs) == ["near-duplicates within a (2), b (1)"]


def test_the_numbers_are_those_of_the_results_best_first(report: Report, page: str) -> None:
    for row, item in report.methods.items():
        for metrics in (*item.groups.values(), *item.sets.values()):
            assert percentage(metrics.auroc) in page, row
            assert percentage(metrics.fpr_at_id_recall) in page
        for metrics in item.sets.values():
            assert percentage(metrics.fpr_at_ood_recall) in page
    rows = re.findall(r'<tr><th scope="row"[^>]*>([\w-]+)', page.split('id="groups"')[1])
    means = {row: np.mean([group.auroc for group in item.groups.values()]) for row, item in report.methods.items()}
    assert rows[: len(means)] == best_first(report) == sorted(means, key=lambda row: -means[row])


def test_pages_are_byte_identical_from_run_to_run(folder: Path, page: str) -> None:
    code = (
        "import sys; from idness.report.page import render; from idness.benchmark.results import Report;"
        "sys.stdout.reconfigure(encoding='utf-8'); sys.stdout.write(render(Report.load(sys.argv[1])))"
    )
    other = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True).stdout
    assert other == page


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, str]:
    folder = tmp_path_factory.mktemp("hostile")
    far = ("日本\x00\u202e語", "x" * 300)
    report = bench(folder, rows=("msp", "scale"), near=HOSTILE, far=far, classes=[EVIL] * 4, any_accuracy=True)
    report.warnings = [EVIL]
    report.failed = {EVIL: EVIL}
    report.provenance["command"] = EVIL
    report.model.spec = EVIL
    report.benchmark.title = EVIL
    for groups in report.wrong.values():
        for entries in groups.values():
            for entry in entries:
                entry.item = EVIL
    return report, render(report)


def test_hostile_names_stay_text(hostile: tuple[Report, str]) -> None:
    _, text = hostile
    found = outline(text)
    assert found.faults == []
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert [tag for tag, _ in found.tags].count("img") == 0
    assert not [key for _, attrs in found.tags for key in attrs if key.startswith("on")]
    assert "&lt;script&gt;alert(1)" in text
    assert "{{7*7}}" in text
    assert "\x00" not in text
    assert "\u202e" not in text
    assert "x" * 90 not in text


def test_labels_thumbnails_validation_and_groups_are_optional(report: Report, tmp_path: Path) -> None:
    one = copy.deepcopy(report)
    one.benchmark.groups = {"far": ["noise", "stripes"]}
    one.answer = None
    one.__dict__["scores"], one.__dict__["thumbs"] = report.scores, report.thumbs
    assert outline(render(one)).faults == []
    report = bench(tmp_path, rows=("ebo", "msp"), validation=False)
    report.id_accuracy, report.wrong = None, {}
    for item in report.methods.values():
        item.id_accuracy_shaped = None
    text = render(report)
    assert outline(text).faults == []
    for words in ("no labels", "not searched"):
        assert words in text


def test_thumbnails_keep_to_their_budget(report: Report) -> None:
    full = shown_images(report, list(report.methods))
    assert set(full) == set(report.thumbs)
    budget = sum(map(len, full.values())) // 2
    half = shown_images(report, list(report.methods), budget)
    assert 0 < sum(map(len, half.values())) <= budget
    assert list(half) == list(full)[: len(half)]
    assert re.match(r"data:image/webp;base64,[A-Za-z0-9+/=]+$", next(iter(full.values())))


def test_a_page_is_made_of_the_report_in_memory_or_of_a_folder(folder: Path, page: str, tmp_path: Path) -> None:
    assert write_html(folder) == folder / "report.html"
    path = write_html(tmp_path, Report.load(folder))
    assert path.read_text(encoding="utf-8") == page
    assert list(tmp_path.glob("[!.]*")) == [path]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (shorten("a\nb"), "a\N{REPLACEMENT CHARACTER}b"), (shorten("y" * 50, 5), "yyyy…"), (drawn("$x$"), r"\$x\$"),
        (percentage(None), "–"), (percentage(0.98765), "98.77"), (points(-0.0123), "−1.23"), (points(0.00001), "±0.00"),
        (duration(0.0123), "12 ms"), (duration(5), "5.0 s"), (duration(125), "2 min 05 s"), (duration(7260), "2 h 01 min"),
        (size(5), "5 B"), (size(5_000_000), "5.0 MB"), (size(512_000_000), "512 MB"),
    ],
)  # fmt: skip
def test_formats_of_names_and_numbers(written: str, expected: str) -> None:
    assert written == expected


def test_searched_or_given_options_are_shown(report: Report) -> None:
    assert setting(report, "ebo") == ""
    assert setting(report, "scale") == f"percentile {report.methods['scale'].options['percentile']:g}"
    given = copy.deepcopy(report)
    given.methods["ebo"].chosen_by = "given"
    assert setting(given, "ebo") == "temperature=1"
    given.methods["ebo(temperature=1)"] = given.methods["ebo"]
    assert setting(given, "ebo(temperature=1)") == ""


def test_the_recommended_method_is_marked_and_shown_first(report: Report, page: str) -> None:
    assert report.answer is not None
    tables = page.split("<table")[1:]
    marked = [table for table in tables if f'{report.answer.use} <span class="use">recommended</span>' in table]
    assert len(marked) == 7  # groups, five metrics by set, cost
    for name in ("scores", "mistakes"):
        first = page.split(f'<input type="radio" name="{name}" value="0" checked>')[1]
        assert first.startswith(f"{report.answer.use}</label>")


def test_the_researchers_example_runs(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "researcher.py"
    command = [sys.executable, "-W", "error", str(example), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "mean AUROC" in done.stdout
    assert "difference" in done.stdout
    written = {"report.html", "results.json", "roc.svg", "roc.png", "scores.safetensors"}
    assert written <= {path.name for path in tmp_path.iterdir()}
