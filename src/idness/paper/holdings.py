"""Says of every set of the shipped benchmarks what it is, whether it is there and whole, and fetches what may be fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from idness.core.errors import unknown_name
from idness.core.files import sha256
from idness.core.progress import Listener
from idness.data import embedded
from idness.paper.fetching import Archive, archives, fetch
from idness.paper.locate import Located, locate, sources
from idness.report.tables import Cell, Heading, Table

BENCHMARKS = ("cifar10", "cifar10-openood", "cifar100", "cifar100-openood", "imagenet", "imagenet-react")
TERMS = {"imagenet": "ImageNet's terms of access: non-commercial research"}
"""Licences of sets that must be fetched by hand."""
WHOLE, MISSING = "whole", "missing"


@dataclass(frozen=True)
class Holding:
    """Tells of one set, or of a network's `weights`: how large it is, where it comes from, and in what state it is here.

    `expected` and `found` count images; `fetchable` says whether `idness data --download` brings it.
    """

    benchmark: str
    name: str
    size: str
    licence: str
    source: str
    fetchable: bool
    state: str
    expected: int | None = None
    found: int | None = None


def holdings(roots: Sequence[Path], benchmarks: Sequence[str] = (), *, check: bool = False) -> list[Holding]:
    """List every set of these benchmarks, all if none is named; with `check`, files of known hashes are read too."""
    known = (embedded.NAME, *BENCHMARKS)
    for name in benchmarks:
        if name not in known:
            raise unknown_name("benchmark with sources", name, known)
    listed: list[Holding] = []
    for name in benchmarks or known:
        listed += _embedded() if name == embedded.NAME else _of(name, locate(name, roots, thinned=False), check)
    return listed


def download(
    root: Path, benchmarks: Sequence[str] = (), sets: Sequence[str] = (), *, listener: Listener | None = None
) -> list[str]:
    """Fetch what is missing of these benchmarks and may be fetched, or only the named sets of them; give what was fetched."""
    lacking = [item for item in holdings([root], benchmarks) if item.fetchable and item.state != WHOLE]
    wanted = [item for item in lacking if not sets or item.name in sets]
    needed = {archive.name: archive for item in wanted if (archive := _archive(item.benchmark, item.name)) is not None}
    for archive in needed.values():
        fetch(archive, root, listener)
    return list(needed)


def as_table(items: Sequence[Holding]) -> Table:
    """Make a table of what there is."""
    words = ("benchmark", "set", "here", "size", "licence", "how to get it")
    rows = [
        [
            item.benchmark,
            item.name,
            item.state,
            item.size,
            item.licence,
            "--download" if item.fetchable else item.source,
        ]
        for item in items
    ]
    headings = [Heading(word, words=True) for word in words]
    return Table("Data of the shipped benchmarks", headings, [[Cell(text) for text in row] for row in rows])


def to_json(items: Sequence[Holding]) -> list[dict[str, Any]]:
    """Give the whole as plain values."""
    return [asdict(item) for item in items]


def _embedded() -> list[Holding]:
    """List the sets that come with idness."""
    counts = {name: len(embedded.load(name)) for name in embedded.sets()}
    about = "in idness; its data card names each source's licence"
    return [
        Holding(embedded.NAME, name, f"{count:,} images of 32 x 32", about, "with idness", False, WHOLE, count, count)
        for name, count in counts.items()
    ]


def _of(name: str, found: Located, check: bool) -> list[Holding]:
    known = sources(name)
    listed = []
    for shown, about in known["sets"].items():
        count = found.images.get(shown, (None, None))[0]
        expected = int(about["images"])
        listed.append(_holding(name, shown, about, _state(count, expected), expected, count))
    if "weights" not in known:
        return listed
    state = MISSING if found.weights is None else _weights_state(found.weights) if check else WHOLE
    return [*listed, _holding(name, "weights", known["weights"], state)]


def _holding(
    benchmark: str, name: str, about: dict[str, Any], state: str, expected: int | None = None, found: int | None = None
) -> Holding:
    archive = _archive(benchmark, name)
    licence = archive.licence if archive is not None else TERMS.get(benchmark, "see its source")
    source = archive.url if archive is not None else str(about["command"])
    return Holding(benchmark, name, str(about["size"]), licence, source, archive is not None, state, expected, found)


def _archive(benchmark: str, name: str) -> Archive | None:
    return next((item for item in archives().values() if name in item.sets.get(benchmark, ())), None)


def _state(count: int | None, expected: int) -> str:
    if count is None:
        return MISSING
    # More is no harm: of Places365 the paper takes a part.
    return WHOLE if count >= expected else f"{count:,} of {expected:,} images"


def _weights_state(file: Path) -> str:
    """Compare a file with the beginning of its hash that torchvision writes into its name."""
    wanted = file.stem.rpartition("-")[2]
    if len(wanted) != 8 or set(wanted) - set("0123456789abcdef"):
        return f"{WHOLE}; no hash is known"
    return WHOLE if sha256(file).startswith(wanted) else "wrong: its sha256 is not the one of its name; remove it"
