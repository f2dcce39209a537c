"""A benchmark as data: which sets are in-distribution, which are near and far, and which serve to choose options."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idness.core.errors import DataError, IdnessError, IdnessWarning, MissingError, unknown_name
from idness.data import ActivationsFile, ImageSet, embedded, open_set
from idness.data.open import read_classes

HOME = Path(__file__).parent / "definitions"
GROUPS = ("near", "far")
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
KEYS = ("name", "title", "classes", "head", "preprocessing", "id", "ood_val", *GROUPS)


@dataclass(frozen=True)
class OpenSet:
    """Gives access to a set that was found, under its name and in its role."""

    name: str
    role: str
    data: ImageSet | ActivationsFile

    @property
    def is_id(self) -> bool:
        """Whether its images are in-distribution."""
        return self.role.startswith("id_")


@dataclass(frozen=True)
class Benchmark:
    """Says which sets a network is tested on; read from TOML.

    Args:
        name: short name.
        title: one line for people.
        id: sets by part: `test` is needed; `train` and `val` serve methods that learn and the choice of options.
        ood_val: sets by name on which options are chosen; none of them may be tested on.
        near: out-of-distribution test sets close to the ID classes.
        far: out-of-distribution test sets of another kind.
        classes: names of the classes, or their number.
        preprocessing: resize, crop, mean, std, interpolation; without it the network's own.
        head: a safetensors file with weight and bias, where all sets are activations files.
        base: the folder that relative paths begin at, unless another is given.
    """

    name: str
    title: str
    id: Mapping[str, Any]
    ood_val: Mapping[str, Any] = field(default_factory=dict)
    near: Mapping[str, Any] = field(default_factory=dict)
    far: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] | int | None = None
    preprocessing: Mapping[str, Any] | None = None
    head: str | None = None
    base: Path | None = None

    def __post_init__(self) -> None:
        for part in self.id:
            if part not in ("train", "val", "test"):
                raise DataError(f"benchmark {self.name}: [id] takes train, val and test; got {part!r}")
        if "test" not in self.id:
            raise DataError(f"benchmark {self.name}: needs [id] test, the ID images to tell the OOD images from")
        if not self.near and not self.far:
            raise DataError(f"benchmark {self.name}: needs at least one set in [near] or [far]")
        names = [*(f"id_{part}" for part in self.id), *self.ood_val, *self.near, *self.far]
        for name in names:
            if not NAME.fullmatch(name):
                raise DataError(
                    f"benchmark {self.name}: a set's name is letters, digits, dots and dashes, got {name!r}"
                )
            if names.count(name) > 1:
                raise DataError(
                    f"benchmark {self.name}: each set needs a name of its own, got {name!r} twice; no set may serve twice"
                )

    @classmethod
    def load(cls, name: str | Path) -> Benchmark:
        """Read a benchmark by name, such as `imagenet`, or from a TOML file."""
        path = Path(name)
        if path.suffix != ".toml":
            if str(name) not in names():
                raise unknown_name("benchmark", str(name), [*names(), "path/to/file.toml"])
            return cls.from_text(_definitions()[str(name)].read_text(encoding="utf-8"), str(name))
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            what = "cannot be read" if path.exists() else "does not exist"
            raise DataError(f"{path} {what}; idness bench --init writes a template") from error
        return cls.from_text(text, path.stem, path.parent)

    @classmethod
    def from_text(cls, text: str, name: str, base: Path | None = None) -> Benchmark:
        """Read a benchmark from TOML text."""
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise DataError(f"benchmark {name}: is no TOML ({error})") from error
        for key in table:
            if key not in KEYS:
                raise DataError(f"benchmark {name}: unknown key {key!r}; it takes {', '.join(KEYS)}")
        for key in ("id", "ood_val", "preprocessing", *GROUPS):
            if not isinstance(table.get(key, {}), dict):
                raise DataError(f"benchmark {name}: [{key}] must be a table, got {table[key]!r}")
        classes = table.get("classes")
        if isinstance(classes, str):
            classes = list(read_classes(classes, base))
        if not (
            classes is None
            or isinstance(classes, int)
            or (isinstance(classes, list) and all(isinstance(item, str) for item in classes))
        ):
            raise DataError(
                f"benchmark {name}: classes must be a list of names, a text file of them, or their number, got {classes!r}"
            )
        called = str(table.get("name", name))
        table |= {"name": called, "title": str(table.get("title", called)), "id": table.get("id", {})}
        table["classes"] = tuple(classes) if isinstance(classes, list) else classes
        return cls(**table, base=base)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, where the benchmark says them."""
        return self.classes if isinstance(self.classes, tuple) else ()

    def root(self, data: str | Path | None = None) -> Path:
        """Give the folder at which relative paths begin."""
        if data is not None:
            if not Path(data).is_dir():
                what = "is no folder" if Path(data).exists() else "does not exist"
                raise DataError(f"data={str(data)!r} {what}; it must be the folder at which relative paths begin")
            return Path(data)
        if self.base is not None:
            return self.base
        return Path("data") if Path("data").is_dir() else Path()

    def open(self, data: str | Path | None = None, *, partial: bool = False) -> list[OpenSet]:
        """Open every set, and tell all that is wrong at once.

        Args:
            data: the folder at which relative paths begin.
            partial: whether to go on without the sets that are not there, as long as the ID test set and one other are.
        """
        root, opened, problems, absent = self.root(data), [], dict[str, str](), set[str]()
        for role, name, spec in self._listed():
            try:
                found = open_set(spec, root, self.class_names if role.startswith("id_") else ())
                if len(found) == 0:
                    raise MissingError(f"{found.source} holds no images")
                opened.append(OpenSet(name, role, found))
            except IdnessError as error:
                problems[name] = str(error)
                absent |= {name} if isinstance(error, MissingError) else set()
        tested = [entry for entry in opened if entry.role in GROUPS]
        # A set that is there and cannot be used is a mistake, which nobody asked to pass over.
        enough = partial and tested and any(entry.role == "id_test" for entry in opened) and absent == set(problems)
        if problems and not enough:
            told = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
            count = f"{len(problems)} of {len(opened) + len(problems)} sets"
            raise DataError(
                f"benchmark {self.name}: {count} cannot be used: {told};"
                " data= says where relative paths begin, partial=True leaves out what is missing"
            )
        for name, problem in problems.items():
            warnings.warn(f"{name} is left out: {problem}", IdnessWarning, stacklevel=2)
        return opened

    def _listed(self) -> list[tuple[str, str, Any]]:
        inner = [(f"id_{part}", f"id_{part}", self.id[part]) for part in ("train", "val", "test") if part in self.id]
        others = [(role, name, spec) for role in ("ood_val", *GROUPS) for name, spec in getattr(self, role).items()]
        return inner + others


def _definitions() -> dict[str, Path]:
    found = [*HOME.glob("*.toml"), embedded.DEFINITION]
    return {path.stem: path for path in found if path.stem != "template"}


def names() -> list[str]:
    """List the benchmarks that ship with idness."""
    return sorted(_definitions())


def template() -> str:
    """Give a commented benchmark file to start from."""
    return (HOME / "template.toml").read_text(encoding="utf-8")
