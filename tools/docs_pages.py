"""Generated pages of the documentation: methods, commands, Python API, results, faults.

mkdocs calls `on_config` and `on_files` when it builds the site; tests call `pages`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import sys
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
TUTORIALS = ROOT / "docs" / "tutorials"
MEASURED = RESULTS / "methods.md"
"""The results of all methods, included in their index page."""
ARGUMENT = re.compile(r"^ {4,8}(\w+): (.*)$")


def pages() -> dict[str, str]:
    """Return every generated page by its path in the sources of the site."""
    from idness.detectors.registry import available

    found = {f"methods/{name}.md": method_page(name, cls) for name, cls in available().items()}
    found |= {f"api/{name}.md": api_page(*about) for name, about in API.items()}
    found["changelog.md"] = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return (
        found
        | {
            "methods/index.md": methods_index(),
            "commands.md": commands_page(),
            "results.md": results_page(),
            "faults.md": faults_page(),
        }
        | {name: content for name, (content, _) in tutorial_pages().items()}
    )


@cache
def tutorial_pages() -> dict[str, tuple[str, dict[str, bytes]]]:
    """Return a page for each notebook, as it was last run, with its images by path."""
    import nbformat
    from nbconvert import MarkdownExporter

    found = {}
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        text, resources = MarkdownExporter().from_notebook_node(nbformat.read(path, as_version=4))
        pictures = {}
        for name, content in resources["outputs"].items():
            pictures[f"tutorials/{path.stem}/{name}"] = content
            words = re.search(rb'aria-label="([^"]*)"', content)
            alt = words[1].decode() if words else "an image"
            kind = name.rpartition(".")[2]
            text = text.replace(f"![{kind}]({name})", f"![{alt}]({path.stem}/{name}){{.picture}}")
        text = re.sub(r"<style scoped>.*?</style>| border=\"1\" class=\"dataframe\"", "", text, flags=re.DOTALL)
        said = f"\n\n[This page as a notebook]({path.name}){{download}}, run by a test.\n"
        found[f"tutorials/{path.stem}.md"] = text.strip() + said, pictures
    return found


API: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "index": (
        "Python API",
        "The names of `import idness`. **Higher scores always mean more in-distribution.**",
        tuple(f"idness.{home}" for home in (
            "core.types.Activations", "core.types.Head", "networks.split.SplitModel", "networks.load.load_model",
            "detectors.registry.build", "detectors.registry.available", "detectors.detector.Detector",
            "detectors.detector.Enhancer", "activations.store.FeatureStore",
        )),
    ),
    "guard": (
        "Guards",
        "Decisions about single images; see [deploying](../deploying.md) for their use.",
        tuple(f"idness.guard.{name}" for name in ("guard.Guard", "verdict.Verdict", "conformal.Calibration")),
    ),
    "benchmark": (
        "Benchmarks and reports",
        "Compare methods on a network.",
        tuple(f"idness.benchmark.{name}" for name in (
            "protocol.Benchmark", "protocol.Settings", "runner.run", "results.Report", "results.Answer",
            "compare.gather", "compare.compare",
        )),
    ),
    "metrics": ("Metrics and intervals", "All metrics are in [0, 1].", ("idness.metrics", "idness.intervals")),
    "data": (
        "Images",
        "Read, decode and prepare images.",
        tuple(f"idness.data.{name}" for name in (
            "open.open_set", "decoding.decode", "preprocess.Preprocessing", "preprocess.preprocessing_for",
        )),
    ),
    "training": (
        "Training",
        "ISH and the other training methods; see [training with ISH](../training.md) for their use.",
        tuple(f"idness.training.{name}" for name in (
            "loop.finetune", "ish.IshLinear", "ish.ish", "objective.Settings", "data.open_training",
        )),
    ),
    "figures": ("Figures", "Each function draws on the given axes or new ones, and returns them.", ("idness.report.figures",)),
    "serve": ("Service", "Serve a guard over HTTP.", ("idness.serve.app.serve", "idness.serve.schemas.Limits")),
}  # fmt: skip
"""The pages of the reference: titles, introductions, and the names whose docstrings they show."""


def api_page(title: str, about: str, names: tuple[str, ...]) -> str:
    """Return a page that names the objects whose docstrings mkdocstrings inserts."""
    return "\n".join([f"# {title}", "", about, "", *(f"::: {name}\n" for name in names)])


def commands_page() -> str:
    """Return the page of all subcommands, generated from the command line."""
    from idness.cli import GROUPS
    from idness.cli import command as command_line

    command = command_line()
    lines = [
        "# Commands",
        "",
        "The output of `idness COMMAND --help`. Errors that the user can fix are printed as one line, with exit code 2.",
        "",
    ]
    lines += ["`idness --install-completion` enables completion of commands in bash, zsh, fish and PowerShell.", ""]
    for title, names in GROUPS.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += command_section(name, command.commands[name])
    return "\n".join(lines)


def command_section(name: str, command: Any) -> list[str]:
    """Return the section of one subcommand: its summary, arguments and options."""
    arguments = [each for each in command.params if each.param_type_name == "argument" and not each.hidden]
    usage = " ".join(["idness", name, "[OPTIONS]", *(argument_usage(each) for each in arguments)])
    lines = [f"### {name}", "", inspect.cleandoc(command.help or ""), "", "```text", usage, "```", ""]
    lines += ["| argument or option | default | meaning |", "|---|---|---|"]
    for each in command.params:
        if each.name in ("help", "install_completion", "show_completion") or each.hidden:
            continue
        written = ", ".join(f"`{word}`" for word in each.opts) if each not in arguments else f"`{each.name.upper()}`"
        default = "" if each.default in (None, "", False) or each.required else f"`{each.default}`"
        lines.append(f"| {written} | {default} | {(each.help or '').replace('|', '/')} |")
    return [*lines, ""]


def argument_usage(argument: Any) -> str:
    """Return an argument as in a usage line."""
    text = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return text if argument.required else f"[{text}]"


def methods_index() -> str:
    """Return the page that lists all methods with their requirements and cost."""
    from idness.detectors.registry import available

    lines = [
        "---",
        "hide: [toc]",
        "---",
        "# Methods",
        "",
        "Each method is a function of a network's features, logits and final linear layer, so comparing all of them",
        "runs the network only once per image. `idness list` prints the same list.",
        "",
        "| method | what it does |",
        "|---|---|",
    ]
    methods = available()
    lines += [f"| [`{name}`]({name}.md) | {cls.summary()} |" for name, cls in methods.items()]
    homes = {row: name for name, cls in methods.items() for row in (cls.rows or [name])}
    measured = re.sub(
        r"^\| ([a-z-]+) \|",
        lambda match: f"| [`{match[1]}`]({homes[match[1]]}.md) |" if match[1] in homes else match[0],
        text_section(MEASURED),
        flags=re.MULTILINE,
    )
    return "\n".join([*lines, "", measured]) + "\n"


def method_page(name: str, cls: Any) -> str:
    """Return the page of one method, generated from its dataclass."""
    source = inspect.getsource(sys.modules[cls.__module__])
    title, _, paper = (sys.modules[cls.__module__].__doc__ or name).strip().partition(" -- ")
    about, arguments = docstring(cls)
    lines = [f"# {title}", "", f"**{summary(cls)}**", ""]
    lines += [about, ""] if about else []
    lines += [f"*{paper}*", ""] if paper else []
    if cls.formula:
        parts = [line for part in cls.formula.split(r", \quad ") for line in (f"$`{part}`$", "")]
        lines += ["## Formula", "", *parts, "[Symbols](index.md#letters-in-the-formulas).", ""]
    lines += ["## Requirements", "", *(f"- {line}" for line in needs(cls)), "", "## Options", ""]
    lines += options_table(cls, arguments)
    if cls.rows:
        rows = ", ".join(f"`{row}`" for row in cls.rows)
        lines += ["", f"A comparison lists its variants separately: {rows}."]
    lines += ["", *brought(name, cls)]
    lines += [
        f"Command line: `--methods '{cls().label()}'`. Python: `idness.build(\"{name}\")`, with options as keyword arguments.",
        "",
    ]
    lines += ["## Source code", "", "```python", *source.rstrip().splitlines(), "```", ""]
    return "\n".join(lines)


def brought(name: str, cls: Any) -> list[str]:
    """Return the measured results of a method on each network, relative to the energy score."""
    methods = json.loads(MEASURED.with_suffix(".json").read_text(encoding="utf-8"))["methods"]
    rows = {row: methods[row]["difference to ebo"] for row in (cls.rows or [name]) if row in methods}
    networks = list(dict.fromkeys(network for gains in rows.values() for network in gains))
    if name == "ebo" or not networks:
        return []
    said = "Points of AUROC above the energy score, ± half of a 95 % interval, with default options; from `results/methods.json`."
    lines = ["## Measured results", "", said, "", f"| network | {' | '.join(rows)} |", f"|---|{'--:|' * len(rows)}"]
    for network in networks:
        found = (gains.get(network) for gains in rows.values())
        cells = [f"{100 * gain[0]:+.1f} ± {50 * (gain[2] - gain[1]):.1f}" if gain else "" for gain in found]
        lines.append(f"| {' | '.join([network, *cells])} |")
    return [*lines, ""]


def needs(cls: Any) -> list[str]:
    """Return sentences on the training data and the assumptions of a method."""
    if cls.needs_val:
        learns = "validation images, or training images if there are none"
    elif cls.needs_train:
        learns = "training images" + (" with their labels" if cls.needs_labels else "")
    else:
        learns = "its training run" if cls.of_run else "nothing"
    found = ["Needs no training data." if learns == "nothing" else f"Learns from {learns}."]
    found += [f"Assumes that {cls.assumes}."] if cls.assumes else []
    if cls.assumes_nonnegative:
        found.append("Requires non-negative features (post-ReLU); warns otherwise.")
    else:
        found.append("Works with features of any sign.")
    found.append("Uses the final layer's weights." if cls.uses_head else "Does not use the final layer's weights.")
    return found


def options_table(cls: Any, arguments: dict[str, str]) -> list[str]:
    """List the options with defaults, meanings and the values that a search tries."""
    fields = dataclasses.fields(cls)
    if not fields:
        return ["None."]
    lines = ["| option | default | meaning | values searched |", "|---|---|---|---|"]
    known = {"readout": "score computed from the edited logits: `energy`, `msp` or `max_logit`"} | arguments
    for field in fields:
        tried = ", ".join(f"`{value}`" for value in cls.grid.get(field.name, ()))
        meaning = known.get(field.name, "").replace("|", "\\|")
        lines.append(f"| `{field.name}` | `{field.default}` | {meaning} | {tried or '–'} |")
    return lines


def summary(cls: Any) -> str:
    """Return the first line of a docstring."""
    return (cls.__doc__ or "").strip().splitlines()[0]


def docstring(cls: Any) -> tuple[str, dict[str, str]]:
    """Return the text after the first line of a docstring, and its arguments."""
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
    """Return the page of all results; every number is in a file under `results/`."""
    lines = [
        "# Results",
        "",
        "All numbers are read from files under `results/` when the site is built, each shown with the command that produced it.",
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


def faults_page() -> str:
    """Return the page of the faults that tests are marked with, by folder of the tests."""
    lines = ["# Faults", "", "What can go wrong, how idness responds, and the test that verifies it.", ""]
    folder = None
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                    if file.parent != folder:
                        folder = file.parent
                        lines += [
                            "",
                            f"## {folder.name.capitalize()}",
                            "",
                            "| fault | response | test |",
                            "|---|---|---|",
                        ]
                    cells = [ast.literal_eval(mark.args[0]), ast.literal_eval(mark.keywords[0].value)]
                    cells = [text.replace("|", "\\|").replace("<", "&lt;") for text in cells]
                    lines.append(f"| {' | '.join(cells)} | `{file.relative_to(ROOT).as_posix()}::{node.name}` |")
    return "\n".join(lines) + "\n"


def bench_section(path: Path) -> list[str]:
    """Return the section of one benchmark: its main table, made from its results."""
    from idness.benchmark.results import Report
    from idness.report.tables import markdown, summary

    report = Report.from_json(path.read_text(encoding="utf-8"))
    where = path.parent.relative_to(ROOT).as_posix()
    command = json.dumps(report.provenance.get("command", ""))[1:-1]
    table = markdown(summary(report)).replace("### ", "## ", 1)
    return [table, f"From `{where}/results.json`, made by `{command}`.", ""]


def speed_section(path: Path) -> list[str]:
    """Return the section of one speed measurement: its rows as a table."""
    found = json.loads(path.read_text(encoding="utf-8"))
    columns = list(dict.fromkeys(key for row in found["rows"] for key in row))
    lines = [f"## {found['title']}", "", "| " + " | ".join(columns) + " |", "|---|" + "--:|" * (len(columns) - 1)]
    for row in found["rows"]:
        lines.append("| " + " | ".join(number(row.get(key)) for key in columns) + " |")
    lines += ["", *(f"- {note}" for note in found.get("notes", [])), ""]
    where = path.relative_to(ROOT).as_posix()
    return [*lines, f"From `{where}`, made by `{found['command']}`. Compare ratios, not times.", ""]


def number(value: Any) -> str:
    """Return a value with its significant digits."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value).replace("|", "\\|")


def text_section(path: Path) -> str:
    """Return a text of the results one heading level lower, with its figures but without other links."""
    where = path.relative_to(ROOT).as_posix()
    folder = path.parent.relative_to(ROOT).as_posix()
    text = re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", path.read_text(encoding="utf-8"))
    text = re.sub(r"!\[([^\]]*)\]\((?!https?:)([^)]*)\)", rf"![\1]({folder}/\2){{.picture}}", text)
    text = re.sub(r"^(#+) ", r"#\1 ", text.strip(), flags=re.MULTILINE)
    if path.name == "mutants.md":  # hundreds of rows that only matter to contributors
        text = text.partition("\n| ")[0].strip()
    return f"{text}\n\nFrom `{where}`."


def on_config(config: Any) -> Any:
    """Add the methods to the navigation."""
    from idness.detectors.registry import available

    for entry in config["nav"]:
        if "Methods" in entry:
            each = [{name: f"methods/{name}.md"} for name in sorted(available())]
            entry["Methods"] = [{"All methods": "methods/index.md"}, {"One by one": each}]
        if "Reference" in entry:
            entry["Reference"] += [{about[0]: f"api/{name}.md"} for name, about in API.items()]
    return config


EMPTY_HEADING = re.compile(r"<th( [^>]*)?></th>")
FORMULA = re.compile(r"(<p>)?\$<code>([^<]*)</code>\$(?(1)</p>)")
"""An inline formula, or one in its own paragraph."""


def on_page_content(html: str, **_: Any) -> str:
    """Return a page with formulas, written as on GitHub, converted to MathML, which browsers render without scripts."""
    from latex2mathml.converter import convert

    html = EMPTY_HEADING.sub(r"<td\1></td>", html)
    return FORMULA.sub(lambda match: convert(unescape(match[2]), display="block" if match[1] else "inline"), html)


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File

    for name, content in pages().items():
        files.append(File.generated(config, name, content=content))
    for _, pictures in tutorial_pages().values():
        for name, content in pictures.items():
            files.append(File.generated(config, name, content=content))
    for path in (*RESULTS.glob("**/*.svg"), *RESULTS.glob("**/*.png")):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files
