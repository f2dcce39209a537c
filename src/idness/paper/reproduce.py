"""Runs the paper's tables on what data there is, and puts ours beside theirs: `idness reproduce`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from idness.benchmark.parts import MethodResult
from idness.benchmark.protocol import Benchmark
from idness.benchmark.results import Report, results_folder
from idness.benchmark.runner import run
from idness.benchmark.settings import Settings
from idness.core.errors import DataError, IdnessError
from idness.core.files import OutputFolder, key_of, sha256
from idness.core.progress import Listener
from idness.networks import densenet
from idness.paper import load, names
from idness.paper.comparison import Entry, Outcome, compare, markdown, missing, slips
from idness.paper.locate import Located, Missing, locate
from idness.paper.tables import PRINTED, PaperRow, PaperTable
from idness.report.tables import markdown_lines

MODELS = {
    "cifar10": f"{densenet.__file__}:cifar10",
    "cifar100": f"{densenet.__file__}:cifar100",
    "imagenet": "torchvision:resnet50",
    "imagenet-react": "torchvision:resnet50",
}
P_VALUE_IMAGES = 1000
SUMMARY, PAGE, KEY = "reproduce.json", "reproduce.md", "reproduced.key"


@dataclass
class Reproduction:
    """Collects the outcomes of all tables that were asked for."""

    outcomes: list[Outcome]

    def to_json(self) -> str:
        """Write all numbers as JSON."""
        values = {outcome.table.name: outcome.to_dict() for outcome in self.outcomes}
        return json.dumps({"tables": values}, indent=1, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """Write what was measured as Markdown, then what was not and why, then the slips of the paper itself."""
        measured = [outcome for outcome in self.outcomes if outcome.measured]
        lines = ["# The paper, reproduced\n", *(markdown(outcome) for outcome in measured)]
        if others := [outcome for outcome in self.outcomes if not outcome.measured]:
            lines += ["## Not reproduced\n"]
            lines += [f"- {line}" for outcome in others for line in not_reproduced(outcome)]
        if gaps := missing(self.outcomes):
            lines += ["\n## What is missing\n", *markdown_lines(gaps)]
        said = [f"- {line}" for line in slips(self.outcomes)]
        return "\n".join([*lines, "\n## Where the paper contradicts itself\n", *said]) + "\n"

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write JSON and Markdown."""
        return reproduction_folder(folder).write({SUMMARY: self.to_json(), PAGE: self.to_markdown()})


def reproduction_folder(path: str | os.PathLike[str], *, force: bool = False) -> OutputFolder:
    """Return the output folder of a reproduction."""
    return OutputFolder.of(path, _written, force=force)


def _written(folder: Path) -> list[str]:
    """Return the names of the files that a reproduction of 0.1.0 consists of; empty if the folder has none."""
    try:
        json.loads((folder / SUMMARY).read_bytes())["tables"]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    return [SUMMARY, PAGE, *(f"{name}.json" for name in names())]


def reproduce(
    tables: Sequence[str] = (),
    data: Sequence[str | Path] = (),
    *,
    out: str | os.PathLike[str] = "reproduced",
    settings: Settings | None = None,
    listener: Listener | None = None,
) -> Reproduction:
    """Run every table for which the data is on disk, and compare it with the paper number by number.

    Args:
        tables: names of tables; all if empty.
        data: folders that hold the sets under their usual names.
        out: where each benchmark's report and the comparison are written.
        settings: batch size, precision, cache and the like; `weights` replaces the weights that would be looked for.
        listener: hears of progress.
    """
    wanted = [load(name) for name in tables or names()]
    for folder in data:
        if not Path(folder).is_dir():
            raise DataError(f"data={str(folder)!r} does not exist; it must be a folder that holds the sets")
    roots = [Path(folder) for folder in data] or [Path("data")]
    # The paper's numbers stand beside ours: those of a network that is not the paper's show it, and do not stop the others.
    asked = replace(settings or Settings(), any_accuracy=True)
    target = reproduction_folder(out)
    target.check()
    target.record(target.files)  # before the benchmarks write into folders below it
    lab = _Lab(roots, target, asked, listener or Listener())
    done = Reproduction([lab.outcome(table) for table in wanted])
    done.save(lab.out)
    return done


def not_reproduced(outcome: Outcome) -> list[str]:
    """Name a table without any number of ours in a line, with what hindered it."""
    table = outcome.table
    return [f"{table.name}: {table.title} ({table.where})", *outcome.notes, *outcome.failed.values()]


class _Lab:
    """Reproduces tables; each benchmark that they share is located and run once."""

    def __init__(self, roots: list[Path], out: OutputFolder, settings: Settings, listener: Listener) -> None:
        self.roots, self.out, self.settings, self.listener = roots, out, settings, listener
        self.located: dict[str, Located] = {}
        self.results: dict[str, dict[str, MethodResult]] = {}
        self.failed: dict[str, dict[str, str]] = {}
        self.theory: list[str] = []  # what the paper's section 3 says of the sets at hand
        self.trained: dict[str, str] = {}  # rows of Table 5 that could not be run, by name

    def outcome(self, table: PaperTable) -> Outcome:
        """Reproduce one table as far as the data goes."""
        if table.name == "cifar":
            return self._averages(table)
        where = self._where(table.benchmark)
        result = Outcome(table, images=where.images, missing=list(where.missing), notes=_deviations(table, where))
        try:
            if table.kind == "p-values":
                result.entries = self._p_values(table, where)
                result.notes += self.theory
            else:
                found = self._trained(table, where) if table.name == "training" else self._rows(table, where)
                result.entries = compare(table, found, load("imagenet-sets") if table.benchmark == "imagenet" else None)
                result.folder = table.benchmark if found else None
                failed = self.failed.get(table.benchmark, {})
                rows = [row for row in table.rows if row.method and row.training in (None, "none")]
                result.failed = {row.name: failed[key] for row in rows if (key := _key(row)) in failed}
                result.failed |= self.trained if table.name == "training" else {}
        except IdnessError as error:
            result.entries = compare(table, {})
            result.notes.append(f"could not be run: {error}")
        if table.name == "training":
            lacking = [row for row in table.rows if not row.weights and self._fine_tuned(row) is None]
            result.missing += [_untrained(table, row, self.roots[0]) for row in lacking]
            result.notes += [f"{row.name}: {row.recipe}" for row in table.rows if row.recipe]
        return result

    def _where(self, name: str) -> Located:
        if name not in self.located:
            weights = None if self.settings.weights is None else Path(self.settings.weights)
            self.located[name] = locate(name, self.roots, weights)
        return self.located[name]

    def _rows(self, table: PaperTable, where: Located) -> dict[str, MethodResult]:
        """Give the results by row; a benchmark runs once for all tables that need it."""
        if where.benchmark is None or where.weights is None:
            return {}
        name = table.benchmark
        if name not in self.results:
            self.results[name] = self._run(name, where.benchmark, where, where.weights, _methods(name))
        return _by_row(table.rows, self.results[name])

    def _trained(self, table: PaperTable, where: Located) -> dict[str, MethodResult]:
        """Give the results of networks that were trained differently, each with its own weights."""
        found = self._rows(replace(table, rows=tuple(row for row in table.rows if row.weights)), where)
        for row in table.rows:
            weights = self._fine_tuned(row)
            if weights is not None and where.benchmark is not None and row.method:
                folder = f"{table.benchmark}-{row.training}"
                try:
                    found |= _by_row([row], self._run(folder, where.benchmark, where, weights, [row.method]))
                    if reasons := self.failed[folder]:
                        self.trained[row.name] = "; ".join(reasons.values())
                except IdnessError as error:  # one network that cannot be used must not blank the others' rows
                    self.trained[row.name] = str(error)
        return found

    def _fine_tuned(self, row: PaperRow) -> Path | None:
        """Find the weights that `idness train` left in a folder named after the training method."""
        places = [root / (row.training or "") / "weights.safetensors" for root in self.roots]
        return next((place for place in places if not row.weights and place.is_file()), None)

    def _run(
        self, folder: str, benchmark: Benchmark, where: Located, weights: Path, methods: list[str]
    ) -> dict[str, MethodResult]:
        """Run a benchmark and write its report, unless the report of the same run is there."""
        place = results_folder(self.out.path / folder, force=self.out.force)
        model = MODELS[benchmark.name]
        key = key_of(sha256(weights), json.dumps(where.identity, sort_keys=True), *methods, model.rpartition(":")[2])
        report = _unchanged(place.path, key)
        if report is None:
            place.check()
            settings = replace(self.settings, data=where.root, weights=weights, methods=methods, partial=True)
            report = run(benchmark, model, settings, self.listener)
            _write(report, place, load(_tables_of(benchmark.name)[0]).fpr or "")
            place.write({KEY: key + "\n"})
        self.failed[folder] = report.failed
        return report.methods

    def _averages(self, table: PaperTable) -> Outcome:
        """Fill the table of averages from the two tables that it averages."""
        result = Outcome(table)
        for column, name in (("CIFAR-10", "cifar10"), ("CIFAR-100", "cifar100")):
            part = self.outcome(load(name))
            result.images |= {f"{column} {shown}": pair for shown, pair in part.images.items()}
            result.missing += [gap for gap in part.missing if gap not in result.missing]
            means = {(entry.row, entry.metric): entry for entry in part.entries if entry.column == "average"}
            for row in table.rows:
                for place, metric in enumerate(PRINTED):
                    entry = replace(means[row.name, metric], column=column)
                    whole = entry.ours is None or not entry.partial
                    result.entries.append(replace(entry, theirs=row.means[column][place]) if whole else entry)
        return result

    def _p_values(self, table: PaperTable, where: Located) -> list[Entry]:
        measured: dict[str, float] = {}
        if where.benchmark is not None and where.weights is not None:
            key = key_of(sha256(where.weights), json.dumps(where.identity, sort_keys=True), str(P_VALUE_IMAGES))
            name = f"{table.name}.json"
            kept = _kept(self.out.path / name, key)
            measured, self.theory = kept or self._measured(table, where.benchmark, where)
            content = {"key": key, "mean_p": measured, "theory": self.theory}
            self.out.write({name: json.dumps(content, indent=1) + "\n"})
        return [
            Entry("chi-square", shown, "mean_p", value, measured.get(shown)) for shown, value in table.values.items()
        ]

    def _measured(self, table: PaperTable, benchmark: Benchmark, where: Located) -> tuple[dict[str, float], list[str]]:
        """Compute the mean p-value of each set that the table has, by its printed name, and the terms of the paper's proposition."""
        from idness.paper.studies import proposition, ratios
        from idness.paper.studies.gaussianity import gaussianity
        from idness.paper.studies.specimen import take_specimen

        printed = {name.lower(): name for name in table.values}
        settings = replace(self.settings, data=where.root, weights=where.weights)
        specimen = take_specimen(
            MODELS[benchmark.name], benchmark, settings=settings, limit=P_VALUE_IMAGES, listener=self.listener
        )
        found = {}
        for part in specimen.before_relu:
            name = table.id if part is specimen.ids else printed.get(part.name)
            if name is not None and part.acts.pre_relu is not None:
                found[name] = gaussianity(part.name, part.acts.pre_relu).mean_p
        return found, [f"section 3: {step.study(specimen).line}" for step in (proposition, ratios)]


def _by_row(rows: Sequence[PaperRow], results: Mapping[str, MethodResult]) -> dict[str, MethodResult]:
    """Give results by the row's name."""
    return {row.name: results[key] for row in rows if (key := _key(row)) in results}


def _key(row: PaperRow) -> str:
    """Give the name of a row in a benchmark's results, which has no spaces."""
    return (row.method or "").replace(" ", "")


def _kept(place: Path, key: str) -> tuple[dict[str, float], list[str]] | None:
    """Read the p-values of an earlier run on the same weights and images, and what was found beside them."""
    try:
        stored = json.loads(place.read_text(encoding="utf-8"))
        if stored["key"] != key:
            return None
        return {str(name): float(value) for name, value in stored["mean_p"].items()}, list(stored.get("theory", []))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _methods(name: str) -> list[str]:
    """List the methods of all tables of a benchmark, each once."""
    rows = [row for table in _tables_of(name) for row in load(table).rows if row.training in (None, "none")]
    return list(dict.fromkeys(row.method for row in rows if row.method))


def _tables_of(name: str) -> list[str]:
    return [table for table in names() if load(table).benchmark == name and load(table).kind == "fpr-auroc"]


def _unchanged(folder: Path, key: str) -> Report | None:
    """Give the report of an earlier run on the same weights, images and methods."""
    try:
        if (folder / KEY).read_text(encoding="utf-8").strip() == key:
            return Report.load(folder)
    except (OSError, IdnessError):
        return None
    return None


def _write(report: Report, folder: OutputFolder, fpr: str) -> None:
    """Write the folder that a benchmark writes."""
    from idness.report import write_html
    from idness.report.tables import write_tables

    report.save(folder)
    write_tables(report, folder, "id" if fpr == "fpr_at_id_recall" else "ood")
    write_html(folder, report)


def _deviations(table: PaperTable, where: Located) -> list[str]:
    learners = [row.name for row in table.rows if row.method and row.method.startswith(("dice", "chain"))]
    if learners and "id_train" in where.images:
        return [f"{', '.join(learners)}: means over {where.images['id_train'][0]:,} training images"]
    return []


def _untrained(table: PaperTable, row: PaperRow, root: Path) -> Missing:
    """Say which command trains the network of a row, on the images that its benchmark looks for."""
    spec = Benchmark.load(table.benchmark).id["train"]
    where = f"--data {root / spec['path']} --root {root / spec['root']} --out {root / (row.training or '')}"
    model = MODELS[table.benchmark]
    command = f"idness train {where} --arch {model} --method {row.training} {row.train.format(model=model)}"
    return Missing(f"weights of {row.name}", "98 MB once trained", command)
