"""The data sets and weights of the paper's tables: their availability, sources and downloads."""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from idness.benchmark.protocol import GROUPS, Benchmark
from idness.core.errors import DataError, IdnessError, unknown_name
from idness.core.files import discard, locked, opened_for_download, unpack_archive
from idness.core.progress import Progress
from idness.data import open_set
from idness.paper.tables import read_toml
from idness.report.tables import Cell, Heading, Table

BENCHMARKS = ("cifar10", "cifar10-openood", "cifar100", "cifar100-openood", "imagenet", "imagenet-react")
TERMS = {"imagenet": "ImageNet's terms of access: non-commercial research"}
"""Licences of sets that must be obtained manually."""
TRAIN_SAMPLE, PER_CLASS = 5000, 50
"""Minimum number of training images to learn from, and number per class; the covariance of ResNet-50's 2,048 features has full rank."""
BORROWED = {"cifar100": "cifar10"}
"""Benchmarks that share the OOD sets of another one."""
BLOCK, PATIENCE = 1 << 20, 60.0
"""Bytes that are read at a time, and the timeout of a connection in seconds."""


@dataclass(frozen=True)
class DataSet:
    """A set of a benchmark, or its weights: its protocol, its source, and what is available.

    `expected` and `found` count images; `substitute` names images found instead of the protocol's; `archive` can be downloaded.
    """

    benchmark: str
    name: str
    size: str
    command: str
    archive: Archive | None = None
    expected: int | None = None
    found: int | None = None
    substitute: str = ""
    available: bool = False

    @property
    def licence(self) -> str:
        """The licence or terms of use."""
        return self.archive.licence if self.archive is not None else TERMS.get(self.benchmark, "see its source")

    @property
    def state(self) -> str:
        """A short description of what is available; the content of images is not verified."""
        if not self.available:
            return "missing"
        if self.found is None:
            return "found"
        if self.substitute:
            return f"{self.substitute} instead ({self.found:,} images)"
        return f"{self.found:,} of {self.expected:,} images" if self.expected else f"{self.found:,} images"

    @property
    def complete(self) -> bool:
        """Whether as many images are available as in the protocol, without substitutes."""
        enough = self.found is None or self.expected is None or self.found >= self.expected
        return self.available and enough and not self.substitute

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = ("benchmark", "name", "size", "licence", "state", "expected", "found")
        source = self.archive.url if self.archive is not None else self.command
        return {name: getattr(self, name) for name in names} | {"source": source, "fetchable": self.archive is not None}


@dataclass(frozen=True)
class Archive:
    """A downloadable file: its address, the folder it is unpacked to, its hash if published, and the sets in it."""

    name: str
    url: str
    licence: str = ""
    to: str = ""
    sha256: str = ""
    md5: str = ""
    sets: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Located:
    """The available sets of a benchmark (`None` without ID test set or OOD sets), weights, and the folder of torchvision's sets."""

    benchmark: Benchmark | None
    weights: Path | None
    sets: list[DataSet]
    root: Path | None = None


def locate(name: str, roots: Sequence[Path], weights: Path | None = None, *, whole: bool = False) -> Located:
    """Search folders for the sets of a benchmark under their usual names, and for its weights unless they are given.

    Training images are sampled and test sets cut as in the protocol, unless `whole`.
    """
    from torch.hub import get_dir

    everything, bench = read_toml("sources"), Benchmark.load(name)
    known = everything[name]
    sources = everything.get(BORROWED.get(name, ""), {}).get("sets", {}) | known["sets"]
    found: dict[str, dict[str, Any]] = {role: {} for role in ("id", *GROUPS)}
    listed, data = [], None
    for role, part, shown, spec in _protocol(bench, whole):
        about = sources.get(shown, {})
        entry = _entry(name, shown, about, roots)
        hit = _first(spec, about.get("places", []), roots, bench.class_names if role == "id" else ())
        if hit is not None:
            found[role][part], root, count, instead = hit
            data = data or (root if "dataset" in found[role][part] else None)
            entry = replace(entry, available=True, found=count, substitute=instead)
        listed.append(entry)
    if "weights" in known:
        folders = [*roots, Path(get_dir()) / "checkpoints"]
        places = [folder / file for folder in folders for file in known["weights"]["files"]]
        weights = weights or next((place for place in places if place.is_file()), None)
        listed.append(replace(_entry(name, "weights", known["weights"], roots), available=weights is not None))
    usable = "test" in found["id"] and any(found[group] for group in GROUPS)
    # The options are the paper's, so nothing is chosen on validation sets.
    return Located(replace(bench, **found, ood_val={}) if usable else None, weights, listed, data)  # type: ignore[arg-type]


def archives() -> dict[str, Archive]:
    """Return the files that can be downloaded, by name."""
    return {name: Archive(name, **about) for name, about in read_toml("archives").items()}


def list_sets(roots: Sequence[Path], benchmarks: Sequence[str] = ()) -> list[DataSet]:
    """Return every set of these benchmarks, by default of all."""
    for name in benchmarks:
        if name not in BENCHMARKS:
            raise unknown_name("benchmark with sources", name, BENCHMARKS)
    return [item for name in benchmarks or BENCHMARKS for item in locate(name, roots, whole=True).sets]


def sets_table(sets: Sequence[DataSet]) -> Table:
    """Return a table of sets: what is available, size, licence, and how to get them."""
    rows = [
        [item.benchmark, item.name, item.state, item.size, item.licence, "--download" if item.archive else item.command]
        for item in sets
    ]
    headings = [Heading(text, words=True) for text in ("benchmark", "set", "found", "size", "licence", "how to get it")]
    cells, note = [[Cell(text) for text in row] for row in rows], "Images are counted, not compared with the originals."
    return Table("Data of the included benchmarks", headings, cells, [note])


def download(roots: Sequence[Path], benchmarks: Sequence[str], names: Sequence[str], progress: Progress) -> list[str]:
    """Download the missing sets of these benchmarks, or the named ones, to the first folder; return the names of the archives."""
    lacking = [item for item in list_sets(roots, benchmarks) if not item.complete]
    lacking = [item for item in lacking if item.name in (names or [item.name])]
    needed = {item.archive.name: item.archive for item in lacking if item.archive is not None}
    for archive in needed.values():
        fetch(archive, roots[0], progress)
    return list(needed)


def fetch(archive: Archive, root: Path, progress: Progress | None = None) -> Path:
    """Download an archive, verify its hash, unpack it below a folder, and return the path.

    An interrupted download is resumed. Nothing is unpacked before the whole file has been verified.
    """
    part, target = root / ".fetched" / PurePosixPath(urlsplit(archive.url).path).name, root / archive.to
    with locked(part.parent):
        _receive(archive, part, progress or Progress())
        try:
            kind, wanted = ("sha256", archive.sha256) if archive.sha256 else ("md5", archive.md5)
            with part.open("rb") as file:
                digest = hashlib.file_digest(file, partial(hashlib.new, kind, usedforsecurity=False)).hexdigest()
            if not digest.startswith(wanted):
                raise DataError(f"its {kind} must be {wanted}, got {digest}")
            unpack_archive(part, target)
        except (DataError, tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
            discard(part)
            raise DataError(
                f"{archive.name}: {archive.url} is not the expected file ({error}); the download was removed, try again"
            ) from error
        discard(part)
    return target


def _receive(archive: Archive, part: Path, progress: Progress) -> None:
    """Download the missing part of a file."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(archive.url, headers={"User-Agent": "idness", "Range": f"bytes={have}-"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
            size = have if resumed else 0
            total = size + int(answer.headers["Content-Length"]) if "Content-Length" in answer.headers else None
            progress.phase(f"downloading {archive.name}", total)
            progress.advance(size)
            with opened_for_download(part, resumed=resumed) as file:
                while block := answer.read(BLOCK):
                    size += file.write(block)
                    progress.advance(len(block))
        if total is not None and size != total:
            raise OSError(f"{size:,} of {total:,} bytes were received")
    except (OSError, http.client.HTTPException) as error:
        if have and getattr(error, "code", None) == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # the file was already complete
        raise DataError(
            f"{archive.name}: {archive.url} could not be downloaded ({error}); run the same command again to continue"
        ) from error


def _protocol(bench: Benchmark, whole: bool) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield the role, name in the benchmark, displayed name and specification of each set that a table needs."""
    classes = bench.classes if isinstance(bench.classes, int) else len(bench.class_names)
    for role, parts in {"id": bench.id, **{group: getattr(bench, group) for group in GROUPS}}.items():
        for part, spec in parts.items():
            table = {"path": spec} if isinstance(spec, str) else dict(spec)
            if role == "id" and part == "val" and "rows" in table:
                continue  # split off the test images, all of which the paper uses
            if role == "id":
                table = {key: value for key, value in table.items() if key not in ("rows", "sample")}
            if role == "id" and part == "train" and not whole:
                table["sample"] = max(TRAIN_SAMPLE, PER_CLASS * classes)
            if whole:
                table.pop("sample", None)
            yield role, part, f"id_{part}" if role == "id" else part, table


def _first(
    spec: Mapping[str, Any], places: Sequence[Mapping[str, Any]], roots: Sequence[Path], classes: Sequence[str]
) -> tuple[dict[str, Any], Path, int, str] | None:
    """Open a set in the first folder that contains it, without downloads; return specification, folder, images and substitute."""
    cut = {key: spec[key] for key in ("sample", "per_class") if key in spec}
    for root in roots:
        for candidate in ({**spec, "download": False}, *({**place, **cut} for place in places)):
            table = dict(candidate)
            instead = str(table.pop("instead", ""))
            for key in {"path", "root"} & table.keys():  # absolute, since sets may be in several folders
                given = [table[key]] if isinstance(table[key], str) else table[key]
                made = [place if ":" in place else str((root / place).absolute()) for place in given]
                table[key] = made if key == "path" else made[0]
            try:
                opened = open_set(table, root, classes)
            except (IdnessError, OSError):
                continue
            if len(opened):
                return table, root, len(opened), instead
    return None


def _entry(benchmark: str, name: str, about: Mapping[str, Any], roots: Sequence[Path]) -> DataSet:
    root = roots[0] if roots else Path("data")
    command = str(about.get("command", "place it below {root}")).replace("{root}", str(root))
    archive = next((item for item in archives().values() if name in item.sets.get(benchmark, ())), None)
    expected = int(about["images"]) if "images" in about else None
    return DataSet(benchmark, name, str(about.get("size", "unknown")), command, archive, expected)
