"""The report in a browser."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser


@pytest.fixture
def tab(chromium: Any, folder: Path, page: str) -> Any:
    """The report, in a tab that collects errors and requests."""
    opened = chromium.new_page(viewport={"width": 1280, "height": 900})
    opened.errors, opened.requests = [], []
    opened.on("console", lambda message: opened.errors.append(message.text))
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.on("request", lambda request: opened.requests.append(request.url))
    opened.goto((folder / "report.html").as_uri())
    yield opened
    opened.close()


def column(tab: Any, number: int) -> list[str]:
    return tab.locator("#groups tbody tr").evaluate_all(
        f"rows => rows.map(row => row.cells[{number}].dataset.value || row.cells[{number}].firstChild.textContent)"
    )


def test_no_error_and_no_other_request(tab: Any) -> None:
    tab.wait_for_timeout(100)
    assert tab.errors == []
    assert [url for url in tab.requests if not url.startswith(("file:", "data:"))] == []
    assert sum(url.startswith("file:") for url in tab.requests) == 1


def test_tables_sort_by_mouse_and_keyboard(tab: Any) -> None:
    means = [float(value) for value in column(tab, 1)]
    assert means == sorted(means, reverse=True)
    heading = tab.locator("#groups thead th").nth(4)
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    values = [float(value) for value in column(tab, 4)]
    assert values == sorted(values, reverse=True)
    heading.locator("button").focus()
    tab.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert [float(value) for value in column(tab, 4)] == sorted(values)
    assert tab.locator("#groups thead th[aria-sort]").count() == 1
    tab.locator("#groups thead th").first.locator("button").click()
    names = column(tab, 0)
    assert names == sorted(names)
    fpr = tab.locator("#groups thead th").nth(5)
    fpr.locator("button").click()
    assert fpr.get_attribute("aria-sort") == "ascending"  # the lowest first


@pytest.mark.parametrize("section", ["sets", "scores", "mistakes"])
def test_pickers_show_one_panel_and_move_by_arrow_keys(tab: Any, section: str) -> None:
    panels = tab.locator(f"#{section} .panel")
    visible = [panels.nth(index).is_visible() for index in range(panels.count())]
    assert visible == [True] + [False] * (panels.count() - 1)
    tab.locator(f"#{section} input[type=radio]").first.focus()
    tab.keyboard.press("ArrowRight")
    assert panels.nth(1).is_visible()
    assert not panels.nth(0).is_visible()


def test_light_and_dark_differ_and_can_be_switched(tab: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    tab.emulate_media(color_scheme="light")
    light = tab.evaluate(ground)
    tab.emulate_media(color_scheme="dark")
    dark = tab.evaluate(ground)
    assert light != dark
    tab.locator("#theme").click()
    assert tab.evaluate(ground) == light
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate(ground) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_phone_needs_no_horizontal_scrolling(tab: Any, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_printed_headings_repeat_and_no_figure_leaves_its_title(tab: Any) -> None:
    pypdf = pytest.importorskip("pypdf")
    # As long as the table of a whole comparison is.
    tab.evaluate("""() => document.querySelectorAll("table.sortable tbody").forEach((body) => {
      const rows = [...body.rows]; while (body.rows.length < 45) body.append(rows[body.rows.length % rows.length].cloneNode(true)); })""")
    pages = [page.extract_text().split() for page in pypdf.PdfReader(io.BytesIO(tab.pdf(format="A4"))).pages]
    words = [" ".join(page) for page in pages]
    tab.emulate_media(media="print")
    assert not tab.locator("nav").is_visible()
    assert sum("near FPR" in page for page in words) >= 2
    titles = tab.locator("main h2[id], main .lede, main .picker legend").all_inner_texts()
    assert len(titles) >= 12
    for page in words:
        assert [title for title in titles if page.endswith(" ".join(title.split()))] == []


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_the_page_is_accessible(tab: Any, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    tab.set_viewport_size({"width": width, "height": 800})
    tab.emulate_media(color_scheme=scheme)
    found = axe.run(tab).response["violations"]
    assert [(each["id"], [node["target"] for node in each["nodes"]][:3]) for each in found] == []


SMALLEST = """() => [...document.querySelectorAll("figure.plot > svg")].filter((svg) => svg.getBoundingClientRect().width).map((svg) => {
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  return Math.min(...[...svg.querySelectorAll("text")].map((text) => parseFloat(getComputedStyle(text).fontSize) * scale));
})"""


def test_text_of_figures_is_readable_on_a_phone(tab: Any) -> None:
    tab.set_viewport_size({"width": 390, "height": 800})
    sizes = tab.evaluate(SMALLEST)
    assert len(sizes) >= 8
    assert min(sizes) >= 9
