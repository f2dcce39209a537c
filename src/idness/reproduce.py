"""Runs the paper's tables on what data there is, and puts ours beside theirs: `idness reproduce`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from idness.benchmark import run
from idness.errors import IdnessError, unknown_name
from idness.files import atomic_write, sha256
from idness.listening import Listener
from idness.paper import densenet, load, names
from idness.paper.comparison import Cell, Outcome, compare, markdown
from idness.paper.locate import Located, Missing, locate
from idness.paper.tables import Table
from idness.results import MethodResult, Report
from idness.settings import Settings
from idness.store import key_of

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
    """Is the outcome of all tables that were asked for."""

    outcomes: list[Outcome]

    def to_json(self) -> str:
        """Write all cells as JSON."""
        values = {outcome.table.name: outcome.to_dict() for outcome in self.outcomes}
        return json.dumps({"tables": values}, indent=1, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """Write all tables as Markdown."""
        return "# The paper, reproduced\n\n" + "\n".join(markdown(outcome) for outcome in self.outcomes)

    def save(self, folder: Path) -> list[Path]:
        """Write JSON and Markdown."""
        return [
            atomic_write(folder / SUMMARY, self.to_json()),
            atomic_write(folder / PAGE, self.to_markdown()),
        ]


def reproduce(
    tables: Sequence[str] = (),
    data: Sequence[str | Path] = (),
    *,
    out: str | Path = "reproduced",
    settings: Settings | None = None,
    listener: Listener | None = None,
) -> Reproduction:
    """Run every table for which the data is on disk, and compare it with the paper cell by cell.

    Args:
        tables: names of tables; all if empty.
        data: folders that hold the sets under their usual names.
        out: where each benchmark's report and the comparison are written.
        settings: batch size, precision, cache and the like; `weights` replaces the weights that would be looked for.
        listener: hears of progress.
    """
    wanted = [_known(name) for name in tables or names()]
    lab = _Lab(
        [Path(folder) for folder in data] or [Path("data")], Path(out), settings or Settings(), listener or Listener()
    )
    done = Reproduction([lab.outcome(table) for table in wanted])
    done.save(lab.out)
    return done


def _known(name: str) -> Table:
    if name not in names():
        raise unknown_name("table", name, names())
    return load(name)


class _Lab:
    """Holds what the tables share: each benchmark is located and run once."""

    def __init__(self, roots: list[Path], out: Path, settings: Settings, listener: Listener) -> None:
        self.roots, self.out, self.settings, self.listener = roots, out, settings, listener
        self.located: dict[str, Located] = {}
        self.results: dict[str, dict[str, MethodResult]] = {}

    def outcome(self, table: Table) -> Outcome:
        """Reproduce one table as far as the data goes."""
        if table.name == "cifar":
            return self._averages(table)
        where = self._where(table.benchmark)
        result = Outcome(table, images=where.images, missing=list(where.missing), notes=_deviations(table, where))
        try:
            if table.kind == "p-values":
                result.cells = self._p_values(table, where)
            else:
                found = self._found(table, where)
                result.cells = compare(table, found, load("imagenet-sets") if table.benchmark == "imagenet" else None)
                result.folder = table.benchmark if found else None
        except IdnessError as error:
            result.cells = compare(table, {}) if table.rows else []
            result.notes.append(f"could not be run: {error}")
        if table.name == "training":
            result.missing += [_untrained(row.name, row.training, self.roots) for row in table.rows if not row.weights]
        return result

    def _where(self, name: str) -> Located:
        if name not in self.located:
            weights = None if self.settings.weights is None else Path(self.settings.weights)
            self.located[name] = locate(name, self.roots, weights)
        return self.located[name]

    def _found(self, table: Table, where: Located) -> dict[str, MethodResult]:
        """Give the results of a table's methods; a benchmark runs once for all tables that need it."""
        if where.benchmark is None or where.weights is None:
            return {}
        if table.benchmark not in self.results:
            self.results[table.benchmark] = self._run(table.benchmark, where)
        found = self.results[table.benchmark]
        rows = table.rows if table.name != "training" else [row for row in table.rows if row.weights]
        return {row.method: found[key] for row in rows if row.method and (key := row.method.replace(" ", "")) in found}

    def _run(self, name: str, where: Located) -> dict[str, MethodResult]:
        assert where.benchmark is not None
        assert where.weights is not None
        folder = self.out / name
        methods = _methods(name)
        key = key_of(
            sha256(where.weights), json.dumps(where.identity, sort_keys=True), *methods, MODELS[name].rpartition(":")[2]
        )
        report = _unchanged(folder, key)
        if report is None:
            settings = replace(self.settings, data=where.root, weights=where.weights, methods=methods, partial=True)
            report = run(where.benchmark, MODELS[name], settings, self.listener)
            _write(report, folder, load(_tables_of(name)[0]).fpr or "")
            atomic_write(folder / KEY, key + "\n")
        return report.methods

    def _averages(self, table: Table) -> Outcome:
        """Fill the table of averages from the two tables that it averages."""
        parts = {"CIFAR-10": self.outcome(load("cifar10")), "CIFAR-100": self.outcome(load("cifar100"))}
        result = Outcome(
            table,
            images={f"{column} {name}": pair for column, part in parts.items() for name, pair in part.images.items()},
        )
        result.missing = [
            replace(gap, name=f"{column} {gap.name}") for column, part in parts.items() for gap in part.missing
        ]
        for row in table.rows:
            for column, part in parts.items():
                for place, metric in enumerate(("fpr", "auroc")):
                    same = [
                        cell
                        for cell in part.cells
                        if (cell.row, cell.column, cell.metric) == (row.name, "average", metric)
                    ]
                    found = same[0] if same else None
                    theirs = (
                        found.theirs
                        if found is not None and found.partial and found.ours is not None
                        else row.means[column][place]
                    )
                    cell = Cell(row.name, column, metric, theirs)
                    result.cells.append(cell if found is None else replace(cell, ours=found.ours, parts=found.parts))
        return result

    def _p_values(self, table: Table, where: Located) -> list[Cell]:
        from idness.analysis.gaussianity import gaussianity
        from idness.analysis.patient import admit

        theirs = {name.lower(): (name, value) for name, value in table.values.items()}
        measured: dict[str, float] = {}
        if where.benchmark is not None and where.weights is not None:
            settings = replace(self.settings, data=where.root, weights=where.weights)
            patient = admit(
                MODELS[table.benchmark],
                where.benchmark,
                settings=settings,
                limit=P_VALUE_IMAGES,
                listener=self.listener,
            )
            for found in patient.before_relu:
                name = (table.id or "").lower() if found is patient.inside else found.name
                if found.pre is not None:
                    measured[name] = gaussianity(found.name, found.pre).mean_p
        return [
            Cell("chi-square", shown, "mean_p", value, measured.get(name)) for name, (shown, value) in theirs.items()
        ]


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


def _write(report: Report, folder: Path, fpr: str) -> None:
    """Write the folder that a benchmark writes."""
    from idness.report import write_html
    from idness.report.tables import write_tables

    report.save(folder)
    write_tables(report, folder, "id" if fpr == "fpr_at_id_recall" else "ood")
    write_html(folder)


def _deviations(table: Table, where: Located) -> list[str]:
    found: list[str] = []
    learners: Mapping[str, Any] = {
        row.name: row.method for row in table.rows if row.method and row.method.startswith(("dice", "chain"))
    }
    if learners and "id_train" in where.images:
        found.append(f"{', '.join(learners)}: means over {where.images['id_train'][0]:,} training images")
    return found


def _untrained(name: str, training: str | None, roots: Sequence[Path]) -> Missing:
    where = f"--data {roots[0]}/imagenet/train --out {roots[0]}/{training}"
    command = f"idness train {where} --arch torchvision:resnet50 --init pretrained --method {training}"
    return Missing(f"weights of {name}", "98 MB once trained", command)
