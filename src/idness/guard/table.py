"""Verdicts as a table on disk: a folder of Parquet files, one for each span of images, and a manifest once all are there.

A file is named by its place, by a key, the hash of everything that made it, and by the hash of its bytes. So a resumed run knows which
spans are done, and that they are whole. Names sort in the order of the images. The folder's listing names the planned files and the
guard from the start: files of other programs are left alone, and so are the verdicts of another guard.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from idness.core.documents import Document
from idness.core.errors import StoreError
from idness.core.extras import needed
from idness.core.files import OutputFolder, sha256, sha256_of

FORMAT = 1
MANIFEST = "_idness.json"
"""Begins with an underscore, so that what reads the folder as Parquet passes it over."""
NAMES = 16
"""How many hexadecimal digits of a hash stand in a file's name."""
COLUMNS = ("path", "label", "class", "score", "p_value", "is_ood", "problem", "reason", "caution")


@dataclass(frozen=True)
class Counts:
    """Counts the images of a part, those that are OOD, and those that cannot be read, and says why the first of these cannot."""

    images: int = 0
    ood: int = 0
    unread: int = 0
    first: str = ""

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.images + other.images, self.ood + other.ood, self.unread + other.unread, self.first or other.first
        )


@dataclass(frozen=True)
class Part:
    """Names a file of the table, and says what it holds."""

    file: str
    sha256: str
    counts: Counts


@dataclass(frozen=True)
class Manifest:
    """Lists the files of a table that is done, in order, and says what they were made by."""

    about: dict[str, Any]
    counts: Counts
    parts: list[Part]


_DOCUMENT = Document(
    content=Manifest,
    version=FORMAT,
    absent="score with --out to write it",
    remedy="score again with --resume",
)


class VerdictTable:
    """Keeps verdicts on disk.

    Args:
        folder: where.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._output = OutputFolder(folder, self._written)
        self._arrow = needed("pyarrow", "a table of verdicts", "tables", StoreError)
        self._parquet = needed("pyarrow.parquet", "a table of verdicts", "tables", StoreError)

    def _written(self, folder: Path) -> list[str]:
        """Return the names of the files of a finished table; empty if the folder has none."""
        try:
            return [MANIFEST, *(Path(part.file).name for part in _DOCUMENT.read(folder / MANIFEST).parts)]
        except StoreError:
            return []

    def check(self, *, resume: bool) -> None:
        """Raise unless a table can be written to the folder, or with `resume` continued in it."""
        self._output.check(resume=resume)

    def start(self, guard: str, spans: Iterable[tuple[int, str]]) -> None:
        """List the parts that are about to be written, by number and key, as the guard's; raise if the folder is another guard's."""
        self._output.check(resume=True)
        about = self._output.listing() or (self.manifest().about if (self.folder / MANIFEST).is_file() else {})
        if about.get("guard", guard) != guard:
            raise StoreError(
                f"{self.folder}: contains verdicts of another guard or recall; choose another folder to keep them"
            )
        planned = {f"{_start(number)}-{key[:NAMES]}-*" for number, key in spans}
        self._output.record(self._output.files | planned | {MANIFEST}, guard=guard)

    def find(self, number: int, key: str) -> Part | None:
        """Find a whole part; one that is damaged is passed over, and written anew."""
        for path in sorted(self.folder.glob(f"{_start(number)}-{key[:NAMES]}-*.parquet")):
            digest = sha256(path)
            if path.stem.rpartition("-")[2] == digest[:NAMES]:
                told = self._parquet.read_schema(path).metadata[b"idness"]
                return Part(path.name, digest, Counts(**json.loads(told)))
        return None

    def put(self, number: int, key: str, names: Sequence[str], records: Sequence[dict[str, Any]]) -> Part:
        """Write a part in one step."""
        counts = _counted(names, records)
        buffer = io.BytesIO()
        self._parquet.write_table(self._table(names, records, counts), buffer, compression="zstd")
        content = buffer.getvalue()
        digest = sha256_of(content)
        file = f"{_start(number)}-{key[:NAMES]}-{digest[:NAMES]}.parquet"
        self._output.write({file: content})
        return Part(file, digest, counts)

    def finish(self, parts: Sequence[Part], about: dict[str, Any]) -> Counts:
        """Write the manifest of a table whose parts are all there, and remove parts of images that have changed since."""
        kept = {part.file for part in parts}
        total = sum((part.counts for part in parts), Counts())
        manifest = {"about": about, "counts": asdict(total), "parts": [asdict(part) for part in parts]}
        self._output.write({MANIFEST: _DOCUMENT.text(manifest)})
        self._output.remove({path.name for path in self.folder.glob("part-*.parquet")} - kept)
        self._output.record({name for name in self._output.files if not name.startswith("part-")} | kept)
        return total

    def manifest(self) -> Manifest:
        """Read the manifest of a table that is done."""
        return _DOCUMENT.read(self.folder / MANIFEST)

    def sample(self, parts: Sequence[Part], most: int) -> Iterator[tuple[float, int]]:
        """Read scores and classes of at most so many images that could be read, evenly picked."""
        step, seen = max(1, -(-sum(part.counts.images for part in parts) // most)), 0
        for part in parts:
            columns = self._parquet.read_table(self.folder / part.file, columns=["score", "label"])
            chosen = columns.slice((-seen) % step).to_pydict()
            seen += part.counts.images
            for score, label in list(zip(chosen["score"], chosen["label"], strict=True))[::step]:
                if score is not None:
                    yield score, max(label, 0)

    def _table(self, names: Sequence[str], records: Sequence[dict[str, Any]], counts: Counts) -> Any:
        arrow = self._arrow
        kinds = {"label": arrow.int32(), "score": arrow.float64(), "p_value": arrow.float64(), "is_ood": arrow.bool_()}
        schema = arrow.schema(
            [(name, kinds.get(name, arrow.string())) for name in COLUMNS], {"idness": json.dumps(asdict(counts))}
        )
        columns = {name: [record.get(name) for record in records] for name in COLUMNS}
        columns |= {"path": list(names), "problem": [record.get("error") for record in records]}
        return arrow.table(columns, schema=schema)


def _start(number: int) -> str:
    return f"part-{number:08d}"


def _counted(names: Sequence[str], records: Sequence[dict[str, Any]]) -> Counts:
    unread = [(name, record["error"]) for name, record in zip(names, records, strict=True) if "error" in record]
    first = f"{unread[0][0]}: {unread[0][1]}" if unread else ""
    return Counts(len(records), sum(bool(record.get("is_ood")) for record in records), len(unread), first)
