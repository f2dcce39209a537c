"""Makes the pages of the site that follow from the code and from results: one per method, and the results.

mkdocs calls `on_config` and `on_files` when it builds the site; `pages` gives the same texts to the tests.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
MEASURED = RESULTS / "methods.md"
"""What was measured of all methods; it stands on their page."""
ARGUMENT = re.compile(r"^ {4,8}(\w+): (.*)$")


def pages() -> dict[str, str]:
    """Give every generated page by its path in the site's sources."""
    from idness.detectors.registry import available

    found = {f"methods/{name}.md": method_page(name, cls) for name, cls in available().items()}
    return found | {"methods/index.md": methods_index(), "results.md": results_page()}


def methods_index() -> str:
    """List all methods with what they need and cost."""
    from idness.detectors.catalogue import catalogue

    lines = [
        "# Methods",
        "",
        "Each is a function of a network's features, its logits and its final linear layer, so a comparison of all of them",
        "runs the network once per image. The same list is printed by `idness list`.",
        "",
        "| method | what it does | training images | features below zero | passes, forward + backward |",
        "|---|---|---|---|---|",
    ]
    for entry in catalogue():
        signed = "unsuited" if entry.assumes_nonnegative else "fine"
        known = f"[`{entry.name}`]({entry.name}.md) | {entry.summary} | {entry.learns_from}"
        lines.append(f"| {known} | {signed} | {entry.passes} |")
    if MEASURED.is_file():
        lines += ["", text_section(MEASURED)]
    return "\n".join(lines) + "\n"


def method_page(name: str, cls: Any) -> str:
    """Describe one method from its dataclass."""
    source = inspect.getsource(sys.modules[cls.__module__])
    title, _, paper = (sys.modules[cls.__module__].__doc__ or name).strip().partition(" -- ")
    about, arguments = docstring(cls)
    lines = [f"# {title}", "", f"**{summary(cls)}**", ""]
    lines += [about, ""] if about else []
    lines += [f"*{paper}*", ""] if paper else []
    lines += ["## What it needs", "", *(f"- {line}" for line in needs(cls)), "", "## Options", ""]
    lines += options_table(cls, arguments)
    if cls.rows:
        rows = ", ".join(f"`{row}`" for row in cls.rows)
        lines += ["", f"A comparison lists its variants apart: {rows}."]
    lines += ["", "## Use", "", "```python", *example(name, cls).splitlines(), "```", ""]
    lines += [f"On the command line it is written with its options: `{cls().label()}`.", ""]
    lines += ["## The whole method", "", "```python", *source.rstrip().splitlines(), "```", ""]
    return "\n".join(lines)


def needs(cls: Any) -> list[str]:
    """Say in words what a method learns from and assumes."""
    if cls.needs_val:
        learns = "validation images of the known classes, or training images where there are none"
    elif cls.needs_train:
        learns = "training images" + (" with their labels" if cls.needs_labels else "")
    else:
        learns = "nothing"
    found = [f"It learns from {learns}."]
    if cls.assumes_nonnegative:
        found.append("It assumes features that are not negative, as a ReLU leaves them; it warns when they are.")
    else:
        found.append("It takes features of any sign.")
    found.append(
        "It uses the final layer's weights." if cls.uses_head else "It does not look at the final layer's weights."
    )
    return found


def options_table(cls: Any, arguments: dict[str, str]) -> list[str]:
    """List the options with defaults, meanings and the values that a search tries."""
    fields = dataclasses.fields(cls)
    if not fields:
        return ["It has none."]
    lines = ["| option | default | meaning | a search tries |", "|---|---|---|---|"]
    known = {"readout": "what is read off the edited logits: `energy`, `msp` or `max_logit`"} | arguments
    for field in fields:
        tried = ", ".join(f"`{value}`" for value in cls.grid.get(field.name, ()))
        meaning = known.get(field.name, "").replace("|", "\\|")
        lines.append(f"| `{field.name}` | `{field.default}` | {meaning} | {tried or '–'} |")
    return lines


def example(name: str, cls: Any) -> str:
    """Write a piece of code that runs as it stands."""
    shown = ", ".join(f"{key}={value!r}" for key, value in cls().options().items() if key != "readout")
    call = f'build("{name}"{", " + shown if shown else ""})'
    if cls.forward_passes > 1:
        return twice(call)
    return f"""import torch
from idness import Activations, Head, build

# Stand-ins for what SplitModel(network).head and .extract(loader) give.
head, labels = Head(torch.randn(10, 64), torch.zeros(10)), torch.arange(300) % 10
features = (torch.randn(300, 64) + head.weight[labels]).relu()
train = Activations(features, head(features), labels)

detector = {call}
detector.fit(head, train)
scores = detector.score(train)  # one number per image; higher is more in-distribution
assert scores.shape == (300,)"""


def twice(call: str) -> str:
    """Write the same for a method that needs the network itself, which a guard has."""
    return f"""import torch
from torch import nn
from idness import Guard, build

# Any torch classifier, and batches of its images as a loader gives them.
network = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
train, known = torch.rand(200, 3, 16, 16), torch.rand(100, 3, 16, 16)

guard = Guard(network, {call})
guard.fit([train]).calibrate([known])
verdict = guard(known[:5])  # the network runs again on each image, slightly changed
assert verdict.score.shape == (5,)"""


def summary(cls: Any) -> str:
    """Give the first line of a docstring."""
    return (cls.__doc__ or "").strip().splitlines()[0]


def docstring(cls: Any) -> tuple[str, dict[str, str]]:
    """Split a docstring into what follows its first line and its arguments."""
    text = inspect.cleandoc(cls.__doc__ or "")
    body, _, listed = text.partition("Args:")
    arguments: dict[str, str] = {}
    last = ""
    for line in listed.splitlines():
        match = ARGUMENT.match(line)
        if match:
            last = match[1]
            arguments[last] = match[2].strip()
        elif last and line.strip():
            arguments[last] += " " + line.strip()
    return "\n".join(body.splitlines()[1:]).strip(), arguments


def results_page() -> str:
    """Collect what was measured; every number stands in a file under `results/`."""
    lines = [
        "# Results",
        "",
        "Every number here is read from a file under `results/` when the site is built; beside each is the command that made it.",
        "",
    ]
    for path in sorted(RESULTS.glob("**/results.json")):
        lines += bench_section(path)
    for path in sorted(RESULTS.glob("speed/*.json")):
        lines += speed_section(path)
    for path in sorted(RESULTS.glob("**/*.md")):
        if path.name != "results.md" and path != MEASURED:
            lines += [text_section(path), ""]
    if len(lines) == 4:
        lines.append("Nothing has been measured yet.")
    return "\n".join(lines) + "\n"


def bench_section(path: Path) -> list[str]:
    """Show one benchmark: its main table, made from its results."""
    from idness.benchmark.results import Report
    from idness.report.table import markdown
    from idness.report.tables import summary

    report = Report.from_json(path.read_text(encoding="utf-8"))
    where = path.parent.relative_to(ROOT).as_posix()
    command = json.dumps(report.provenance.get("command", ""))[1:-1]
    table = markdown(summary(report)).replace("### ", "## ", 1)
    return [table, f"From `{where}/results.json`, made by `{command}`.", ""]


def speed_section(path: Path) -> list[str]:
    """Show one measurement of speed: its rows as a table."""
    found = json.loads(path.read_text(encoding="utf-8"))
    columns = list(dict.fromkeys(key for row in found["rows"] for key in row))
    lines = [f"## {found['title']}", "", "| " + " | ".join(columns) + " |", "|---|" + "--:|" * (len(columns) - 1)]
    for row in found["rows"]:
        lines.append("| " + " | ".join(number(row.get(key)) for key in columns) + " |")
    lines += ["", *(f"- {note}" for note in found.get("notes", [])), ""]
    where = path.relative_to(ROOT).as_posix()
    return [*lines, f"From `{where}`, made by `{found['command']}`. Read ratios, not times.", ""]


def number(value: Any) -> str:
    """Write a value with as many digits as matter."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value).replace("|", "\\|")


def text_section(path: Path) -> str:
    """Take over a text from the results, one heading level lower, its links as plain text."""
    where = path.relative_to(ROOT).as_posix()
    text = re.sub(r"!?\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", path.read_text(encoding="utf-8"))
    text = re.sub(r"^(#+) ", r"#\1 ", text.strip(), flags=re.MULTILINE)
    if path.name == "mutants.md":  # hundreds of rows, for whoever changes the code
        text = text.partition("\n| ")[0].strip()
    return f"{text}\n\nFrom `{where}`."


def on_config(config: Any) -> Any:
    """Add the methods to the navigation."""
    names = sorted(name for name in pages() if name.startswith("methods/") and not name.endswith("index.md"))
    for entry in config["nav"]:
        if "Methods" in entry:
            entry["Methods"] = ["methods/index.md", *names]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File

    for name, content in pages().items():
        files.append(File.generated(config, name, content=content))
    return files
