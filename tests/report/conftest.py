from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from idness.report import write_html
from idness.results import Report

from .digits import bench

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the benchmark writes it, of a small network on handwritten digits."""
    place = tmp_path_factory.mktemp("digits")
    bench(place)
    return place


@pytest.fixture(scope="session")
def report(folder: Path) -> Report:
    return Report.load(folder)


@pytest.fixture(scope="session")
def page(folder: Path) -> str:
    return write_html(folder).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless browser; tests that use it carry the mark `browser`."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium; make test-browser installs it")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()
