"""A benchmark as data: its ID sets, near and far OOD sets and validation sets; and the options of a run."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from idness.core.errors import DataError, IdnessError, IdnessWarning, MissingError, unknown_name
from idness.core.options import check_count, check_fraction
from idness.data import ImageSet, embedded, open_set
from idness.data.activations import ActivationsFile
from idness.data.sets import read_classes
from idness.networks.open import ModelOptions
from idness.selection.search import Method

HOME = Path(__file__).parent / "definitions"
GROUPS = ("near", "far")
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
KEYS = ("name", "title", "classes", "head", "preprocessing", "id", "ood_val", *GROUPS)


@dataclass(frozen=True)
class OpenSet:
    """An available data set of a benchmark, with its name and role."""

    name: str
    role: str
    data: ImageSet | ActivationsFile


@dataclass(frozen=True)
class Benchmark:
    """The data sets that a network is tested on, read from TOML.

    Args:
        name: short name.
        title: title for tables and reports.
        id: ID sets by part: `test` is required; `train` is for fitting methods, and `val` for choosing options.
        ood_val: OOD sets by name for choosing options; none of them may be a test set.
        near: OOD test sets similar to the ID classes.
        far: OOD test sets of another kind.
        classes: names of the classes, or their number.
        preprocessing: resize, crop, mean, std, interpolation; the network's own by default.
        head: a safetensors or .npz file with weight and bias, if all sets are files of activations.
        base: the default base folder of relative paths.

    Example:
        >>> Benchmark.load("cifar6").near["cat"] is not None
        True
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
                raise DataError(f"benchmark {self.name}: [id] must contain only train, val and test, got {part!r}")
        if "test" not in self.id:
            raise DataError(f"benchmark {self.name}: needs [id] test, the ID test images")
        if not self.near and not self.far:
            raise DataError(f"benchmark {self.name}: needs at least one set in [near] or [far]")
        names = [*(f"id_{part}" for part in self.id), *self.ood_val, *self.near, *self.far]
        for name in names:
            if not NAME.fullmatch(name) or names.count(name) > 1:
                rule = "names of sets must be unique and consist of letters, digits, dots and dashes"
                raise DataError(f"benchmark {self.name}: {rule}, got {name!r}")

    @classmethod
    def load(cls, name: str | Path) -> Benchmark:
        """Return a benchmark, given its name, such as `imagenet`, or a TOML file."""
        path, known = Path(name), _definitions()
        base: Path | None = path.parent
        if path.suffix != ".toml":
            if str(name) not in known:
                raise unknown_name("benchmark", str(name), [*sorted(known), "path/to/file.toml"])
            path = known[str(name)]
            base = path.parent if path.stem in embedded.NETWORKS else None
        if not path.is_file():
            raise DataError(f"{path} does not exist; idness bench --init writes a template")
        return cls.from_text(path.read_text(encoding="utf-8", errors="replace"), path.stem, base)

    @classmethod
    def from_text(cls, text: str, name: str, base: Path | None = None) -> Benchmark:
        """Return a benchmark, given its TOML text."""
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise DataError(f"benchmark {name}: is not valid TOML ({error})") from error
        for key, value in table.items():
            if key not in KEYS:
                raise DataError(f"benchmark {name}: unknown key {key!r}; known keys are {', '.join(KEYS)}")
            if key in ("id", "ood_val", "preprocessing", *GROUPS) and not isinstance(value, dict):
                raise DataError(f"benchmark {name}: [{key}] must be a table, got {value!r}")
        classes = table.get("classes")
        if isinstance(classes, str):
            classes = read_classes(classes, base)
        elif isinstance(classes, list) and all(isinstance(item, str) for item in classes):
            classes = tuple(classes)
        elif not isinstance(classes, int | None):
            raise DataError(f"benchmark {name}: classes must be names, a text file or a number, got {classes!r}")
        own = str(table.get("name", name))
        table |= {"name": own, "title": str(table.get("title", own)), "id": table.get("id", {}), "classes": classes}
        return cls(**table, base=base)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; empty if the benchmark does not define them."""
        return self.classes if isinstance(self.classes, tuple) else ()

    def root(self, data: str | Path | None = None) -> Path:
        """Return the base folder of relative paths."""
        if data is not None:
            if not Path(data).is_dir():
                what = "is not a folder" if Path(data).exists() else "does not exist"
                raise DataError(f"data={str(data)!r} {what}; pass the base folder of relative paths")
            return Path(data)
        if self.base is not None:
            return self.base
        return Path("data") if Path("data").is_dir() else Path()

    def open(self, data: str | Path | None = None, *, partial: bool = False) -> list[OpenSet]:
        """Open every set; one error lists all that cannot be used.

        Args:
            data: the base folder of relative paths.
            partial: whether to skip missing sets, as long as the ID test set and one OOD test set exist.
        """
        root, opened, problems, absent = self.root(data), [], dict[str, str](), set[str]()
        wanted = [(f"id_{part}", f"id_{part}", self.id[part]) for part in ("train", "val", "test") if part in self.id]
        wanted += [(role, name, spec) for role in ("ood_val", *GROUPS) for name, spec in getattr(self, role).items()]
        for role, name, spec in wanted:
            try:
                found = open_set(spec, root, self.class_names if role.startswith("id_") else ())
                if len(found) == 0:
                    raise MissingError(f"{found.source} contains no images")
                opened.append(OpenSet(name, role, found))
            except IdnessError as error:
                problems[name] = str(error)
                absent |= {name} if isinstance(error, MissingError) else set()
        roles = {entry.role for entry in opened}
        # A set that exists but cannot be used is a mistake, which partial= does not hide.
        enough = partial and "id_test" in roles and not roles.isdisjoint(GROUPS) and absent == set(problems)
        if problems and not enough:
            listed = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
            count, hint = len(problems), "pass data=, their folder, or partial=True to skip missing sets"
            raise DataError(f"benchmark {self.name}: {count} of {len(wanted)} sets cannot be used: {listed}; {hint}")
        for name, problem in problems.items():
            warnings.warn(f"{name} is skipped: {problem}", IdnessWarning, stacklevel=2)
        return opened


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a benchmark run.

    Args:
        data: the base folder of relative paths.
        weights: a file with the network's weights.
        layer: the name of the final linear layer; found automatically by default.
        multi_label: whether an image may have several labels or none; determined from the network by default.
        methods: the methods to compare: names such as `scale`, `scale(percentile=95)` or `my_file.py:MyDetector`, classes, whose
            options are searched, and detectors; by default all methods that need only one pass of the network.
        precision: fp32, bf16 or auto.
        engine: eager, onnxruntime, openvino, or auto.
        batch_size: images per forward pass; by default chosen by image size.
        workers: number of threads that decode images; all cores by default.
        threads: total number of threads for the network and for decoding; all cores by default.
        cache: the folder of the feature store.
        device: the device of the network; auto uses a GPU if available.
        recall: the recall at which false-positive rates are computed.
        seed: seed of the bootstrap.
        partial: whether to skip missing sets.
        any_accuracy: whether to continue if the accuracy on labelled ID images is at chance level.
        command: the command line, for the record.
    """

    data: str | Path | None = None
    weights: str | Path | None = None
    layer: str | None = None
    multi_label: bool | None = None
    methods: Sequence[Method] = ()
    precision: str = "fp32"
    engine: str = "auto"
    batch_size: int | None = None
    workers: int | None = None
    threads: int | None = None
    cache: str | Path | None = None
    device: str = "auto"
    recall: float = 0.95
    seed: int = 0
    partial: bool = False
    any_accuracy: bool = False
    command: str = ""

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check_count(self, "batch_size")
        check_fraction(self, "recall", self.recall)

    def model_options(self, model: str | nn.Module | ModelOptions) -> ModelOptions:
        """Return the options of the network; a `ModelOptions` is returned unchanged."""
        if isinstance(model, ModelOptions):
            return model
        own = ("weights", "layer", "multi_label", "precision", "engine", "device", "threads")
        return ModelOptions(model, **{name: getattr(self, name) for name in own})


def _definitions() -> dict[str, Path]:
    found = [*HOME.glob("*.toml"), *map(embedded.definition, embedded.NETWORKS)]
    return {path.stem: path for path in found if path.stem != "template"}


def names() -> list[str]:
    """Return the names of the benchmarks that are part of idness."""
    return sorted(_definitions())


def template() -> str:
    """Return a commented benchmark file to start from."""
    return (HOME / "template.toml").read_text(encoding="utf-8")
