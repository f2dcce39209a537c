"""`idness score`."""

from __future__ import annotations

import csv
import io
import json
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from idness.cli.cluster import Actors, Address, Engine, Gpus
from idness.cli.options import Threads
from idness.core.wording import readable, shown

if TYPE_CHECKING:
    from rich.console import Console

    from idness.cluster.session import Pool
    from idness.guard.drift import Calibrated
    from idness.guard.graph import GraphGuard
    from idness.guard.guard import Guard

COLUMNS = ("image", "class", "score", "p_value", "is_ood", "reason", "caution")
WIDEST = 24
"""Longer names of classes are cut where people read them."""
LONGEST = 1000
"""Longer paths and reasons are cut there too."""


def score(
    guard: Annotated[
        Path, typer.Argument(help="The guard's folder, or the .onnx file that idness export wrote of it.")
    ],
    images: Annotated[
        list[str], typer.Argument(help="Files, folders, patterns in quotes, or - for a list on standard input.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each image.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if any image is OOD or cannot be read.")
    ] = False,
    recall: Annotated[
        float | None, typer.Option(help="Decide at another recall than the guard was calibrated for.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The network, where the guard cannot find it by itself.")] = None,
    weights: Annotated[str | None, typer.Option(help="The network's weights, with --model.")] = None,
    engine: Engine = "auto",
    threads: Threads = None,
    address: Address = None,
    actors: Actors = None,
    gpus_per_actor: Gpus = 0.0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write the rows to this .csv, .json or .jsonl file, or Parquet to this folder; for a folder IMAGES may also be URLs.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an --out that exists; what it holds is not judged again.")
    ] = False,
    batch: Annotated[
        int | None, typer.Option(help="Images per batch; what suits the network if not given.", min=1)
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Judge images: class, ID-ness, p-value and verdict of each, as soon as it is known."""
    from idness.cli.cluster import divided
    from idness.cli.terminal import stdout
    from idness.core.progress import STARTING
    from idness.core.progress import shown as progress
    from idness.data.batches import limit_threads
    from idness.data.sets import find_images

    engine, pool = divided(engine, address, actors, gpus_per_actor)
    if threads is not None:
        limit_threads(threads)
    ending = "" if out is None else out.suffix.lower()
    as_csv, as_json = as_csv or ending == ".csv", as_json or ending in (".json", ".jsonl")
    plain = as_json or as_csv
    if (out is None or plain) and (pool is not None or resume):
        raise typer.BadParameter("--engine ray and --resume need --out, the folder for the table")
    if out is not None and not plain:
        source = (guard, model, weights, recall, engine)
        bad = _write_table(source, images, out, pool, batch, resume=resume, quiet=quiet)
        if strict and bad:
            raise typer.Exit(1)
        return
    # Looked for before the network is loaded: a wrong path is told at once.
    found = [] if images == ["-"] else list(find_images(images))
    console = stdout()
    # Rows and bar share a terminal only if one console draws both.
    alone = plain and out is None and console.is_terminal
    with (
        progress(quiet=quiet or alone, console=console if console.is_terminal else None) as listener,
        _opened(out) as stream,
    ):
        listener.phase(STARTING, None)
        loaded, judge = _judge(guard, model, weights, recall, engine, len(found))
        names, calibration = loaded.class_names or (), loaded.calibration
        json_rows = JsonArray if ending == ".json" else JsonLines
        writer: Rows = json_rows(stream) if as_json else Csv(stream) if as_csv else Lines(console, names)
        listener.phase("images", len(found) or None)
        for record in judge(found or map(Path, _listed()), batch=batch, listener=listener):
            writer.write(record)
        writer.end()
    if out is not None:
        print(f"{writer.flagged:,} of {writer.count:,} images out-of-distribution, {writer.unread:,} unread")
    if calibration is not None:
        _tell_drift(calibration, writer.seen)
    if strict and writer.bad:
        raise typer.Exit(1)


def _write_table(
    source: tuple[Path, str | None, str | None, float | None, str],
    images: list[str],
    out: Path,
    pool: Pool | None,
    batch: int | None,
    *,
    resume: bool,
    quiet: bool,
) -> bool:
    """Judge images into a folder of Parquet, and say whether any is out-of-distribution or cannot be read."""
    from idness.cli.terminal import stderr
    from idness.core.files import locked
    from idness.core.progress import STARTING
    from idness.core.progress import shown as progress

    with progress(quiet=quiet) as listener:
        listener.phase(STARTING, None)
        from idness.data.open import open_images
        from idness.guard.drift import PERIOD
        from idness.guard.scoring import prepare_scoring, run_scoring
        from idness.guard.table import VerdictTable

        VerdictTable(out).check(resume=resume)
        found = open_images(_listed() if images == ["-"] else images)
        loaded, _ = _judge(*source, len(found))
        job = prepare_scoring(loaded, found, out, batch=batch)
        with locked(out):
            if pool is None:
                parts = run_scoring(job, listener)
            else:
                from idness.cluster.scoring import score_on_ray

                parts = score_on_ray(job, *source[:3], pool, listener)
    total = job.table.manifest().counts
    if loaded.calibration is not None:
        _tell_drift(loaded.calibration, list(job.table.sample(parts, PERIOD)))
    told = f"; the first unread, {shown(total.first, LONGEST)}" if total.unread else ""
    print(f"{total.ood:,} of {total.images:,} images out-of-distribution, {total.unread:,} unread{told}")
    if not quiet:
        stderr().print(f"wrote {out}", markup=False, soft_wrap=True)
    return bool(total.ood or total.unread)


def _judge(
    guard: Path, model: str | None, weights: str | None, recall: float | None, engine: str, images: int
) -> tuple[Guard | GraphGuard, Callable[..., Iterator[dict[str, Any]]]]:
    """Give what judges images, a guard or a graph that one was exported to, and how it judges files."""
    from idness.guard.graph import SUFFIX, GraphGuard

    if guard.suffix == SUFFIX and not guard.is_dir():
        if (model, weights, recall) != (None, None, None):
            from idness.core.errors import OptionError

            raise OptionError(
                "score: model=, weights= and recall= are fixed in an exported guard; give the guard's folder"
            )
        graph = GraphGuard(guard)
        return graph, graph.judge
    from functools import partial

    from idness.guard.judge import judge_images

    loaded = load(guard, model, weights, engine, images)
    if recall is not None:
        loaded.set_recall(recall)
    return loaded, partial(judge_images, loaded)


def load(folder: Path, model: str | None, weights: str | None, engine: str = "auto", images: int = 0) -> Guard:
    """Load a guard, with the network that the user names, if any, for so many images."""
    from idness.core.scripts import approve
    from idness.guard.file import load_guard

    loaded = load_guard(folder, model, weights, engine=engine, images=images)
    if model is not None:
        approve(model)
    return loaded


def _tell_drift(calibration: Calibrated, seen: Sequence[tuple[float, int]]) -> None:
    """Say on standard error where the images as a whole are not like those that calibrated."""
    from idness.cli.terminal import stderr
    from idness.guard.drift import LEVEL, watched

    found = watched(calibration, seen)
    if found.alarm:
        stderr().print(
            f"idness: warning: these images are not like those that the guard was calibrated on, so that its promise does not hold for"
            f" them; this is a false alarm in at most {100 * LEVEL:g} of 100 cases",
            markup=False, soft_wrap=True,
        )  # fmt: skip


def _listed() -> Iterator[str]:
    """Read the paths on standard input, one per line, as they arrive."""
    from idness.core.errors import DataError

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # file names need not be UTF-8
    number = 0
    for number, line in enumerate((line for line in sys.stdin if line.strip()), start=1):
        if "\0" in line:
            raise DataError(f"standard input: line {number} holds a NUL character; separate paths by line breaks")
        yield line.rstrip("\n")
    if number == 0:
        raise DataError("standard input: lists no images; write one path per line")


@contextmanager
def _opened(out: Path | None) -> Iterator[TextIO]:
    """Open a new file that appears when the block ends without an error, or standard output."""
    if out is None:
        yield sys.stdout
        return
    from idness.core.errors import StoreError
    from idness.core.files import atomic_stream

    if out.exists():
        raise StoreError(f"{out} exists; remove it or choose another file")
    with atomic_stream(out) as stream:
        yield stream


class Rows:
    """Writes the verdicts on images one after the other, and counts."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.count = self.flagged = self.unread = 0
        self.seen: list[tuple[float, int]] = []

    @property
    def bad(self) -> bool:
        """Whether any image is out-of-distribution or cannot be read."""
        return bool(self.flagged or self.unread)

    def write(self, record: dict[str, Any]) -> None:
        """Write one at once: whoever reads need not wait for the last."""
        self.count += 1
        self.flagged += bool(record.get("is_ood"))
        self.unread += "error" in record
        if "error" not in record:
            self.seen.append((record["score"], max(record["label"], 0)))
        self.line({key: readable(value) if isinstance(value, str) else value for key, value in record.items()})
        self.stream.flush()

    @abstractmethod
    def line(self, record: dict[str, Any]) -> None:
        """Write one as this kind of rows does."""

    def end(self) -> None:
        """Write what follows the last."""


class JsonLines(Rows):
    """Writes one object of JSON a line."""

    def line(self, record: dict[str, Any]) -> None:
        print(json.dumps(record), file=self.stream)


class JsonArray(Rows):
    """Writes one array of JSON."""

    def line(self, record: dict[str, Any]) -> None:
        self.stream.write(("[\n" if self.count == 1 else ",\n") + json.dumps(record))

    def end(self) -> None:
        self.stream.write("\n]\n")


class Csv(Rows):
    """Writes a table for other programs."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.writer = csv.DictWriter(
            stream, [*COLUMNS, "error"], extrasaction="ignore", restval="", lineterminator="\n"
        )
        self.writer.writeheader()

    def line(self, record: dict[str, Any]) -> None:
        self.writer.writerow(record)


class Lines(Rows):
    """Writes lines for people, with columns as wide as the class names need."""

    def __init__(self, console: Console, classes: Sequence[str]) -> None:
        super().__init__(sys.stdout)
        self.console = console
        self.width = max(5, *(min(len(name), WIDEST) for name in classes), 0)
        self._put("bold", "verdict", "class", "ID-ness", "p-value", "image")

    def line(self, record: dict[str, Any]) -> None:
        if "error" in record:
            self._put("yellow", "unread", "", "", "", record["image"])
        else:
            style, verdict = ("bold red", "OUT") if record["is_ood"] else ("green", "in")
            numbers = f"{record['score']:.4g}", f"{record['p_value']:.4f}"
            self._put(style, verdict, record["class"], *numbers, record["image"])
        note = record.get("error") or record.get("reason") or record.get("caution")
        if note:
            self.console.print(f"         {shown(note, LONGEST)}", style="dim", markup=False, soft_wrap=True)

    def end(self) -> None:
        tail = f", {self.unread} unread" if self.unread else ""
        self.console.print(f"\n{self.flagged} of {self.count} images out-of-distribution{tail}")

    def _put(self, style: str, verdict: str, name: str, score: str, p_value: str, image: str) -> None:
        from rich.text import Text

        middle = f"  {shown(name, self.width):<{self.width}}  {score:>10}  {p_value:>7}  {shown(image, LONGEST)}"
        line = Text.assemble((f"{verdict:<7}", style), (middle, "bold" if style == "bold" else ""))
        self.console.print(line, soft_wrap=True)
