"""Finds methods by name: ours, and those that installed packages offer under the entry-point group `idness.methods`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeGuard

from idness.core.errors import IdnessError, OptionError, unknown_name
from idness.core.method_text import read_method, split_methods, write_options
from idness.core.scripts import MODULE, Script
from idness.detectors.detector import Detector

GROUP = "idness.methods"


def available() -> dict[str, type[Detector]]:
    """Give every method by name: ours, then those of other installed packages under the names they chose."""
    return dict(_found())


def look_again() -> None:
    """Look for methods anew, as after a package was installed while Python runs."""
    _found.cache_clear()


def rows(*, costly: bool = False) -> dict[str, Detector]:
    """Give every row of a comparison by name: a method at its defaults, or each of its variants (`ash-s`, `ash-p`, `ash-b`).

    Methods that need more than one pass of the network are there only if `costly` ones are asked for; those that read a training
    run never are.
    """
    alone = {name: cls for name, cls in _found().items() if not cls.of_run}
    listed = {row: cls(**fixed) for name, cls in alone.items() for row, fixed in (cls.rows or {name: {}}).items()}
    return {row: made for row, made in listed.items() if costly or made.input_edit is None}


def build(name: str, /, **options: Any) -> Detector:
    """Make a detector by name, as in `build("scale", percentile=95)`; `ash-s` is `ash` with its variant set."""
    cls, fixed = _find(name)
    return _made(cls, {**fixed, **options})


def parse(text: str) -> Detector:
    """Make a detector from text such as `scale`, `scale(percentile=95)` or `ash(variant=s, percentile=90)`."""
    name, options = read_method(text)
    return build(name, **options)


def given(method: type[Detector] | Detector | Script) -> tuple[Detector, bool]:
    """Make the detector that a person hands over, and say whether its options are set by them.

    It may be a class, an object, or either of them in a Python file; an object is copied, so that theirs learns nothing.
    """
    options: dict[str, Any] = {}
    found: object = method
    if isinstance(method, Script):
        options, found = method.options, method.load()
    if isinstance(found, Detector) and not options:
        return dataclasses.replace(found), True  # type: ignore[type-var]
    if not _is_method(found):
        raise OptionError(
            f"{method}: a method must be a dataclass that extends Detector, or such an object, got {found!r}"
        )
    return _made(found, options), bool(options)


def row_name(detector: Detector, options: str = "") -> str:
    """Name the row of a detector that a person hands over; one that is called as another method is goes by its module too."""
    cls, name = type(detector), detector.name
    known = _found().get(name)
    if (known is not None and known is not cls) or (known is None and name in rows(costly=True)):
        name = f"{cls.__module__.removeprefix(MODULE)}:{cls.__name__}"
    return f"{name}({options})" if options else name


def detectors_in(owner: Detector, option: str) -> tuple[Detector, ...]:
    """Make the detectors that an option holds: one text such as `react+dice`, or a list of texts, configurations, detectors.

    They are copies: two detectors with the same parts must not learn into the same ones.
    """
    given: Any = getattr(owner, option)
    listed = split_methods(given, between="+") if isinstance(given, str) else given
    if not isinstance(listed, Sequence) or not listed:
        raise OptionError(f"{type(owner).__name__}: {option} must be methods joined by '+', got {given!r}")
    found: list[Any] = []
    for item in listed:
        made = parse(item) if isinstance(item, str) else item
        found.append(build(made["method"], **made.get("options", {})) if isinstance(made, dict) else made)
        if not isinstance(found[-1], Detector):
            raise OptionError(
                f"{type(owner).__name__}: {option} must be methods joined by '+', got {item!r} among them"
            )
    return tuple(dataclasses.replace(detector) for detector in found)


def short(detector: Detector) -> str:
    """Write a detector as shortly as `parse` takes it: options at their defaults are left out."""
    shown = changed(detector)
    return f"{detector.name}({shown})" if shown else detector.name


def changed(detector: Detector) -> str:
    """Write the options of a detector that are not at their defaults."""
    usual = type(detector)().options()
    return write_options({key: value for key, value in detector.options().items() if value != usual[key]})


def _made(cls: type[Detector], options: Mapping[str, Any]) -> Detector:
    allowed = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for option in options:
        if option not in allowed:
            takes = f"it takes {', '.join(allowed)}" if allowed else "it takes none"
            raise OptionError(f"{cls.__name__}: unknown option {option!r}; {takes}")
    return cls(**options)


def _find(name: str) -> tuple[type[Detector], Mapping[str, Any]]:
    """Find a method or one of its variants, whatever the case of the letters."""
    wanted, known = name.lower(), _found()
    names: dict[str, tuple[type[Detector], Mapping[str, Any]]] = {}
    # Another package's class calls itself after its own name until it was looked for; files may hold that name.
    names |= {cls.__name__.lower(): (cls, {}) for cls in known.values()}
    names |= {key.lower(): (cls, {}) for key, cls in known.items()}
    names |= {row.lower(): (cls, fixed) for cls in known.values() for row, fixed in cls.rows.items()}
    if wanted not in names and Script.named(name) is not None:
        # Here and in files that strangers may have written no code is run: only where a person compares methods.
        raise OptionError(
            f"{name}: a method of a Python file can be compared, not kept; offer it under the entry-point group {GROUP!r}"
        )
    if wanted not in names:
        raise unknown_name("method", name, rows(costly=True))
    return names[wanted]


@cache
def _found() -> dict[str, type[Detector]]:
    from idness import methods

    found: dict[str, type[Detector]] = {name.lower(): getattr(methods, name) for name in methods.__all__}
    for point in entry_points(group=GROUP):
        if point.name.lower() in map(str.lower, found):
            raise _bad(point, f"must have a name of its own, got {point.name!r}, which is taken")
        found[point.name] = _load(point)
    return found


def _load(point: EntryPoint) -> type[Detector]:
    try:
        cls: Any = point.load()
    except (ImportError, AttributeError) as error:
        raise _bad(point, f"must name a class that can be imported, got {point.value!r} ({error})") from error
    if not _is_method(cls):
        raise _bad(point, f"must be a dataclass that extends Detector, got {cls!r}")
    cls.listed_as = point.name
    found: type[Detector] = cls
    return found


def _is_method(cls: object) -> TypeGuard[type[Detector]]:
    return isinstance(cls, type) and issubclass(cls, Detector) and dataclasses.is_dataclass(cls)


def _bad(point: EntryPoint, what: str) -> IdnessError:
    return IdnessError(f"entry point {point.name!r} of {GROUP} {what}; fix or uninstall it")
