"""Fixtures that several rooms share: one small trained network, folders of its pictures, a report, a browser."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as `make test` has it: tests run side by side, and torch reads it once

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from safetensors.torch import load_file, save_file
from torch import nn

SAMPLES = Path(__file__).resolve().parent / "samples"
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
sys.path.insert(0, str(SAMPLES))

import colour_world  # noqa: E402
import tiny_net  # noqa: E402
from colour_world import HOW, known_tensors, write_folder, write_ood  # noqa: E402

from idness.benchmark.results import Report  # noqa: E402
from idness.core.types import Activations, Head  # noqa: E402
from idness.guard import Guard  # noqa: E402
from idness.report import write_html  # noqa: E402
from tests.measured import bench  # noqa: E402
from tests.rectified import World, rectified_world  # noqa: E402

# A busy machine is no failure; and where nobody can look at a failure again, the same examples are tried each time.
settings.register_profile("idness", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("idness")

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the repository; tests that use it carry the mark `shared`."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared/data beside the repository")
    return SHARED


@pytest.fixture(scope="session")
def trained() -> nn.Module:
    """The small network, trained until it knows its colours."""
    return colour_world.trained()


@pytest.fixture(scope="session")
def weights(trained: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_file({name: value.contiguous() for name, value in trained.state_dict().items()}, path)
    return path


@pytest.fixture(scope="session")
def net_spec() -> str:
    return f"{SAMPLES / 'tiny_net.py'}:make"


@pytest.fixture(scope="session")
def id_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("known") / "colours", 60)


@pytest.fixture(scope="session")
def ood_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ood(tmp_path_factory.mktemp("ood") / "odd", 30)


@pytest.fixture
def guard(trained: nn.Module) -> Guard:
    """A guard with SCALE, calibrated on 200 known pictures."""
    made = Guard(trained, "scale", preprocessing=HOW, class_names=tiny_net.Tiny.class_names)
    return made.calibrate([known_tensors(200)[0]])


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the list of trusted model files, and what is remembered of engines, out of the user's home."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}-caches")  # beside it: some tests list what is in theirs


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the benchmark writes it, of the small network on its colours."""
    place = tmp_path_factory.mktemp("colours")
    bench(place)
    return place


@pytest.fixture(scope="session")
def report(folder: Path) -> Report:
    return Report.load(folder)


@pytest.fixture(scope="session")
def page(folder: Path) -> str:
    return write_html(folder).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless browser; tests that use it carry the mark `browser`. Only one can be open in a process at a time."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium; make test-browser installs it")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def world() -> World:
    return rectified_world()


@pytest.fixture(scope="session")
def densenet(shared_data: Path) -> World:
    folder = shared_data / "activations"
    head = Head(**load_file(folder / "head.safetensors"))
    parts = [load_file(folder / f"{name}.safetensors") for name in ("cifar10_test", "isun")]
    inside, outside = (Activations(part["features"], part["logits"], part.get("labels")) for part in parts)
    return World(head, inside, outside)
