"""Scoring of many images: as records, as rows of a file, or as a resumable table of Parquet files.

Needs torch only if the guard does; an exported guard scores files without torch.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from idness.core.errors import OptionError, StoreError, needed
from idness.core.files import OutputFolder, atomic_stream, key_of, sha256_of
from idness.core.options import check_fraction
from idness.core.progress import Progress
from idness.core.text import readable, shorten
from idness.data.sets import ImageSet
from idness.guard.drift import PERIOD
from idness.guard.onnx import SUFFIX, GraphGuard
from idness.guard.verdict import ROUNDING, fdr_shortfall, q_values

if TYPE_CHECKING:
    from rich.console import Console

    from idness.guard.guard import Guard

SHARD = 1024
"""Number of images per file of a table."""
NAMES = 16
"""Number of hexadecimal digits of a hash in a file name."""
WIDEST, LONGEST = 24, 1000
"""Length to which class names, and paths and reasons, are cut on a terminal."""
COLUMNS = ("image", "class", "score", "p_value", "q_value", "is_ood", "reason", "caution", "error")
TABLE_COLUMNS = ("image", "label", *COLUMNS[1:])


def open_guard(
    path: Path,
    model: str | None = None,
    weights: str | None = None,
    *,
    recall: float | None = None,
    false_alarm: float | None = None,
    **options: Any,
) -> Guard | GraphGuard:
    """Load a guard from its folder, or from an exported .onnx file, which runs on the CPU.

    `recall` or `false_alarm` replaces the calibrated recall; the other arguments are those of `Guard.load`.
    """
    if path.suffix == SUFFIX and not path.is_dir():
        if any(given is not None for given in (model, weights, recall, false_alarm)):
            raise OptionError("model=, weights= and recall= are fixed in an exported guard; pass the guard's folder")
        return GraphGuard(path)
    from idness.guard.conformal import wanted_recalls
    from idness.guard.guard import Guard

    guard = Guard.load(path, model, weights=weights, **options)
    if recall is None and false_alarm is None:
        return guard
    return guard.set_recall(*wanted_recalls(recall, false_alarm))


def score_images(
    guard: Guard | GraphGuard,
    images: ImageSet,
    keep: Sequence[str] = (),
    *,
    batch: int | None = None,
    progress: Progress | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a record for each image of a set, with the user's columns `keep`."""
    found = guard.verdicts(images, batch=batch, progress=progress)
    records = (record for verdict in found for record in verdict.records())
    for start in range(0, len(images), SHARD):
        stop = min(start + SHARD, len(images))
        kept = kept_columns(images, keep, start, stop)
        for place in range(stop - start):
            yield next(records) | {name: values[place] for name, values in kept.items()}


def kept_columns(images: ImageSet, keep: Iterable[str], start: int, stop: int) -> dict[str, list[Any]]:
    """Return the columns `keep` of a range of images."""
    return {kept_name(name): images.values(name, start, stop) for name in keep}


def kept_name(name: str) -> str:
    """Return the output name of a user's column, with the prefix `input_` if verdicts have a column of that name."""
    return f"input_{name}" if name in TABLE_COLUMNS else name


@contextmanager
def row_stream(path: Path | None) -> Iterator[TextIO]:
    """Open a new file, which is moved to `path` at the end of the block unless there is an error; standard output if `None`."""
    if path is None:
        yield sys.stdout
        return
    _check_new(path)
    with atomic_stream(path) as stream:
        yield stream
        _check_new(path)  # another process may have written it meanwhile


def _check_new(path: Path) -> None:
    if os.path.lexists(path):
        raise StoreError(f"{path}: exists; remove it or choose another file")


def screen(
    guard: Guard | GraphGuard, records: Iterable[dict[str, Any]], fdr: float
) -> tuple[list[dict[str, Any]], str]:
    """Return records with q-values and decisions based on them, and a warning, or an empty text, about too few calibration images."""
    check_fraction("screen", "fdr", fdr)
    found = list(records)
    tested = [record for record in found if record.get("p_value") is not None and not record.get("reason")]
    p_values = [record["p_value"] for record in tested]
    for record, q in zip(tested, q_values(p_values).tolist(), strict=True):
        record |= {"q_value": q, "is_ood": q <= fdr * ROUNDING}
    # Version 0.1 exported no calibration scores.
    return found, "" if guard.groups is None else fdr_shortfall(p_values, min(map(len, guard.groups)), fdr)


@dataclass
class Tally:
    """The number of images scored, flagged and unreadable, and the first unreadable one with the reason.

    `seen` is the score and class of readable images for the drift test: all, or an evenly spaced sample of at most PERIOD images.
    """

    images: int = 0
    ood: int = 0
    unread: int = 0
    first: str = ""
    seen: list[tuple[float, int]] = field(default_factory=list)
    step: int = 1

    def counted(self, records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield printable records and count them."""
        for record in records:
            self.images += 1
            self.ood += bool(record.get("is_ood"))
            if record.get("error") is not None:
                self.unread += 1
                reason = record["error"].removeprefix(f"{Path(record['image']).name}: ")
                self.first = self.first or f"{record['image']}: {reason}"
            elif self.images % self.step == 0:
                self.seen.append((record["score"], max(record["label"], 0)))
                if len(self.seen) > PERIOD:
                    self.seen, self.step = self.seen[1::2], 2 * self.step
            yield {key: readable(value) if isinstance(value, str) else value for key, value in record.items()}


def write_rows(
    records: Iterable[dict[str, Any]], stream: TextIO, form: str, kept: Iterable[str] = (), *, screened: bool = False
) -> Tally:
    """Write records, each as soon as available if the format allows, and count them.

    `form` is `csv`, `json` (an array), `jsonl` (a line per record) or `parquet`; `kept` names the user's columns.
    """
    tally, held, kept = Tally(), list[dict[str, Any]](), list(kept)
    columns = [name for name in (*COLUMNS, *kept) if screened or name != "q_value"]
    rows = csv.DictWriter(stream, columns, extrasaction="ignore", restval="", lineterminator="\n")
    if form == "csv":
        rows.writeheader()
    for record in tally.counted(records):
        if form == "csv":
            rows.writerow(record)
        elif form == "jsonl":
            stream.write(json.dumps(record, default=str) + "\n")
        else:
            held.append(record)
        stream.flush()
    if form == "json":
        stream.write("[\n" + ",\n".join(json.dumps(record, default=str) for record in held) + "\n]\n")
    elif form == "parquet":
        stream.buffer.write(_parquet_bytes(_arrow_table(held, kept, screened=screened)))
    return tally


def print_rows(
    records: Iterable[dict[str, Any]], console: Console, classes: Sequence[str], *, screened: bool = False
) -> Tally:
    """Print records as human-readable lines, with columns as wide as the class names, and count them."""
    from rich.text import Text

    tally, width = Tally(), max(5, *(min(len(name), WIDEST) for name in classes), 0)

    def line(style: str, verdict: str, name: str, score: str, p_value: str, q_value: str, image: str) -> None:
        numbers = f"{score:>10}  {p_value:>7}" + (f"  {q_value:>7}" if screened else "")
        middle = f"  {shorten(name, width):<{width}}  {numbers}  {shorten(image, LONGEST)}"
        text = Text.assemble((f"{verdict:<7}", style), (middle, "bold" if style == "bold" else ""))
        console.print(text, soft_wrap=True)

    line("bold", "verdict", "class", "ID-ness", "p-value", "q-value", "image")
    for record in tally.counted(records):
        if "error" in record:
            line("yellow", "unread", "", "", "", "", record["image"])
        else:
            style, verdict = ("bold red", "OUT") if record["is_ood"] else ("green", "in")
            q = f"{record['q_value']:.4f}" if "q_value" in record else ""
            numbers = f"{record['score']:.4g}", f"{record['p_value']:.4f}", q
            line(style, verdict, record["class"], *numbers, record["image"])
        note = record.get("error") or record.get("reason") or record.get("caution")
        if note:
            console.print(f"         {shorten(note, LONGEST)}", style="dim", markup=False, soft_wrap=True)
        sys.stdout.flush()
    return tally


class VerdictTable:
    """Verdicts on a set of images as a folder of Parquet files, one per span of images.

    A file's name contains its number and a key, a hash of everything that determines its content, so that a resumed run finds finished
    spans. The folder's listing names the guard from the start, so that verdicts of another guard are not mixed in, and contains the
    counts once the table is complete. `images` is `None` in a process that receives them span by span. `keep` names user columns to
    add. With `fdr`, images are flagged at that false discovery rate once all are scored.
    """

    def __init__(
        self,
        guard: Guard | GraphGuard,
        folder: str | Path,
        images: ImageSet | None = None,
        batch: int | None = None,
        keep: Sequence[str] = (),
        fdr: float | None = None,
    ) -> None:
        self.guard, self.folder, self.images, self.batch = guard, Path(folder), images, guard.batch_size(batch)
        self._output, self.keep, self.fdr, self.shortfall = OutputFolder(folder), tuple(keep), fdr, ""
        self._parquet = needed("pyarrow.parquet", "a table of verdicts", "tables", StoreError)
        if fdr is not None:
            check_fraction("screen", "fdr", fdr)
        self.identity = key_of(guard.identity(self.batch), f"fdr {fdr}", *keep)

    def run(self, progress: Progress | None = None) -> Tally:
        """Score everything that the table does not contain yet, in this process."""
        assert self.images is not None
        progress = progress or Progress()
        spans = self.start(progress)
        for start, stop, file in spans:
            if self.has(file):
                progress.advance(stop - start)
            else:
                names = [self.images.item(index) for index in range(start, stop)]
                self.score_span(self.images.portion(start, stop), names, file, progress)
        return self.finish([file for *_, file in spans])

    def start(self, progress: Progress) -> list[tuple[int, int, str]]:
        """Return start, stop and file of each part, and list the planned files; raise if the folder belongs to another guard."""
        from idness.activations.store import FeatureStore

        assert self.images is not None
        count, memory = len(self.images), FeatureStore().stamps
        progress.phase("images", count)
        spans = []
        for number, start in enumerate(range(0, count, SHARD)):
            stop = min(start + SHARD, count)
            stamp = self.images.stamp(start, stop, memory)
            kept = kept_columns(self.images, self.keep, start, stop)
            own = [sha256_of(json.dumps(kept, default=str))] if kept else []
            key = key_of(self.identity, str(start), stamp, *own, *map(self.images.item, range(start, stop)))
            spans.append((start, stop, f"part-{number:08d}-{key[:NAMES]}.parquet"))
        self._output.check(resume=True)
        about = self._output.listing() or {}
        if about.get("guard", self.identity) != self.identity:
            raise StoreError(
                f"{self.folder}: contains verdicts from another guard, version or options; choose another folder"
            )
        planned = {file for *_, file in spans}
        if not any(map(self.has, planned)):
            old = [name for name in self._output.files if name.startswith("part-") and self.has(name)]
            known = {name for file in old for name in self._read(file, "image")["image"].to_pylist()}
            if known and known.isdisjoint(map(self.images.item, range(count))):
                raise StoreError(f"{self.folder}: contains verdicts on other images; choose another folder")
        self._output.record(self._output.files | planned, guard=self.identity, counts=None)
        return spans

    def has(self, file: str) -> bool:
        """Whether a part is complete."""
        return (self.folder / file).is_file()

    def score_span(self, images: ImageSet, names: Sequence[str], file: str, progress: Progress | None = None) -> None:
        """Score the images of one part and write it atomically."""
        found = score_images(self.guard, images, self.keep, batch=self.batch, progress=progress)
        records = [record | {"image": name} for name, record in zip(names, found, strict=True)]
        table = _arrow_table(records, [kept_name(name) for name in self.keep], screened=self.fdr is not None)
        self._output.write({file: _parquet_bytes(table)})

    def finish(self, files: Sequence[str]) -> Tally:
        """Return the counts of a complete table, and remove parts of images that have changed since."""
        if self.fdr is not None:
            self._screen(files, self.fdr)
        tally, columns = Tally(), ("image", "label", "score", "is_ood", "error")
        for _ in tally.counted(row for file in files for row in self._read(file, *columns).to_pylist()):
            pass
        self._output.remove({path.name for path in self.folder.glob("part-*.parquet")} - set(files))
        self._output.record(files, counts={"images": tally.images, "ood": tally.ood, "unread": tally.unread})
        return tally

    def _screen(self, files: Sequence[str], fdr: float) -> None:
        """Rewrite the parts with q-values, which depend on all images, and decisions based on them."""
        rows = [row for file in files for row in self._read(file, "p_value", "reason", "is_ood").to_pylist()]
        rows, self.shortfall = screen(self.guard, rows, fdr)
        screened = iter(rows)
        for file in files:
            table = self._read(file)
            own = list(islice(screened, len(table)))
            for name in ("q_value", "is_ood"):
                place = table.schema.get_field_index(name)
                table = table.set_column(place, table.schema.field(place), [[row.get(name) for row in own]])
            self._output.write({file: _parquet_bytes(table)})

    def _read(self, file: str, *columns: str) -> Any:
        return self._parquet.read_table(self.folder / file, columns=list(columns) or None)


def _arrow_table(records: Sequence[dict[str, Any]], kept: Sequence[str], *, screened: bool) -> Any:
    """Return records with the user's columns `kept` as an Arrow table."""
    arrow = needed("pyarrow", "a table of verdicts", "tables", StoreError)
    kinds = dict.fromkeys(("score", "p_value", "q_value"), arrow.float64())
    kinds |= {"label": arrow.int32(), "is_ood": arrow.bool_()}
    names = [name for name in TABLE_COLUMNS if screened or name != "q_value"]
    schema = arrow.schema([(name, kinds.get(name, arrow.string())) for name in names])
    table = arrow.table({name: [record.get(name) for record in records] for name in names}, schema=schema)
    for name in kept:
        values = [record.get(name) for record in records]
        try:
            column = arrow.array(values)
        except (arrow.ArrowInvalid, arrow.ArrowTypeError):  # of several types
            column = arrow.array([None if value is None else str(value) for value in values])
        column = column.cast(arrow.string()) if arrow.types.is_null(column.type) else column
        table = table.append_column(name, column)
    return table


def _parquet_bytes(table: Any) -> bytes:
    buffer, parquet = io.BytesIO(), needed("pyarrow.parquet", "a table of verdicts", "tables", StoreError)
    parquet.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
