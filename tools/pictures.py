"""Take the screenshots for the README: python tools/pictures.py FOLDER

FOLDER is the output of `idness bench --out FOLDER`; the first screenshot is the top of its report. The other one is the page of the
service with a verdict on an embedded OOD image, by a guard that is calibrated here. Needs Chromium.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
SIZE = {"width": 1200, "height": 760}
FLAGS = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]


def shoot(page: Any, name: str) -> None:
    """Save a screenshot with few colours, so that the file is small."""
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(192).save(path, optimize=True)
    print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size // 1000} kB")


def report(browser: Any, folder: Path) -> None:
    """Save the first screen of a report."""
    page = browser.new_page(viewport=SIZE, color_scheme="light")
    page.goto((folder / "report.html").resolve().as_uri())
    shoot(page, "report")
    page.close()


def verdict(browser: Any) -> None:
    """Serve a guard, and save its page with the verdict on an OOD image."""
    from idness.data import embedded
    from idness.guard import Guard
    from idness.serve.app import Server
    from idness.serve.schemas import Limits
    from idness.serve.service import Service

    guard = Guard.for_images("photos:mobilenet_v2", "embedded:photos/id_val", method="scale")
    server = Server(Service(guard, Limits()))
    thread = threading.Thread(target=server.run, args=([server.listener],))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.05)
        page = browser.new_page(viewport=SIZE | {"height": 900}, color_scheme="light")
        page.goto("http://{}:{}".format(*server.listener.getsockname()[:2]))
        page.wait_for_selector("#samples:visible", timeout=120_000)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "nebula.avif"
            path.write_bytes(embedded.open_embedded("photos/nebulae").encoded(10) or b"")
            page.set_input_files("#file", path)
            page.wait_for_selector("#neighbours li img")
        page.wait_for_timeout(500)
        shoot(page, "verdict")
    finally:
        server.should_exit = True
        thread.join()


def main(folder: Path) -> None:
    """Save both screenshots."""
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        report(browser, folder)
        verdict(browser)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
