"""What a guard says of images: class, score, p-value and decision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import torch
from torch import Tensor

from idness.guard.conformal import false_alarm_rate


@dataclass(frozen=True, eq=False)
class Verdict:
    """Holds one decision per image.

    Args:
        label: the plain network's class, -1 where its output was not finite.
        score: ID-ness; higher is more in-distribution.
        p_value: share of in-distribution images that score no higher; small means OOD.
        is_ood: whether the image is called out-of-distribution.
        levels: the decisions for each recall that the guard was calibrated for; `is_ood` is the first of them.
        reasons: why an image was rejected without a score, by row.
        class_names: names of the classes, where known.
        cautions: what is odd about an image that is not rejected for it, by row.
    """

    label: Tensor
    score: Tensor
    p_value: Tensor
    is_ood: Tensor
    levels: Mapping[float, Tensor] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    class_names: tuple[str, ...] | None = None
    cautions: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.label)

    def __iter__(self) -> Iterator[Verdict]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int) -> Verdict:
        """Select one image; the tensors keep their batch dimension."""
        row = range(len(self))[row]
        part = slice(row, row + 1)
        return Verdict(
            self.label[part],
            self.score[part],
            self.p_value[part],
            self.is_ood[part],
            {recall: flags[part] for recall, flags in self.levels.items()},
            {0: self.reasons[row]} if row in self.reasons else {},
            self.class_names,
            {0: self.cautions[row]} if row in self.cautions else {},
        )

    def at(self, recall: float) -> Tensor:
        """Decide again for another recall, from the p-values; with few calibration images a high recall flags nothing."""
        rejected = torch.zeros_like(self.is_ood)
        rejected[list(self.reasons)] = True
        # p-values are float32: 1/20 must count as 0.05.
        return rejected | (self.p_value.double() <= false_alarm_rate(recall) * (1 + 1e-6))

    def name(self, row: int) -> str:
        """Name the class of a row; its number where names are unknown."""
        label = int(self.label[row])
        if label < 0:
            return "none"
        return self.class_names[label] if self.class_names else str(label)

    def records(self) -> list[dict[str, Any]]:
        """Give one plain dictionary per image, as printed and served."""
        return [
            {
                "label": int(self.label[row]),
                "class": self.name(row),
                "score": float(self.score[row]),
                "p_value": float(self.p_value[row]),
                "is_ood": bool(self.is_ood[row]),
                "reason": self.reasons.get(row),
                "caution": self.cautions.get(row),
            }
            for row in range(len(self))
        ]

    def __repr__(self) -> str:
        flagged = int(self.is_ood.sum())
        return f"Verdict({len(self)} images, {flagged} out-of-distribution)"

    def _repr_html_(self) -> str:
        """Show the first rows as a table in a notebook; the decision is a word and a colour."""
        rows = []
        for row, record in enumerate(self.records()[:50]):
            colour, word = ("#b3261e", "out") if record["is_ood"] else ("#1a7f4b", "in")
            odd = record["reason"] or record["caution"]
            note = f" <small>{escape(odd)}</small>" if odd else ""
            rows.append(
                f"<tr><td>{row}</td><td>{escape(record['class'])}</td><td>{record['score']:.4g}</td><td>{record['p_value']:.4f}</td>"
                f'<td><b style="color:#fff;background:{colour};padding:0 .4em">{word}</b>{note}</td></tr>'
            )
        more = f"<p>and {len(self) - 50} more</p>" if len(self) > 50 else ""
        head = "<tr><th>image</th><th>class</th><th>ID-ness</th><th>p-value</th><th>verdict</th></tr>"
        return f"<table>{head}{''.join(rows)}</table>{more}"
