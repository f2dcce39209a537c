"""Every code block of README and the site runs, and the site builds strictly."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import idness

from .code_blocks import ROOT, blocks_of, run_document
from .workspace import make_workspace

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(ROOT / "tools"))
    PAGES = importlib.import_module("docs_pages")
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in WRITTEN if path.is_file()}
# test_readme.py runs the Python block of the README and compares what it prints.
DOCUMENTS["README.md"] = DOCUMENTS["README.md"].replace("```python", "```text")
DOCUMENTS |= {f"docs/{name}": text for name, text in PAGES.pages().items() if name != "results.md"}


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_workspace(tmp_path_factory.mktemp("documents"))


# The blocks of tutorials are cells of notebooks, which tests/test_tutorials.py runs.
RUN_HERE = [name for name, text in DOCUMENTS.items() if blocks_of(text) and not name.startswith("docs/tutorials/")]


@pytest.mark.parametrize("name", RUN_HERE)
def test_every_code_block_runs(name: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "here"
    shutil.copytree(workspace, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / ".cache"))
    before = set(sys.modules)
    try:
        assert run_document(name, DOCUMENTS[name], folder) > 0
    finally:
        for module in set(sys.modules) - before:
            if str(getattr(sys.modules[module], "__file__", "")).startswith(str(folder)):
                del sys.modules[module]


@pytest.mark.parametrize(
    "block", ["```bash\nfalse\n```\n", "```python\n1 / 0\n```\n", "```toml\na = \n```\n", "```cobol\n```\n"]
)
def test_a_block_that_fails_fails(block: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, ZeroDivisionError, ValueError)):
        run_document("x", block, tmp_path)


def test_every_method_has_a_page_with_all_its_options() -> None:
    from idness.detectors.registry import available, parse

    pages = PAGES.pages()
    for name, cls in available().items():
        text = pages[f"methods/{name}.md"]
        assert PAGES.summary(cls) in text
        written = re.search(r"Command line: `--methods '(.+?)'`\.", text)
        assert written is not None
        assert parse(written[1]) == cls()
        for option in cls().options():
            row = next(line for line in text.splitlines() if line.startswith(f"| `{option}` |"))
            assert row.split("|")[3].strip(), f"{name}: {option} has no meaning"


def test_commands_are_described_as_the_command_line_has_them() -> None:
    from idness.cli import COMMANDS

    text = PAGES.pages()["commands.md"]
    for name in COMMANDS:
        section = text.split(f"### {name}\n")[1].split("\n#")[0]
        said = idness(name, "--help", COLUMNS="300").stdout
        flags = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", said, re.MULTILINE)) - {"--help"}
        assert flags, name
        assert flags <= set(re.findall(r"--[a-z-]+", section)), name
    assert "| `--out`, `-o` | `idness-results` | Output folder. |" in text


def test_every_public_name_is_in_the_reference() -> None:
    import idness

    told = " ".join(text for name, text in PAGES.pages().items() if name.startswith("api/"))
    for name in idness.__all__:
        if inspect.ismodule(getattr(idness, name)):
            assert name == "methods" or f"idness.{name}" in told, name
        else:
            home = getattr(idness, name)
            assert f"::: {home.__module__}.{home.__qualname__}\n" in told, name


def test_results_come_from_files() -> None:
    pages = PAGES.pages()
    text = pages["results.md"] + pages["methods/index.md"]
    found = [path for pattern in ("**/results.json", "**/*.md") for path in (ROOT / "results").glob(pattern)]
    named = [path.relative_to(ROOT).as_posix() for path in found if path.name != "results.md"]
    assert named
    assert [name for name in named if name not in text] == []


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet, which would keep --strict from seeing any warning.
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_strictly_and_asks_no_one(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= 60
    assert 'id="idness.guard.guard.Guard.calibrate"' in (site / "api" / "guard.html").read_text()
    for page in pages:
        fetched = re.findall(
            r'<(?:script|img|iframe)[^>]+src="(https?:[^"]+)|<link[^>]+rel="stylesheet"[^>]+href="(https?:[^"]+)',
            page.read_text(),
        )
        assert fetched == [], page


CUT_OFF = """() => {
  const width = document.documentElement.clientWidth, apart = ".md-typeset__scrollwrap, pre, .highlight, nav, math";
  const formulas = [...document.querySelectorAll("math[display=block]")].filter((each) => each.scrollWidth > each.clientWidth + 1);
  const leaves = [...document.querySelectorAll(".md-content *")].filter((each) => !each.children.length && !each.closest(apart));
  const beyond = leaves.filter((each) => each.getBoundingClientRect().right > width + 1);
  return [...formulas, ...beyond].map((each) => each.tagName + ": " + each.textContent.slice(0, 60));
}"""


@pytest.mark.browser
def test_nothing_of_the_site_is_cut_off_on_a_phone(site: Path, chromium: Any) -> None:
    tab = chromium.new_page(viewport={"width": 390, "height": 900})
    for name in ("methods/index", "methods/cadref", "methods/rmdspp", "results", "migrating"):
        tab.goto((site / f"{name}.html").as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390, name
        assert tab.evaluate(CUT_OFF) == [], name
    tab.close()


WRITTEN_PAGES = ("*.html", "tutorials/*.html", "methods/index.html", "api/guard.html")


@pytest.mark.browser
@pytest.mark.parametrize(
    ("width", "scheme", "patterns"),
    [
        (390, "dark", ("index.html", "methods/scale.html", "tutorials/comparing.html")),
        *(
            pytest.param(width, scheme, WRITTEN_PAGES, marks=pytest.mark.long)
            for width, scheme in ((390, "light"), (800, "dark"), (1440, "light"))
        ),
    ],
)
def test_nothing_bars_anyone_from_the_site(
    site: Path, chromium: Any, width: int, scheme: str, patterns: tuple[str, ...]
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    tab = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    for page in sorted(page for pattern in patterns for page in site.glob(pattern) if page.name != "404.html"):
        tab.goto(page.as_uri())
        violations = axe.run(tab).response["violations"]
        assert [(each["id"], [node["target"] for node in each["nodes"]][:3]) for each in violations] == [], page.name
    tab.close()
