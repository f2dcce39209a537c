"""A training set in a small file: statistics of all its images for the methods that learn these, and a sample for the others.

A summary of one part of a set and one of another make that of both, in whatever order they were made, so that a set of any size is
summarised in the memory of one part, by one process or by many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from idness.core.errors import InputError
from idness.core.types import Activations, Whole
from idness.detectors.statistics import Gathered, Statistic

KEEP = 5000
"""How many images the sample has, if not told otherwise."""


@dataclass(frozen=True, eq=False)
class Summary:
    """Holds what is kept of a set: how many images it has, statistics of all by name, and a sample with a hash of each image.

    Which images are kept is decided by their hashes alone: those with the lowest, as many of each class, or of all where labels are
    not known. So it is a fair sample, and the same however the set is divided.
    """

    count: int
    statistics: Mapping[str, Gathered]
    sample: Activations
    digests: Tensor
    keep: int

    @classmethod
    def of(
        cls, acts: Activations, digests: Tensor, statistics: Sequence[Statistic[Any]], *, keep: int = KEEP
    ) -> Summary:
        """Summarise the images of one part, each with its hash (N, H), of which eight bytes count."""
        found = {statistic.name: statistic.gather(acts) for statistic in distinct(statistics, acts.labels is not None)}
        known = {name: part for name, part in found.items() if part is not None}
        return cls(len(acts), known, acts, digests, keep)._trimmed()

    def merged(self, other: Summary) -> Summary:
        """Summarise both sets as one."""
        same = [self.sample.features.shape[1], self.sample.logits.shape[1], self.sample.labels is None, self.keep]
        others = [other.sample.features.shape[1], other.sample.logits.shape[1], other.sample.labels is None, other.keep]
        if same != others or set(self.statistics) != set(other.statistics):
            raise InputError(
                "merged: both summaries must be of one network, with the same statistics, both with labels or both without"
            )
        statistics = {name: part.merged(other.statistics[name]) for name, part in self.statistics.items()}
        sample = Activations.concat([self.sample, other.sample])
        both = Summary(
            self.count + other.count, statistics, sample, torch.cat([self.digests, other.digests]), self.keep
        )
        return both._trimmed()

    @property
    def activations(self) -> Activations:
        """The sample, knowing the whole: what `fit` takes in place of all training images."""
        return replace(self.sample, whole=Whole(self.count, self.tensors()))

    def tensors(self) -> dict[str, Tensor]:
        """Give the statistics as tensors by name."""
        return {
            f"{name}.{key}": value for name, part in self.statistics.items() for key, value in part.tensors().items()
        }

    @classmethod
    def of_sample(
        cls, sample: Activations, digests: Tensor, statistics: Sequence[Statistic[Any]], *, keep: int
    ) -> Summary:
        """Take what `activations` gave, with the hashes of its images."""
        assert sample.whole is not None
        known = {
            entry.name: found
            for entry in distinct(statistics, sample.labels is not None)
            if (found := entry.known(sample)) is not None
        }
        return cls(sample.whole.count, known, replace(sample, whole=None), digests, keep)

    def _trimmed(self) -> Summary:
        rows = _lowest(self.digests, self.sample, self.keep)
        return replace(self, sample=self.sample[rows], digests=self.digests[rows])


def summarise(
    parts: Iterable[tuple[Activations, Tensor]], statistics: Sequence[Statistic[Any]], *, keep: int = KEEP
) -> Summary | None:
    """Summarise a set part by part, in the memory of one; none where there is no part."""
    whole: Summary | None = None
    held: dict[str, Gathered] = {}
    for acts, digests in parts:
        sample = Summary.of(acts, digests, (), keep=keep)
        whole = sample if whole is None else whole.merged(sample)
        # One after another, and what was held is let go as it is merged: the largest are as large as a part.
        for statistic in distinct(statistics, acts.labels is not None):
            found = statistic.gather(acts)
            if found is not None:
                held[statistic.name] = held.pop(statistic.name).merged(found) if statistic.name in held else found
    return None if whole is None else replace(whole, statistics=held)


def distinct(statistics: Sequence[Statistic[Any]], labelled: bool) -> list[Statistic[Any]]:
    """Leave out statistics that are there twice, or that others tell as well where labels are known."""
    by_name = {statistic.name: statistic for statistic in statistics}
    return [entry for entry in by_name.values() if not (labelled and entry.within in by_name)]


def _lowest(digests: Tensor, acts: Activations, keep: int) -> Tensor:
    """Find the rows with the lowest hashes, an equal number of each class, in the order of the hashes."""
    rank = digests[:, :8].contiguous().view(torch.int64).squeeze(1)
    order = rank.argsort(stable=True)
    if acts.labels is None:
        return order[:keep]
    quota = -(-keep // acts.logits.shape[1])
    labels = acts.labels[order]
    by_label = labels.argsort(stable=True)
    starts = torch.searchsorted(labels[by_label].contiguous(), labels[by_label].contiguous())
    place = torch.empty_like(by_label)
    place[by_label] = torch.arange(len(by_label)) - starts
    return order[place < quota]
