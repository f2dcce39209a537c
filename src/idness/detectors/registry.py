"""The registry of methods: built-in ones, and those of plug-ins in the entry-point group `idness.methods`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeGuard

from idness.core.errors import IdnessError, OptionError, unknown_name
from idness.core.options import read_method, split_methods, write_method
from idness.core.scripts import MODULE, Script
from idness.detectors.detector import Detector

GROUP = "idness.methods"
"""The package of built-in methods, and the entry-point group of plug-ins."""


def describe_method(name: str) -> dict[str, Any]:
    """Return name, summary, paper, options with defaults and class variables of a method, as `idness list --json` prints them."""
    cls = available()[name]
    about = {"name": name, "summary": cls.summary(), "paper": cls.paper(), "options": cls().options()}
    of_class = (
        "rows formula assumes needs_train needs_labels needs_val assumes_nonnegative forward_passes backward_passes"
    )
    return about | {variable: getattr(cls, variable) for variable in of_class.split()}


def rows(*, costly: bool = False) -> dict[str, Detector]:
    """Return the methods of a comparison at their defaults, with each variant (`ash-s`, `ash-p`, `ash-b`) listed separately.

    Methods that need more than one pass of the network are included only if `costly`; those that read a training run never are.
    """
    alone = {name: cls for name, cls in available().items() if not cls.of_run}
    listed = {row: cls(**fixed) for name, cls in alone.items() for row, fixed in (cls.rows or {name: {}}).items()}
    return {row: made for row, made in listed.items() if costly or made.input_edit is None}


def variants(name: str) -> dict[str, Detector]:
    """Return the variants of a method, or one of its variants, at their defaults."""
    cls, fixed = find(name)
    listed = cls.rows or {cls().name: {}}
    return {row: cls(**options) for row, options in listed.items() if not fixed or row.lower() == name.lower()}


def build(name: str, /, **options: Any) -> Detector:
    """Return a detector by the name of a method, or of a variant such as `ash-s`.

    Args:
        name: name of the method; case is ignored.
        options: options of the method.

    Raises:
        UnknownNameError: if there is no method of this name.
        OptionError: if an option is unknown or invalid.

    >>> build("scale", percentile=95).label()
    'scale(percentile=95)'
    """
    cls, fixed = find(name)
    return _made(cls, {**fixed, **options})


def parse(text: str) -> Detector:
    """Return a detector from text such as `scale`, `scale(percentile=95)` or `ash(variant=s, percentile=90)`."""
    name, options = read_method(text)
    return build(name, **options)


def from_user(method: type[Detector] | Detector | Script) -> tuple[str, Detector, bool]:
    """Return the name, the detector, and whether its options are set, for a user's class or object, possibly in a file.

    An object is copied. The name includes the module if another method has the same name.
    """
    found, options = (method.load(), method.options) if isinstance(method, Script) else (method, {})
    given = bool(options) or isinstance(found, Detector)
    if isinstance(found, Detector) and not options:
        detector: Detector = dataclasses.replace(found)  # type: ignore[type-var]
    elif _is_method(found):
        detector = _made(found, options)
    else:
        raise OptionError(
            f"{method}: a method must be a dataclass that extends Detector, or an instance of one, got {found!r}"
        )
    cls, name = type(detector), detector.name
    known = available().get(name)
    if known is not cls and (known is not None or name in rows(costly=True)):
        name = f"{cls.__module__.removeprefix(MODULE)}:{cls.__name__}"
    return short(detector, name), detector, given


def detectors_in(owner: Detector, option: str) -> tuple[Detector, ...]:
    """Return copies of the detectors in an option: a text such as `react+dice`, or a list of texts, configurations or detectors."""
    given: Any = getattr(owner, option)
    listed = split_methods(given, between="+") if isinstance(given, str) else given
    found: list[Any] = []
    for item in listed if isinstance(listed, Sequence) else ():
        made = parse(item) if isinstance(item, str) else item
        found.append(build(made["method"], **made.get("options", {})) if isinstance(made, dict) else made)
    if not found or not all(isinstance(detector, Detector) for detector in found):
        raise OptionError(f"{type(owner).__name__}: {option} must be methods joined by '+', got {given!r}")
    return tuple(dataclasses.replace(detector) for detector in found)


def short(detector: Detector, name: str = "") -> str:
    """Return the shortest text from which `parse` makes the detector, omitting default options."""
    usual = type(detector)().options()
    changed = {key: value for key, value in detector.options().items() if value != usual[key]}
    return write_method(name or detector.name, changed)


def _made(cls: type[Detector], options: Mapping[str, Any]) -> Detector:
    allowed = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for option in options:
        if option not in allowed:
            raise OptionError(f"{cls.__name__}: unknown option {option!r}; it takes {', '.join(allowed) or 'none'}")
    return cls(**options)


def find(name: str) -> tuple[type[Detector], Mapping[str, Any]]:
    """Return the class of a method and the options of a variant, ignoring case; only that module is imported for built-in methods."""
    from idness import methods

    wanted = name.lower()
    if wanted in methods.NAMES:
        return methods.method_class(wanted), {}
    known = available()
    # Files may contain the class name of a plug-in, which is used until entry points are read.
    names: dict[str, tuple[type[Detector], Mapping[str, Any]]]
    names = {cls.__name__.lower(): (cls, {}) for cls in known.values()}
    names |= {key.lower(): (cls, {}) for key, cls in known.items()}
    names |= {row.lower(): (cls, fixed) for cls in known.values() for row, fixed in cls.rows.items()}
    if wanted in names:
        return names[wanted]
    if Script.named(name) is not None:
        # Names in files written by others must not run code.
        raise OptionError(
            f"{name}: methods in Python files can only be compared; to save one, register it under the entry-point group {GROUP!r}"
        )
    raise unknown_name("method", name, rows(costly=True))


@cache
def available() -> Mapping[str, type[Detector]]:
    """Return every method by name: the built-in ones, then those of installed plug-ins."""
    from idness import methods

    found: dict[str, type[Detector]] = {name: methods.method_class(name) for name in methods.NAMES}
    for point in entry_points(group=GROUP):
        where = f"entry point {point.name!r} of {GROUP}"
        if point.name.lower() in map(str.lower, found):
            raise IdnessError(f"{where}: must have a unique name, got {point.name!r}; fix or uninstall it")
        try:
            cls = point.load()
        except (ImportError, AttributeError) as error:
            raise IdnessError(f"{where}: cannot be imported ({error}); fix or uninstall it") from error
        if not _is_method(cls):
            raise IdnessError(f"{where}: must be a dataclass that extends Detector, got {cls!r}; fix or uninstall it")
        cls.listed_as = point.name
        found[point.name] = cls
    return found


def _is_method(cls: object) -> TypeGuard[type[Detector]]:
    return isinstance(cls, type) and issubclass(cls, Detector) and dataclasses.is_dataclass(cls)
