"""How `--size`, `--mean` and `--std` say what becomes of a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from idness.data import Preprocessing


def preprocessing(size: int | None, mean: str | None, std: str | None) -> Preprocessing | None:
    """Make the preprocessing of what was given; none where nothing was, so that the network is asked."""
    from idness.core.errors import OptionError
    from idness.data import Preprocessing

    if size is None and mean is None and std is None:
        return None
    if size is None:
        raise OptionError("--mean and --std need --size, the side of the network's input in pixels")
    values: dict[str, object] = {"resize": (size, size)}
    for name, text in (("mean", mean), ("std", std)):
        if text is not None:
            try:
                values[name] = tuple(float(part) for part in text.split(","))
            except ValueError as error:
                raise OptionError(
                    f"--{name} must be numbers with commas between, one per channel, got {text!r}"
                ) from error
    return Preprocessing.from_dict(values)
