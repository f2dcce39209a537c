"""The page in headless Chromium, as a person uses it."""

from __future__ import annotations

import base64
import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from colour_world import HOW, known, known_tensors, ood_picture
from PIL import Image

from idness.guard import Guard

pytest.importorskip("fastapi")
from idness.serve import Limits
from tests.serve.serving import Served, png, running

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def served(shown: Guard) -> Iterator[Served]:
    with running(shown) as found:
        yield found


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pictures")
    made = {"known": folder / "red disc.png", "ood": folder / "<img src=x onerror=alert(1)>.png"}
    known("red", 3).save(made["known"])
    ood_picture(2).save(made["ood"])
    return made


class Visit:
    """An open page that records errors and requests."""

    def __init__(self, browser: Any, served: Served, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.asked: set[str] = set()
        self.page.on(
            "console",
            lambda message: self.troubles.append(message.text) if message.type in ("error", "warning") else None,
        )
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.troubles.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on(
            "request", lambda request: self.asked.add(request.url.split("/")[2] if "//" in request.url else "local")
        )
        self.home = f"http://{served.host}:{served.port}"
        self.page.goto(self.home)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def give(self, path: Path | list[Path], state: str) -> None:
        self.page.set_input_files("#file", path)
        self.page.wait_for_selector(f"#card[data-state={state}]")
        self.page.wait_for_selector("#drop:not([aria-busy])")

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 800), ("light", 540), ("dark", 320)])
def test_an_image_is_judged_and_explained(
    chromium: Any, served: Served, pictures: dict[str, Path], scheme: str, width: int
) -> None:
    with Visit(chromium, served, color_scheme=scheme, viewport={"width": width, "height": 860}) as visit:
        page = visit.page
        page.wait_for_selector("#chart .in rect")
        assert "scale(percentile=85)" in visit.text("#about")
        visit.give(pictures["known"], "in")
        assert visit.text("#class") == "red"
        assert re.fullmatch(r"[01]\.\d{3}", visit.text("#p-value"))
        visit.give(pictures["ood"], "out")
        assert visit.text("#headline") == "Out of distribution"
        assert visit.text("#p-value") == "0.005"  # the smallest of 200 images is 1/201
        assert "It scores lower than all 200 calibration images" in visit.text("#sentence")
        page.wait_for_selector("#neighbours li:nth-child(6) img")
        assert page.evaluate("[...document.images].every((image) => image.hidden || image.naturalWidth > 0)")
        assert page.locator("#list tbody tr:visible").count() == 2
        assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert visit.troubles == []
        assert visit.asked <= {visit.home.split("/")[2], "local"}


def test_the_slider_moves_threshold_and_verdict_by_keyboard(
    chromium: Any, served: Served, shown: Guard, tmp_path: Path
) -> None:
    # A picture between the extremes: kept at a high recall, flagged at a low one.
    seeds = [seed for seed in range(300) if 0.1 < float(shown.judge(known("green", seed)).p_value) < 0.4]
    path = tmp_path / "between.png"
    known("green", seeds[0]).save(path)
    with Visit(chromium, served) as visit:
        visit.give(path, "in")
        before = visit.page.text_content("#chart .limit-text")
        visit.page.focus("#recall")
        visit.page.keyboard.press("Home")
        visit.page.wait_for_selector("#card[data-state=out]")
        assert visit.text("#kept") == "50 %"
        assert "At most 50 % false alarms" in visit.text("#alarms")
        assert visit.page.text_content("#chart .limit-text") != before
        limit = float(visit.page.text_content("#chart .limit-text").split()[-1])
        exact = float(shown.calibration.thresholds(0.5)[0]) if shown.calibration else 0.0
        assert limit == pytest.approx(exact, rel=2e-3)
        visit.page.keyboard.press("End")
        visit.page.wait_for_selector("#card[data-state=in]")
        assert visit.troubles == []


SYNTHETIC = """([content, kind]) => {
  const bytes = Uint8Array.from(atob(content), (each) => each.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], "given.png", { type: "image/png" }));
  const event = kind === "paste" ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true })
                                 : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.body.dispatchEvent(event);
}"""


def test_images_can_be_pasted_dropped_and_picked_among_samples(chromium: Any, served: Served) -> None:
    with Visit(chromium, served) as visit:
        visit.page.wait_for_selector("#chart .in rect")
        for kind, colour in (("paste", "blue"), ("drop", "red")):
            visit.page.evaluate(SYNTHETIC, [base64.b64encode(png(known(colour, 1))).decode(), kind])
            visit.page.wait_for_selector(f"#class:has-text('{colour}')")
        visit.page.click("#samples .tile >> nth=0")
        visit.page.wait_for_selector("#list tbody tr >> nth=2")
        assert visit.troubles == []


def spoiled(folder: Path) -> dict[str, tuple[Path, str]]:
    """Files that cannot be judged, each with what the page must say of it."""
    contents = {
        "truncated.jpg": (png(known("red", 1, side=200), "JPEG")[:900], "The file is truncated (its end is missing)"),
        "notes.png": (b"dear diary", "got something else."),
        "empty.png": (b"", "is an empty file"),
        "drawing.svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "got something else"),
        "large.png": (bytes(SMALL.body + 1), "is too large: 101 kB, and the server accepts at most 100 kB"),
        "wide.png": (png(Image.new("RGB", (600, 600))), "must have at most 250,000 pixels, got 600 x 600"),
    }
    for name, (content, _) in contents.items():
        (folder / name).write_bytes(content)
    return {name: (folder / name, reason) for name, (_, reason) in contents.items()}


SMALL = Limits(body=100_000, pixels=250_000, images=4, queue=16)


@pytest.fixture(scope="module")
def strict(shown: Guard) -> Iterator[Served]:
    """The same guard behind small limits."""
    with running(shown, SMALL) as found:
        yield found


@pytest.mark.parametrize("width", [390, 1440])
def test_a_failure_clears_the_previous_verdict(
    chromium: Any, strict: Served, pictures: dict[str, Path], tmp_path: Path, width: int
) -> None:
    with Visit(chromium, strict, viewport={"width": width, "height": 860}) as visit:
        visit.page.wait_for_selector("#chart .in rect")
        for name, (path, reason) in spoiled(tmp_path).items():
            visit.give(pictures["known"], "in")
            visit.page.wait_for_selector("#neighbours li")
            visit.give(path, "bad")
            assert visit.text("#headline") == f"Not judged: {name}"
            assert reason in visit.text("#sentence")
            assert "b'" not in visit.text("#sentence")
            assert [visit.text(f"#{each}") for each in ("class", "score", "p-value")] == ["–", "–", "–"]
            assert (
                visit.page.locator("#preview:visible, #neighbours:visible, #chart .here, #error:visible").count() == 0
            )
            visit.page.wait_for_function(IN_VIEW)
        # The browser itself notes the answers' status; nothing else may be wrong.
        assert all("422" in trouble for trouble in visit.troubles)


IN_VIEW = """() => {
  const box = document.getElementById("card").getBoundingClientRect();
  return box.top >= 0 && box.bottom <= innerHeight;
}"""


def test_a_batch_is_listed_and_one_broken_file_rejects_no_other(
    chromium: Any, strict: Served, pictures: dict[str, Path], tmp_path: Path
) -> None:
    files = [path for path, _ in spoiled(tmp_path).values()]
    frames = [known("blue", 1), known("green", 1)]
    frames[0].save(tmp_path / "dance.gif", save_all=True, append_images=frames[1:])
    known("green", 4).save(tmp_path / "=green.tiff")
    files += [tmp_path / "dance.gif", tmp_path / "=green.tiff", *pictures.values()]
    with Visit(chromium, strict) as visit:
        page = visit.page
        visit.give(files, "bad")
        assert visit.text("#tally") == "10 files: 3 in distribution, 1 out of distribution, 6 not judged."
        assert {Path(name).name for name in page.locator("#list .name").all_inner_texts()} == {
            path.name for path in files
        }
        assert page.locator("#list .thumb img").count() == 4
        assert page.evaluate("[...document.querySelectorAll('#list img')].every((image) => image.naturalWidth > 0)")
        page.click("#list button[data-key=p_value]")
        column = [text for text in page.locator("#list tbody td:last-child").all_inner_texts() if text]
        assert column == sorted(column)
        assert page.locator("#list th[aria-sort=ascending]").inner_text().startswith("p-value")
        assert page.locator("#list tbody td:last-child").all_inner_texts()[:4] == column
        page.click("#list tr:has-text('dance.gif') button")
        page.wait_for_selector("#card[data-state=in]")
        assert "only the first was judged" in visit.text("#note")
        page.wait_for_selector("#neighbours li")
        assert visit.text("#class") == "blue"
        with page.expect_download() as saved:
            page.click("#csv")
        rows = list(csv.DictReader(saved.value.path().read_text(encoding="utf-8").splitlines()))
        assert [f"{float(row['p_value']):.3f}" for row in rows[:4]] == column
        assert {row["image"] for row in rows if row["verdict"] == "not judged"} == set(spoiled(tmp_path))
        assert all(row["error"] for row in rows if row["verdict"] == "not judged")
        assert "'=green.tiff" in {row["image"] for row in rows}  # no spreadsheet takes it for a formula


def test_several_files_can_be_screened_together(chromium: Any, served: Served, shown: Guard, tmp_path: Path) -> None:
    images = [known("red", seed) for seed in range(30)] + [ood_picture(seed) for seed in range(12)]
    for number, image in enumerate(images):
        image.save(tmp_path / f"{number:02d}.png")
    with Visit(chromium, served) as visit:
        visit.page.set_input_files("#file", sorted(tmp_path.iterdir()))
        visit.page.wait_for_selector("#drop:not([aria-busy])")
        visit.page.wait_for_selector("#list tbody tr >> nth=41")
        for fdr in (0.05, 0.2):
            visit.page.select_option("#fdr", str(fdr))
            visit.page.wait_for_selector("#recall:disabled")
            flagged = int(shown.judge(*images).select(fdr).sum())
            assert f", {flagged} out of distribution" in visit.text("#tally")
        with visit.page.expect_download() as saved:
            visit.page.click("#csv")
        rows = list(csv.DictReader(saved.value.path().read_text(encoding="utf-8").splitlines()))
        values = {row["image"]: float(row["q_value"]) for row in rows}
        wanted = shown.judge(*images).q_values().tolist()
        assert [values[name] for name in sorted(values)] == pytest.approx(wanted, abs=1e-6)
        visit.page.select_option("#fdr", "")
        visit.page.wait_for_selector("#recall:enabled")
        assert visit.troubles == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_pages_are_accessible(
    chromium: Any, served: Served, pictures: dict[str, Path], scheme: str, path: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with Visit(chromium, served, color_scheme=scheme, viewport={"width": 390, "height": 860}) as visit:
        if path == "/":
            visit.give([*pictures.values()], "in")
            visit.page.wait_for_selector("#neighbours li")
        else:
            visit.page.goto(visit.home + path)
            visit.page.wait_for_selector("article:nth-child(8)")
        found = axe.run(visit.page).response["violations"]
        assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found] == []


def test_a_key_is_asked_for_once(chromium: Any, shown: Guard, pictures: dict[str, Path]) -> None:
    with running(shown, key="open-sesame-please") as locked, Visit(chromium, locked) as visit:
        visit.page.wait_for_selector("#key-form:visible")
        assert visit.page.locator("#drop:visible, #verdict:visible, #error:visible").count() == 0
        visit.page.fill("#key", "wrong")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_selector("#error:visible")
        assert "API key is missing or wrong" in visit.text("#error")
        visit.page.fill("#key", "open-sesame-please")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_selector("#chart .in rect")
        visit.give(pictures["known"], "in")
        visit.page.wait_for_selector("#neighbours li img")
        assert visit.page.locator("#key-form:visible, #error:visible").count() == 0


def test_names_cannot_inject_markup_and_each_class_has_its_histogram(
    chromium: Any, shown: Guard, pictures: dict[str, Path]
) -> None:
    names = ["<img src=x onerror=alert(1)>", "<script>alert(2)</script>", "b", "y"]
    made = Guard(shown.split, "msp", preprocessing=HOW, class_names=names)
    made.calibrate([known_tensors(200)[0]], 0.9, per_class=True).gallery = shown.gallery
    with running(made) as served, Visit(chromium, served) as visit:
        visit.page.wait_for_selector("#chart .in rect")
        assert visit.text("#count") == "200"
        visit.page.set_input_files("#file", pictures["known"])
        visit.page.wait_for_selector("#card:not([data-state=none])")
        assert 20 < int(visit.text("#count")) < 100
        visit.page.set_input_files("#file", pictures["ood"])
        visit.page.wait_for_selector("#list tbody tr:visible >> nth=1")
        visit.page.wait_for_selector("#neighbours li")
        assert "onerror" in visit.page.inner_html("#list .name >> nth=0")
        assert visit.page.locator("main script, img[onerror]").count() == 0
        assert visit.troubles == []


def test_docs_list_every_operation_and_try_it(chromium: Any, served: Served, pictures: dict[str, Path]) -> None:
    with Visit(chromium, served) as visit:
        visit.page.goto(visit.home + "/docs")
        visit.page.wait_for_selector("article:nth-child(8)")
        text = visit.text("main")
        assert all(path in text for path in ("/v1/score", "/healthz", "/readyz", "/metrics", "/v1/guard"))
        assert "results[].error" in text
        score = visit.page.locator("article", has=visit.page.locator("h3:has-text('/v1/score')"))
        score.locator("summary").click()
        score.locator("input[type=file]").set_input_files(pictures["known"])
        score.locator("input[type=number]").fill("2")
        score.locator("button").click()
        score.locator(".answer:visible").wait_for()
        assert "200 OK POST /v1/score?neighbours=2&picture=false" in score.locator(".answer p").inner_text()
        [result] = json.loads(score.locator(".answer pre").inner_text())["results"]
        assert (result["class"], len(result["neighbours"])) == ("red", 2)
        assert visit.troubles == []
