"""Scoring many images: records one by one, as rows of a file, or as a table of Parquet files that can be resumed.

Needs torch only if the guard does: an exported guard scores files without it.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from idness.core.documents import packed
from idness.core.errors import DataError, OptionError, StoreError, needed
from idness.core.files import OutputFolder, atomic_stream, key_of, sha256, sha256_of
from idness.core.progress import Progress
from idness.core.text import readable, shorten
from idness.data.sets import SET_SUFFIXES, ImageSet, file_sets, stamp_of
from idness.guard.onnx import SUFFIX, GraphGuard
from idness.guard.verdict import fdr_shortfall, screen_records

if TYPE_CHECKING:
    from rich.console import Console

    from idness.guard.guard import Guard

SHARD = 1024
"""Images per file of a table."""
MANIFEST = "_idness.json"
"""Starts with an underscore, so that programs that read the folder as Parquet ignore it."""
NAMES = 16
"""Hexadecimal digits of a hash in a file's name."""
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
    engine: str = "auto",
    images: int = 0,
    device: str = "cpu",
) -> Guard | GraphGuard:
    """Load a guard from its folder, with the network that the user names if any, or from the .onnx file that was exported.

    Args:
        path: the folder or file.
        model: the network's name.
        weights: the network's weights.
        recall: the recall to decide at, if not the calibrated one.
        engine: what runs the network.
        images: the number of images to expect.
        device: where the network runs; `auto` takes a GPU if there is one. Exported guards run on the CPU.
    """
    if path.suffix == SUFFIX and not path.is_dir():
        if (model, weights, recall) != (None, None, None):
            raise OptionError(
                "score: model=, weights= and recall= are fixed in an exported guard; pass the guard's folder"
            )
        return GraphGuard(path)
    from idness.guard.guard import Guard

    guard = Guard.load(path, model, weights=weights, engine=engine, images=images, device=device)
    return guard if recall is None else guard.set_recall(recall)


def score_files(
    guard: Guard | GraphGuard, paths: Iterable[Path], *, batch: int | None = None, progress: Progress | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a record for each image file, and for each image of files that contain many; one that cannot be opened has an error."""
    from idness.data.open import open_images

    for many, some in groupby(paths, key=lambda path: path.suffix.lower() in SET_SUFFIXES):
        if not many:
            # A list is read ahead; paths that arrive one by one are scored as they arrive.
            count = len(paths) if isinstance(paths, Sequence) else guard.batch_size(batch)
            for files in file_sets(some, count):
                yield from score_images(guard, files, batch=batch, progress=progress)
            continue
        for path in some:
            try:
                images = open_images([str(path)])
            except DataError as error:
                yield {"image": str(path), "error": str(error)}
                continue
            yield from score_images(guard, images, batch=batch, progress=progress)


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


def kept_columns(images: ImageSet, keep: Sequence[str], start: int, stop: int) -> dict[str, list[Any]]:
    """Return the user's columns of a range of images."""
    return {kept_name(name): images.values(name, start, stop) for name in keep}


def kept_name(name: str) -> str:
    """Return the name of a user's column beside verdicts; `input_` precedes one that verdicts have too."""
    return f"input_{name}" if name in TABLE_COLUMNS else name


@contextmanager
def row_stream(path: Path | None) -> Iterator[TextIO]:
    """Open a new file that takes its place when the block ends without an error, or standard output if `path` is `None`."""
    if path is None:
        yield sys.stdout
        return
    if path.exists():
        raise StoreError(f"{path}: exists; remove it or choose another file")
    with atomic_stream(path) as stream:
        yield stream


def screen(
    guard: Guard | GraphGuard, records: Iterable[dict[str, Any]], fdr: float
) -> tuple[list[dict[str, Any]], str]:
    """Return records with q-values, flagged by them, and a warning if there are too few calibration images; empty if not."""
    found = screen_records(list(records), fdr)
    if guard.groups is None:  # exported by version 0.1
        return found, ""
    tested = [record["p_value"] for record in found if record.get("q_value") is not None]
    return found, fdr_shortfall(tested, min(map(len, guard.groups)), fdr)


class RowWriter:
    """Writes records as CSV, JSON or Parquet, each as soon as it is known if possible, and counts them.

    Args:
        stream: where to.
        form: `csv`, `json` (an array), `jsonl` (a line per record) or `parquet`.
        kept: the names of the user's columns.
        screened: whether records have q-values.
    """

    def __init__(self, stream: TextIO, form: str, kept: Iterable[str] = (), *, screened: bool = False) -> None:
        self.stream, self.form, self.kept, self.screened, self.first = stream, form, list(kept), screened, ""
        self.held: list[dict[str, Any]] = []
        self.images = self.ood = self.unread = 0
        self.seen: list[tuple[float, int]] = []
        """Score and class of each image that could be read, for the test of drift."""
        if form == "csv":
            columns = [name for name in (*COLUMNS, *self.kept) if screened or name != "q_value"]
            self._csv = csv.DictWriter(stream, columns, extrasaction="ignore", restval="", lineterminator="\n")
            self._csv.writeheader()

    def write(self, record: dict[str, Any]) -> None:
        """Write one record."""
        self.images += 1
        self.ood += bool(record.get("is_ood"))
        if "error" in record:
            self.unread += 1
            self.first = self.first or f"{record['image']}: {record['error']}"
        else:
            self.seen.append((record["score"], max(record["label"], 0)))
        self.row({key: readable(value) if isinstance(value, str) else value for key, value in record.items()})
        self.stream.flush()

    def row(self, record: dict[str, Any]) -> None:
        """Write one record in this form."""
        if self.form == "csv":
            self._csv.writerow(record)
        elif self.form == "json":
            self.stream.write(("[\n" if self.images == 1 else ",\n") + json.dumps(record, default=str))
        elif self.form == "parquet":
            self.held.append(record)
        else:
            self.stream.write(json.dumps(record, default=str) + "\n")

    def total(self) -> Part:
        """Return the number of images, of OOD ones and of those that cannot be read."""
        return Part("", self.images, self.ood, self.unread, self.first)

    def end(self) -> None:
        """Write what follows the last record."""
        if self.form == "json":
            self.stream.write("\n]\n" if self.images else "[]\n")
        elif self.form == "parquet" and isinstance(self.stream, io.TextIOWrapper):
            self.stream.buffer.write(_parquet_bytes(_arrow_table(self.held, self.kept, screened=self.screened)))


class TerminalWriter(RowWriter):
    """Writes records as lines for people, with columns as wide as the class names."""

    def __init__(self, console: Console, classes: Sequence[str], *, screened: bool = False) -> None:
        super().__init__(sys.stdout, "text", screened=screened)
        self.console = console
        self.width = max(5, *(min(len(name), WIDEST) for name in classes), 0)
        self._print("bold", "verdict", "class", "ID-ness", "p-value", "q-value", "image")

    def row(self, record: dict[str, Any]) -> None:
        """Write one record as a line, and a remark on it below."""
        if "error" in record:
            self._print("yellow", "unread", "", "", "", "", record["image"])
        else:
            style, verdict = ("bold red", "OUT") if record["is_ood"] else ("green", "in")
            q = f"{record['q_value']:.4f}" if "q_value" in record else ""
            numbers = f"{record['score']:.4g}", f"{record['p_value']:.4f}", q
            self._print(style, verdict, record["class"], *numbers, record["image"])
        note = record.get("error") or record.get("reason") or record.get("caution")
        if note:
            self.console.print(f"         {shorten(note, LONGEST)}", style="dim", markup=False, soft_wrap=True)

    def _print(self, style: str, verdict: str, name: str, score: str, p_value: str, q_value: str, image: str) -> None:
        from rich.text import Text

        numbers = f"{score:>10}  {p_value:>7}" + (f"  {q_value:>7}" if self.screened else "")
        middle = f"  {shorten(name, self.width):<{self.width}}  {numbers}  {shorten(image, LONGEST)}"
        line = Text.assemble((f"{verdict:<7}", style), (middle, "bold" if style == "bold" else ""))
        self.console.print(line, soft_wrap=True)


@dataclass(frozen=True)
class Part:
    """One file of a table: how many images it has, how many are OOD or cannot be read, and the first that cannot be, with the reason."""

    file: str
    images: int = 0
    ood: int = 0
    unread: int = 0
    first: str = ""


class VerdictTable:
    """Verdicts on a set of images as a folder of Parquet files, one per span of images, and a manifest once it is complete.

    The name of a file contains its number and a key, the hash of everything that made it, so that a resumed run finds the spans that
    are done. The folder's listing names the guard from the start: the verdicts of another guard are left alone.

    Args:
        guard: the guard.
        folder: the folder.
        images: the images; `None` in a process that gets them span by span.
        batch: the batch size; by default, what suits the network.
        keep: columns of the user's to add.
        fdr: the false discovery rate at which images are flagged, once all are scored; if `None`, each is flagged by its p-value.
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
        self.digest, self.identity = _hashes(guard, self.batch)
        if fdr is not None:
            self.digest, self.identity = (key_of(one, f"fdr {fdr:g}") for one in (self.digest, self.identity))

    def run(self, progress: Progress | None = None) -> list[Part]:
        """Score everything that the table does not have yet, in this process, and return its parts."""
        assert self.images is not None
        progress, parts = progress or Progress(), list[Part]()
        for number, start, stop, key in self.start(progress):
            part = self.find(number, key)
            if part is None:
                names = [self.images.item(index) for index in range(start, stop)]
                part = self.score_span(self.images.portion(start, stop), names, number, key, progress)
            else:
                progress.advance(stop - start)
            parts.append(part)
        return self.finish(parts)

    def start(self, progress: Progress) -> list[tuple[int, int, int, str]]:
        """Return number, start, stop and key of each part, and list the planned files; raise if the folder belongs to another guard."""
        from idness.activations.store import FeatureStore

        assert self.images is not None
        count, memory = len(self.images), FeatureStore().stamps
        progress.phase("images", count)
        spans = []
        for number, start in enumerate(range(0, count, SHARD)):
            stop = min(start + SHARD, count)
            stamp = stamp_of(self.images, start, stop, memory)
            kept = kept_columns(self.images, self.keep, start, stop)
            own = [sha256_of(json.dumps(kept, default=str))] if kept else []
            spans.append((number, start, stop, key_of(self.identity, str(start), stamp, *own)))
        self._output.check(resume=True)
        about = self._output.listing() or {}
        if about.get("guard", self.digest) != self.digest:
            raise StoreError(f"{self.folder}: contains verdicts of another guard, recall or FDR; choose another folder")
        planned = {_file(number, key) for number, *_, key in spans}
        self._output.record(self._output.files | planned | {MANIFEST}, guard=self.digest)
        return spans

    def find(self, number: int, key: str) -> Part | None:
        """Return a part that is complete; `None` if it is not there."""
        path = self.folder / _file(number, key)
        if not path.is_file():
            return None
        return Part(path.name, **json.loads(self._parquet.read_schema(path).metadata[b"idness"]))

    def score_span(
        self, images: ImageSet, names: Sequence[str], number: int, key: str, progress: Progress | None = None
    ) -> Part:
        """Score the images of one part, and write it in one step."""
        found = score_images(self.guard, images, self.keep, batch=self.batch, progress=progress)
        records = [record | {"image": name} for name, record in zip(names, found, strict=True)]
        kept = [kept_name(name) for name in self.keep]
        return self._put(_file(number, key), _arrow_table(records, kept, screened=self.fdr is not None))

    def _put(self, file: str, table: Any) -> Part:
        """Write a table as a part."""
        values = table.select(["image", "error", "is_ood"]).to_pydict()
        unread = [
            f"{name}: {why}" for name, why in zip(values["image"], values["error"], strict=True) if why is not None
        ]
        first = unread[0] if unread else ""
        part = Part(file, len(table), sum(map(bool, values["is_ood"])), len(unread), first)
        counts = {name: value for name, value in asdict(part).items() if name != "file"}
        self._output.write({file: _parquet_bytes(table.replace_schema_metadata({"idness": json.dumps(counts)}))})
        return part

    def _screened(self, parts: Sequence[Part], fdr: float) -> list[Part]:
        """Write the parts again with q-values, which depend on all images, and flag by them."""
        rows = [row for part in parts for row in self._read(part, "p_value", "reason", "is_ood").to_pylist()]
        rows, self.shortfall = screen(self.guard, rows, fdr)
        made, screened = [], iter(rows)
        for part in parts:
            table = self._read(part)
            own = list(islice(screened, len(table)))
            for name in ("q_value", "is_ood"):
                place = table.schema.get_field_index(name)
                table = table.set_column(place, table.schema.field(place), [[row.get(name) for row in own]])
            made.append(self._put(part.file, table))
        return made

    def _read(self, part: Part, *columns: str) -> Any:
        return self._parquet.read_table(self.folder / part.file, columns=list(columns) or None)

    def finish(self, parts: Sequence[Part]) -> list[Part]:
        """Write the manifest of a complete table, remove parts of images that have changed since, and return the parts."""
        parts = list(parts) if self.fdr is None else self._screened(parts, self.fdr)
        kept = {part.file for part in parts}
        about = {"guard": self.digest, "identity": self.identity, "batch": self.batch}
        counts = asdict(total(parts))
        manifest = {"format": 1, "about": about, "counts": counts, "parts": [asdict(part) for part in parts]}
        self._output.write({MANIFEST: json.dumps(manifest, indent=1) + "\n"})
        self._output.remove({path.name for path in self.folder.glob("part-*.parquet")} - kept)
        self._output.record({name for name in self._output.files if not name.startswith("part-")} | kept)
        return parts

    def sample(self, parts: Sequence[Part], most: int) -> Iterator[tuple[float, int]]:
        """Yield score and class of at most so many readable images, evenly spaced."""
        step, seen = max(1, -(-sum(part.images for part in parts) // most)), 0
        for part in parts:
            columns = self._read(part, "score", "label")
            chosen = columns.slice((-seen) % step).to_pydict()
            seen += part.images
            for score, label in list(zip(chosen["score"], chosen["label"], strict=True))[::step]:
                if score is not None:
                    yield score, max(label, 0)


def _arrow_table(records: Sequence[dict[str, Any]], kept: Sequence[str], *, screened: bool) -> Any:
    """Return records with the user's columns `kept` as an Arrow table."""
    arrow = needed("pyarrow", "a table of verdicts", "tables", StoreError)
    kinds = dict.fromkeys(("score", "p_value", "q_value"), arrow.float64())
    kinds |= {"label": arrow.int32(), "is_ood": arrow.bool_()}
    names = [name for name in TABLE_COLUMNS if screened or name != "q_value"]
    schema = arrow.schema([(name, kinds.get(name, arrow.string())) for name in names])
    table = arrow.table({name: [record.get(name) for record in records] for name in names}, schema=schema)
    for name in kept:
        table = table.append_column(name, _column(arrow, [record.get(name) for record in records]))
    return table


def _parquet_bytes(table: Any) -> bytes:
    buffer = io.BytesIO()
    needed("pyarrow.parquet", "a table of verdicts", "tables", StoreError).write_table(
        table, buffer, compression="zstd"
    )
    return buffer.getvalue()


def _column(arrow: Any, values: list[Any]) -> Any:
    """Return values as an Arrow column: text if they are of several types, or unknown."""
    try:
        found = arrow.array(values)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        return arrow.array([None if value is None else str(value) for value in values], arrow.string())
    return found.cast(arrow.string()) if arrow.types.is_null(found.type) else found


def total(parts: Sequence[Part]) -> Part:
    """Return the totals of several parts."""
    first = next((part.first for part in parts if part.first), "")
    images, ood, unread = (sum(getattr(part, name) for part in parts) for name in ("images", "ood", "unread"))
    return Part("", images, ood, unread, first)


def _file(number: int, key: str) -> str:
    return f"part-{number:08d}-{key[:NAMES]}.parquet"


def _hashes(guard: Guard | GraphGuard, batch: int) -> tuple[str, str]:
    """Return the hash of a guard itself, and of everything but the image that decides a verdict: also versions, engine and batch."""
    if isinstance(guard, GraphGuard):
        digest = sha256(guard.path)
        return digest, key_of(digest, str(batch))
    from idness.guard.storage import describe

    calibration, runner = guard.calibration, guard.split.runner
    assert calibration is not None  # a loaded guard has one
    learned = dict(guard.detector.state()) | {"scores": calibration.scores, "sizes": calibration.sizes}
    state, facts = sha256_of(packed(learned)), describe(guard)
    del facts["model"]["code"]  # known only if the script lies in the current folder
    facts.pop("detection", None)  # a measurement, which does not change verdicts
    own = {key: value for key, value in facts.items() if key != "versions"}
    engine = "" if runner is None else runner.asked
    return (
        key_of(json.dumps(own, sort_keys=True), state),
        key_of(json.dumps(facts, sort_keys=True), state, engine, str(batch)),
    )
