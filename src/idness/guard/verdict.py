"""The decisions of a guard for images: class, score, p-value and whether they are out-of-distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idness.core.errors import InputError
from idness.core.options import check_fraction

if TYPE_CHECKING:
    from torch import Tensor

    from idness.data.batches import Batch
    from idness.data.sets import ImageSet

NOT_FINITE = "the network's output is not finite (NaN or Inf)"
FAR_ABOVE = "ID-ness is far above that of every calibration image; check that the input is preprocessed in the same way"
LOWEST = float(np.finfo(np.float32).min)
"""The score of images that are rejected regardless of their activations."""
SHOWN = 50
"""Maximum number of rows of the table in a notebook."""
ROUNDING = 1 + 1e-6
"""Tolerance for q-values, since p-values are float32."""
ARRAYS = {"label": -1, "score": LOWEST, "p_value": 0.0, "is_ood": True}
"""Fields of a verdict with one entry per image, and the entry of an unreadable image."""
TEXTS = ("reasons", "cautions", "errors")
"""Fields that map rows to texts."""


def q_values(p_values: ArrayLike) -> NDArray[np.float64]:
    """Return the q-value of each image: the smallest false discovery rate at which Benjamini and Hochberg flag it.

    Example:
        >>> q_values([0.01, 0.04, 0.9, 0.02]).round(3).tolist()
        [0.04, 0.053, 0.9, 0.04]
    """
    from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(np.asarray(p_values, np.float64)))


def images_for_fdr(images: int, discoveries: int, fdr: float) -> int:
    """Return the number of calibration images needed to flag this many of the images at a false discovery rate."""
    return max(1, math.ceil(round(images / (fdr * discoveries), 9)) - 1)


def fdr_shortfall(p_values: ArrayLike, calibration: int, fdr: float) -> str:
    """Return a warning if too few calibration images are available to flag any image at this rate; empty otherwise."""
    p = np.asarray(p_values, np.float64)
    lowest = int((p <= ROUNDING / (calibration + 1)).sum())  # p-values are at least 1 / (n + 1)
    if lowest == 0 or bool((q_values(p) <= fdr * ROUNDING).any()):
        return ""
    return (
        f"too few calibration images for a false discovery rate of {fdr:g}: only {lowest:,} of {len(p):,} images score below all"
        f" {calibration:,} of them, too few to flag any; calibrate on {images_for_fdr(len(p), lowest, fdr):,} images or raise the rate"
    )


@dataclass(frozen=True)
class Detection:
    """The number of OOD images, and how many of them a guard flags."""

    flagged: int
    images: int

    def __str__(self) -> str:
        """The detection rate with its 95 % interval (Clopper-Pearson)."""
        from scipy.stats import binomtest

        low, high = binomtest(self.flagged, self.images).proportion_ci()
        return (
            f"{100 * self.flagged / self.images:.1f} % of OOD images are flagged ({self.flagged:,} of {self.images:,};"
            f" 95 % interval {100 * low:.1f} to {100 * high:.1f} %)"
        )


@dataclass(frozen=True, eq=False)
class Verdict:
    """The decisions of a guard, one per image; the arrays are tensors, or NumPy arrays from an exported guard.

    Args:
        label: the plain network's class; -1 if its output was not finite.
        score: ID-ness; higher is more in-distribution.
        p_value: conformal p-value, the fraction of in-distribution images that score as low or lower; small means OOD.
        is_ood: whether the image is out-of-distribution.
        levels: the decisions at each recall that the guard was calibrated for; `is_ood` is the first of them.
        reasons: why an image was rejected without a score, by row.
        class_names: the names of the classes, if known.
        cautions: what is suspicious about images that were not rejected, by row.
        names: the names of the images, if known.
        errors: why an image could not be read, by row; such an image is in `reasons` too.
        fdr: the false discovery rate that `is_ood` is based on, if any.
    """

    label: Tensor
    score: Tensor
    p_value: Tensor
    is_ood: Tensor
    levels: Mapping[float, Tensor] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    cautions: Mapping[int, str] = field(default_factory=dict)
    names: Sequence[str] | None = None
    errors: Mapping[int, str] = field(default_factory=dict)
    fdr: float | None = None

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, row: int) -> Verdict:
        """Return the verdict on one image; arrays keep the batch dimension."""
        row = range(len(self))[row]
        return replace(self._rows([row]), names=None if self.names is None else [self.names[row]])

    def _rows(self, rows: Sequence[int]) -> Verdict:
        """Return these rows without their names; -1 stands for an unreadable image."""

        def taken(values: Any, fill: float) -> Any:
            if isinstance(values, np.ndarray):
                return np.append(values, np.array(fill, values.dtype))[rows]
            import torch

            return torch.cat((values, values.new_tensor([fill])))[rows]

        own: dict[str, Any] = {name: taken(getattr(self, name), fill) for name, fill in ARRAYS.items()}
        for name in TEXTS:
            known = getattr(self, name)
            own[name] = {place: known[row] for place, row in enumerate(rows) if row in known}
        own["levels"] = {recall: taken(flags, True) for recall, flags in self.levels.items()}
        return replace(self, **own, names=None, fdr=None)

    @staticmethod
    def concat(parts: Sequence[Verdict]) -> Verdict:
        """Concatenate verdicts of the same guard along the rows."""
        import torch

        if not parts:
            raise InputError("judge: needs at least one image, got none")
        own: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]).cpu() for name in ARRAYS}
        levels = {recall: torch.cat([part.levels[recall] for part in parts]).cpu() for recall in parts[0].levels}
        starts = list(accumulate((len(part) for part in parts[:-1]), initial=0))
        for name in TEXTS:
            texts = [(start, getattr(part, name)) for start, part in zip(starts, parts, strict=True)]
            own[name] = {start + row: text for start, found in texts for row, text in found.items()}
        names = None if parts[0].names is None else [name for part in parts for name in part.names or ()]
        return replace(parts[0], **own, levels=levels, names=names)

    def of_batch(self, images: ImageSet, batch: Batch) -> Verdict:
        """Return the verdict on a batch of a set, with names; images that could not be read are inserted and flagged."""
        errors = {row - batch.start: why for row, why in batch.skipped}
        read = iter(range(len(self)))
        rows = [-1 if row in errors else next(read) for row in range(batch.stop - batch.start)]
        found = self._rows(rows) if errors else self
        reasons = {**found.reasons, **{row: f"cannot be read: {why}" for row, why in errors.items()}}
        names = [images.item(row) for row in range(batch.start, batch.stop)]
        return replace(found, names=names, errors=errors, reasons=dict(sorted(reasons.items())))

    def q_values(self) -> Tensor:
        """Return the q-value of each image: the smallest false discovery rate at which it is flagged in this batch.

        Images that were rejected without a score have q-value 0, and do not count as tested.
        """
        scored = [row for row in range(len(self)) if row not in self.reasons]
        found = np.zeros(len(self))
        found[scored] = q_values(np.asarray(self.p_value.tolist())[scored])
        plain: Any = self.p_value
        result: Any = found if isinstance(plain, np.ndarray) else plain.double().new_tensor(found)
        return cast("Tensor", result)

    def select(self, fdr: float = 0.1) -> Tensor:
        """Return a mask of the images to flag such that, on average, at most a fraction `fdr` of them is in-distribution.

        Benjamini-Hochberg on the conformal p-values, for a batch of images that is judged together. By contrast, `is_ood` decides for
        each image separately, with a fixed false-alarm rate among in-distribution images, however few OOD images there are.

        Args:
            fdr: the false discovery rate, in (0, 1).
        """
        check_fraction("select", "fdr", fdr)
        return self.q_values() <= fdr * ROUNDING

    def name(self, row: int) -> str:
        """Return the name of a row's predicted class, or its index if names are unknown."""
        label = int(self.label[row])
        if label < 0:
            return "none"
        return self.class_names[label] if self.class_names else str(label)

    def records(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per image, as printed and served; unreadable images have only their name and error."""
        found, q = [], None if self.fdr is None else self.q_values().tolist()
        for row in range(len(self)):
            record: dict[str, Any] = {} if self.names is None else {"image": self.names[row]}
            if row in self.errors:
                record["error"] = self.errors[row]
            else:
                record |= {"label": int(self.label[row]), "class": self.name(row), "score": float(self.score[row])}
                record |= {"p_value": float(self.p_value[row])} | ({} if q is None else {"q_value": q[row]})
                record["is_ood"] = bool(self.is_ood[row])
                record |= {"reason": self.reasons.get(row), "caution": self.cautions.get(row)}
            found.append(record)
        return found

    def __repr__(self) -> str:
        unread = f", {len(self.errors)} of which cannot be read" if self.errors else ""
        count = f"{len(self)} image{'' if len(self) == 1 else 's'}"
        return f"Verdict({count}, {int(self.is_ood.sum())} out-of-distribution{unread})"

    def _repr_html_(self) -> str:
        """Return the first rows as a table for a notebook."""
        rows = ["<th>image</th><th>class</th><th>ID-ness</th><th>p-value</th><th>verdict</th>"]
        for row in range(min(len(self), SHOWN)):
            colour, word = ("#b3261e", "out") if bool(self.is_ood[row]) else ("#1a7f4b", "in")
            remark = self.reasons.get(row) or self.cautions.get(row)
            note = f" <small>{escape(remark)}</small>" if remark else ""
            name = str(row) if self.names is None else self.names[row]
            numbers = f"{float(self.score[row]):.4g}", f"{float(self.p_value[row]):.4f}"
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in (name, self.name(row), *numbers))
            rows.append(f'{cells}<td><b style="color:#fff;background:{colour};padding:0 .4em">{word}</b>{note}</td>')
        more = f"<p>and {len(self) - SHOWN} more</p>" if len(self) > SHOWN else ""
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>{more}"
