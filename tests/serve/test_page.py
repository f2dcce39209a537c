"""The page in headless Chromium, as a person uses it."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from colour_world import COLOURS, HOW, foreign, known, known_tensors
from tiny_net import Tiny

from idness.guard import Guard
from idness.guard.neighbours import Gallery

pytest.importorskip("fastapi")
from tests.serve.serving import Served, running

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(chromium: Any) -> Any:
    return chromium


@pytest.fixture(scope="module")
def guard_to_show(trained: torch.nn.Module) -> Guard:
    made = Guard(trained, "scale", preprocessing=HOW, class_names=Tiny.class_names).calibrate([known_tensors(200)[0]])
    pictures = [known(list(COLOURS)[index % 4], index) for index in range(24)]
    acts = made.split.split(torch.stack([HOW(picture) for picture in pictures]))
    made.gallery = Gallery.of(pictures, acts.features, acts.logits.argmax(dim=1), made.detector.score(acts))
    return made


@pytest.fixture(scope="module")
def served(guard_to_show: Guard) -> Iterator[Served]:
    with running(guard_to_show) as found:
        yield found


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pictures")
    made = {"known": folder / "red disc.png", "foreign": folder / "<img src=x onerror=alert(1)>.png"}
    known("red", 3).save(made["known"])
    foreign(2).save(made["foreign"])
    return made


class Visit:
    """An open page that remembers what went wrong on it."""

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

    def give(self, path: Path, state: str) -> None:
        self.page.set_input_files("#file", path)
        self.page.wait_for_selector(f"#card[data-state={state}]")
        self.page.wait_for_selector("#drop:not([aria-busy])")

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))


def overflows(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 390), ("dark", 320)])
def test_an_image_is_judged_and_explained(
    browser: Any, served: Served, pictures: dict[str, Path], scheme: str, width: int, tmp_path: Path
) -> None:
    with Visit(browser, served, color_scheme=scheme, viewport={"width": width, "height": 860}) as visit:
        page = visit.page
        page.wait_for_selector("#chart .in rect")
        assert "scale(percentile=85)" in visit.text("#about")
        visit.give(pictures["known"], "in")
        assert visit.text("#headline") == "In distribution"
        assert visit.text("#class") == "red"
        visit.give(pictures["foreign"], "out")
        assert visit.text("#headline") == "Out of distribution"
        assert float(visit.text("#p-value")) < 0.05
        page.wait_for_selector("#neighbours li:nth-child(6) img")
        assert page.evaluate("[...document.images].every((image) => image.hidden || image.naturalWidth > 0)")
        assert page.locator("#recent .tile").count() == 2
        assert not overflows(page)
        shot = page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert len(shot) > 20_000
        assert visit.troubles == []
        assert visit.asked <= {visit.home.split("/")[2], "local"}


def test_light_and_dark_differ(browser: Any, served: Served) -> None:
    grounds = set()
    for scheme in ("light", "dark"):
        with Visit(browser, served, color_scheme=scheme) as visit:
            grounds.add(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2


def test_the_slider_moves_threshold_and_verdict_by_keyboard(
    browser: Any, served: Served, guard_to_show: Guard, tmp_path: Path
) -> None:
    # A picture between the extremes: kept at a high recall, flagged at a low one.
    seeds = [seed for seed in range(300) if 0.1 < float(guard_to_show.judge(known("green", seed)).p_value) < 0.4]
    path = tmp_path / "between.png"
    known("green", seeds[0]).save(path)
    with Visit(browser, served) as visit:
        visit.give(path, "in")
        before = visit.page.text_content("#chart .limit-text")
        visit.page.focus("#recall")
        visit.page.keyboard.press("Home")
        visit.page.wait_for_selector("#card[data-state=out]")
        assert visit.text("#kept") == "50 %"
        assert "At most 50 % false alarms" in visit.text("#alarms")
        assert visit.page.text_content("#chart .limit-text") != before
        shown = float(visit.page.text_content("#chart .limit-text").split()[-1])
        exact = float(guard_to_show.calibration.thresholds(0.5)[0]) if guard_to_show.calibration else 0.0
        assert shown == pytest.approx(exact, rel=2e-3)
        visit.page.keyboard.press("End")
        visit.page.wait_for_selector("#card[data-state=in]")
        assert visit.troubles == []


def test_everything_is_reached_by_tab(browser: Any, served: Served, pictures: dict[str, Path]) -> None:
    with Visit(browser, served) as visit:
        visit.page.wait_for_selector("#chart .in rect")
        visit.give(pictures["known"], "in")
        visit.page.evaluate("document.activeElement.blur()")
        reached = []
        for _ in range(60):
            visit.page.keyboard.press("Tab")
            reached.append(
                visit.page.evaluate("document.activeElement.id || document.activeElement.tagName.toLowerCase()")
            )
        assert {"file", "recall", "summary", "a"} <= set(reached)


SYNTHETIC = """([content, kind]) => {
  const bytes = Uint8Array.from(atob(content), (each) => each.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], "given.png", { type: "image/png" }));
  const event = kind === "paste" ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true })
                                 : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  document.body.dispatchEvent(event);
}"""


@pytest.mark.parametrize("kind", ["paste", "drop"])
def test_images_can_be_pasted_and_dropped(browser: Any, served: Served, kind: str) -> None:
    buffer = io.BytesIO()
    known("blue", 1).save(buffer, "PNG")
    with Visit(browser, served) as visit:
        visit.page.wait_for_selector("#chart .in rect")
        visit.page.evaluate(SYNTHETIC, [base64.b64encode(buffer.getvalue()).decode(), kind])
        visit.page.wait_for_selector("#card[data-state=in]")
        assert visit.text("#class") == "blue"
        assert visit.troubles == []


def test_embedded_samples_can_be_picked(browser: Any, served: Served) -> None:
    from idness.serve.samples import samples

    if not samples():
        pytest.skip("the embedded images are not there")
    with Visit(browser, served) as visit:
        visit.page.click("#samples .tile >> nth=0")
        visit.page.wait_for_selector("#card:not([data-state=none])")
        assert visit.page.locator("#samples .tile").count() == len(samples())
        assert visit.troubles == []


def test_a_bad_file_is_told_and_the_next_one_judged(
    browser: Any, served: Served, pictures: dict[str, Path], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"<html>")
    with Visit(browser, served) as visit:
        visit.page.wait_for_selector("#chart .in rect")
        visit.page.set_input_files("#file", bad)
        visit.page.wait_for_selector("#error:visible")
        assert "bad.png" in visit.text("#error")
        visit.give(pictures["known"], "in")
        assert not visit.page.is_visible("#error")
        # The browser itself notes the answer's status; nothing else may be wrong.
        assert all("422" in trouble for trouble in visit.troubles)


def test_a_key_is_asked_for_once(browser: Any, guard_to_show: Guard, pictures: dict[str, Path]) -> None:
    with running(guard_to_show, key="opensesame") as locked, Visit(browser, locked) as visit:
        visit.page.wait_for_selector("#key-form:visible")
        visit.page.fill("#key", "opensesame")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_selector("#chart .in rect")
        visit.give(pictures["known"], "in")
        visit.page.wait_for_selector("#neighbours li img")
        assert not visit.page.is_visible("#key-form")


def test_names_cannot_inject_markup(browser: Any, guard_to_show: Guard, pictures: dict[str, Path]) -> None:
    names = ["<img src=x onerror=alert(1)>", "<script>alert(2)</script>", "b", "y"]
    made = Guard(guard_to_show.split, "msp", preprocessing=HOW, class_names=names).calibrate([known_tensors(100)[0]])
    made.gallery = guard_to_show.gallery
    with running(made) as served, Visit(browser, served) as visit:
        visit.page.set_input_files("#file", pictures["known"])
        visit.page.wait_for_selector("#card:not([data-state=none])")
        visit.page.set_input_files("#file", pictures["foreign"])
        visit.page.wait_for_selector("#recent .tile:visible")
        assert "onerror" in visit.page.inner_html("#sentence") + visit.page.inner_html(
            "#neighbours"
        ) + visit.page.inner_html("#recent")
        assert visit.page.locator("main script, img[onerror]").count() == 0
        assert visit.troubles == []


def test_per_class_thresholds_show_the_classes_own_histogram(
    browser: Any, guard_to_show: Guard, pictures: dict[str, Path]
) -> None:
    made = Guard(guard_to_show.split, "msp", preprocessing=HOW).calibrate([known_tensors(200)[0]], 0.9, per_class=True)
    with running(made) as served, Visit(browser, served) as visit:
        visit.page.wait_for_selector("#chart .in rect")
        assert visit.text("#count") == "200"
        visit.page.set_input_files("#file", pictures["known"])
        visit.page.wait_for_selector("#card:not([data-state=none])")
        assert 20 < int(visit.text("#count")) < 100
        assert visit.troubles == []


def test_docs_list_every_operation(browser: Any, served: Served) -> None:
    with Visit(browser, served) as visit:
        visit.page.goto(visit.home + "/docs")
        visit.page.wait_for_selector("article:nth-child(8)")
        text = visit.text("main")
        assert all(path in text for path in ("/v1/score", "/healthz", "/readyz", "/metrics", "/v1/guard"))
        assert not overflows(visit.page)
        assert visit.troubles == []
