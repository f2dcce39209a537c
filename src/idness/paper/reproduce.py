"""Reproduction of the paper's tables on the available data: `idness reproduce`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from idness.benchmark.protocol import Benchmark, Settings
from idness.benchmark.results import MethodResult, results_folder
from idness.benchmark.runner import run
from idness.core.errors import DataError, IdnessError
from idness.core.files import OutputFolder
from idness.core.progress import Progress
from idness.networks import densenet
from idness.paper.compare import P_VALUE, Entry, Reproduction, TableOutcome, compare_table
from idness.paper.datasets import DataSet, Located, locate
from idness.paper.tables import PRINTED, PaperRow, PaperTable, load, names

MODELS = {
    "cifar10": f"{densenet.__file__}:DenseNet(classes=10)",
    "cifar100": f"{densenet.__file__}:DenseNet(classes=100)",
    "imagenet": "torchvision:resnet50",
    "imagenet-react": "torchvision:resnet50",
}
SUMMARY, PAGE = "reproduce.json", "reproduce.md"


def reproduce(
    tables: Sequence[str] = (),
    data: Sequence[str | Path] = (),
    *,
    out: str | os.PathLike[str] = "reproduced",
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Reproduction:
    """Run every table whose data is available, and compare it with the paper number by number.

    Args:
        tables: names of the tables; all if empty.
        data: folders with the sets under their usual names.
        out: folder for the report of each benchmark and the comparison.
        settings: batch size, precision, cache and so on; `weights` replaces the search for weights.
        progress: progress callback.
    """
    wanted = [load(name) for name in tables or names()]
    for folder in data:
        if not Path(folder).is_dir():
            raise DataError(f"data={str(folder)!r} does not exist; pass a folder with the sets")
    roots = [Path(folder) for folder in data] or [Path("data")]
    # A network other than the paper's is visible in the numbers; it must not prevent the other tables.
    asked = replace(settings or Settings(), any_accuracy=True)
    target = OutputFolder.of(out)
    target.check()
    target.record(target.files)  # before the benchmarks write into folders below it
    lab = _Lab(roots, target, asked, progress or Progress())
    done = Reproduction([lab.outcome(table) for table in wanted])
    target.write({SUMMARY: done.to_json(), PAGE: done.to_markdown()})
    return done


class _Lab:
    """The reproduction of several tables; each benchmark that they share is located and run once."""

    def __init__(self, roots: list[Path], out: OutputFolder, settings: Settings, progress: Progress) -> None:
        self.roots, self.out, self.settings, self.progress = roots, out, settings, progress
        self.located: dict[str, Located] = {}
        self.results: dict[str, tuple[dict[str, MethodResult], dict[str, str]]] = {}

    def outcome(self, table: PaperTable) -> TableOutcome:
        """Return the outcome of one table, reproduced as far as data is available."""
        if table.name == "cifar":
            return self._averages(table)
        where = self._where(table.benchmark)
        result = TableOutcome(table, sets=list(where.sets))
        try:
            if table.values:
                result.entries, result.notes = self._p_values(table, where)
            else:
                found, result.failed = self._rows(table, where)
                details = load("imagenet-sets") if table.benchmark == "imagenet" else None
                result.entries = compare_table(table, found, details)
                result.folder = table.benchmark if found else None
        except IdnessError as error:
            result.entries = compare_table(table, {})
            result.notes.append(f"could not be run: {error}")
        if table.name == "training":
            lacking = [row for row in table.rows if not row.weights and self._fine_tuned(row) is None]
            result.sets += [_untrained(table, row, self.roots[0]) for row in lacking]
        return result

    def _where(self, name: str) -> Located:
        if name not in self.located:
            self.progress.phase("searching data sets", None)
            weights = self.settings.weights
            self.located[name] = locate(name, self.roots, Path(weights) if weights else None)
        return self.located[name]

    def _rows(self, table: PaperTable, where: Located) -> tuple[dict[str, MethodResult], dict[str, str]]:
        """Return the results of a table's rows by name, and the reasons why others could not be run.

        Rows for a network that was trained differently are run with its weights.
        """
        found: dict[str, MethodResult] = {}
        failed: dict[str, str] = {}
        if where.benchmark is None:
            return found, failed
        # A single run covers the rows without training of all tables of the benchmark.
        rows = [row for other in _tables_of(table.benchmark) for row in other.rows if row.training in (None, "none")]
        everything = list(dict.fromkeys(row.method for row in rows if row.method))
        for row in table.rows:
            fine_tuned = self._fine_tuned(row)
            plain = row.weights or row.training in (None, "none")
            if not row.method or not (fine_tuned if not plain else where.weights):
                continue
            folder = table.benchmark if plain else f"{table.benchmark}-{row.training}"
            methods = everything if plain else [row.method]
            try:
                results, reasons = self._run(folder, where, where.weights if plain else fine_tuned, methods)
            except IdnessError as error:
                if plain:
                    raise
                failed[row.name] = str(error)  # one unusable network must not affect the other rows
                continue
            key = row.method.replace(" ", "")
            found |= {row.name: results[key]} if key in results else {}
            failed |= {row.name: reasons[key]} if key in reasons else {}
        return found, failed

    def _fine_tuned(self, row: PaperRow) -> Path | None:
        """Return the weights that `idness train` wrote to a folder named after the training method."""
        places = [root / (row.training or "") / "weights.safetensors" for root in self.roots]
        return next((place for place in places if not row.weights and place.is_file()), None)

    def _run(
        self, folder: str, where: Located, weights: Path | None, methods: list[str]
    ) -> tuple[dict[str, MethodResult], dict[str, str]]:
        """Run a benchmark once, write its report, and return results and failures by method."""
        from idness.report import write_html
        from idness.report.tables import write_tables

        if folder not in self.results:
            assert where.benchmark is not None
            place = results_folder(self.out.path / folder, force=self.out.force)
            place.check()
            settings = replace(self.settings, data=where.root, weights=weights, methods=methods, partial=True)
            report = run(where.benchmark, MODELS[where.benchmark.name], settings, self.progress)
            fpr = _tables_of(where.benchmark.name)[0].fpr
            report.save(place)
            write_tables(report, place, "id" if fpr == "fpr_at_id_recall" else "ood")
            write_html(place, report)
            self.results[folder] = report.methods, report.failed
        return self.results[folder]

    def _averages(self, table: PaperTable) -> TableOutcome:
        """Return the outcome of the table of averages, from the two tables that it averages."""
        result = TableOutcome(table)
        for column, name in (("CIFAR-10", "cifar10"), ("CIFAR-100", "cifar100")):
            part = self.outcome(load(name))
            result.sets += [replace(item, name=f"{column} {item.name}") for item in part.sets]
            means = {(entry.row, entry.metric): entry for entry in part.entries if entry.column == "average"}
            for row in table.rows:
                for place, metric in enumerate(PRINTED):
                    entry = replace(means[row.name, metric], column=column)
                    whole = entry.ours is None or not entry.partial
                    result.entries.append(replace(entry, theirs=row.means[column][place]) if whole else entry)
        return result

    def _p_values(self, table: PaperTable, where: Located) -> tuple[list[Entry], list[str]]:
        """Return the mean p-value of each set, and notes with the terms of the paper's proposition."""
        from idness.paper.studies import load_study_data, scaling
        from idness.paper.studies.gaussian import chi_square_p_values, proposition_study

        found: dict[str, float] = {}
        notes: list[str] = []
        if where.benchmark is not None and where.weights is not None:
            settings = replace(self.settings, data=where.root, weights=where.weights)
            model = MODELS[where.benchmark.name]
            data = load_study_data(model, where.benchmark, settings, limit=1000, progress=self.progress)
            printed = {data.ids.name if name == table.id else name.lower(): name for name in table.values}
            values = data.before_relu
            known = values.keys() & printed.keys()
            found = {printed[name]: float(chi_square_p_values(values[name]).mean()) for name in known}
            notes = [f"section 3: {step(data).line}" for step in (proposition_study, scaling.ratios)]
        return [Entry("chi-square", name, P_VALUE, p, found.get(name)) for name, p in table.values.items()], notes


def _tables_of(name: str) -> list[PaperTable]:
    """Return the tables of a benchmark that have FPR and AUROC."""
    return [table for table in map(load, names()) if table.benchmark == name and table.rows]


def _untrained(table: PaperTable, row: PaperRow, root: Path) -> DataSet:
    """Return the missing weights of a row, with the command that trains them on the benchmark's images."""
    spec = Benchmark.load(table.benchmark).id["train"]
    where = f"--data {root / spec['path']} --root {root / spec['root']} --out {root / (row.training or '')}"
    model = MODELS[table.benchmark]
    command = f"idness train {where} --model {model} --method {row.training} {row.train.format(model=model)}"
    return DataSet(table.benchmark, f"weights of {row.name}", "98 MB once trained", command)
