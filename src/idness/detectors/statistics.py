"""What methods learn from all training images at once, in a form in which parts of a set are measured apart and merged.

A method names what it learns in `Detector.statistics` and asks for it of the activations that it is given. Those hold all images,
or a sample of them together with the statistics of all, which were gathered part by part: the method does not see the difference.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from idness.core.errors import IdnessWarning
from idness.core.types import Activations
from idness.detectors.kernels import percentiles, unit
from idness.detectors.sharing import shared

MANTISSA = 12
"""How many bits after the leading one tell values apart in a histogram: percentiles are exact to 2^-12, 0.025 % of their value."""
SHIFT = 23 - MANTISSA
SIGN = -(2**31)
AT_ONCE = 1024
"""How many rows are held in double precision at a time."""


class Gathered(ABC):
    """Holds a statistic of some images; two of them make that of both."""

    @abstractmethod
    def merged(self, other: Self) -> Self:
        """Give the statistic of these images and others."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Give all of it as tensors by name."""

    @classmethod
    @abstractmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Take what `tensors` gave."""


@dataclass(frozen=True, eq=False)
class Moments(Gathered):
    """Holds how many rows each group has (G,), their means (G, D) and the scatter of all around these (D, D), in float64.

    The scatter is the sum of squares and products; it is there where it was asked for.
    """

    counts: Tensor
    means: Tensor
    scatter: Tensor | None = None

    @classmethod
    def of(cls, rows: Tensor, groups: Tensor | None = None, count: int = 1, *, scatter: bool = True) -> Self:
        """Measure rows (N, D) that belong to so many groups; all to one where no groups (N,) are given."""
        owners = torch.zeros(len(rows), dtype=torch.long, device=rows.device) if groups is None else groups
        counts = torch.bincount(owners, minlength=count)
        means = torch.zeros(count, rows.shape[1], dtype=torch.double, device=rows.device)
        parts = list(zip(torch.split(rows, AT_ONCE), torch.split(owners, AT_ONCE), strict=True))
        for part, owner in parts:
            means.index_add_(0, owner, part.double())
        means /= counts.clamp(min=1).unsqueeze(1)
        if not scatter:
            return cls(counts, means)
        products = means.new_zeros(rows.shape[1], rows.shape[1])
        for part, owner in parts:
            centred = part.double() - means[owner]
            products.addmm_(centred.T, centred)
        return cls(counts, means, products)

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.counts.sum())

    @property
    def present(self) -> Tensor:
        """Which groups have any row."""
        return self.counts > 0

    @property
    def mean(self) -> Tensor:
        """The mean of all rows."""
        return (self.means * self.counts.unsqueeze(1)).sum(dim=0) / max(1, self.count)

    def within(self) -> Tensor:
        """Compute the covariance of rows around the means of their groups."""
        assert self.scatter is not None
        return self.scatter / max(1, self.count)

    def around(self, origin: Tensor) -> Tensor:
        """Compute the mean of squares and products of rows less one origin; less their mean, that is the covariance."""
        assert self.scatter is not None
        return (self.scatter + _products(self.means - origin, self.counts.double())) / max(1, self.count)

    def merged(self, other: Self) -> Self:
        total = self.counts + other.counts
        share = other.counts.double() / total.clamp(min=1)
        apart = other.means - self.means
        means = self.means + share.unsqueeze(1) * apart
        if self.scatter is None or other.scatter is None:
            return replace(self, counts=total, means=means, scatter=None)
        # What two parts of a group lie apart adds to the scatter around their common mean.
        scatter = _products(apart, self.counts * share).add_(self.scatter).add_(other.scatter)
        return replace(self, counts=total, means=means, scatter=scatter)

    def tensors(self) -> dict[str, Tensor]:
        found = {"counts": self.counts, "means": self.means}
        if self.scatter is not None:  # symmetric: one half says all
            rows, columns = torch.triu_indices(*self.scatter.shape)
            found["scatter"] = self.scatter[rows, columns]
        return found

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        means, half = tensors["means"], tensors.get("scatter")
        if half is None:
            return cls(tensors["counts"], means)
        rows, columns = torch.triu_indices(means.shape[1], means.shape[1])
        scatter = half.new_zeros(means.shape[1], means.shape[1])
        scatter[rows, columns] = scatter[columns, rows] = half
        return cls(tensors["counts"], means, scatter)


@dataclass(frozen=True, eq=False)
class Counts(Gathered):
    """Counts values in bins that are 2^-12 of their value wide, for percentiles.

    A bin is the leading bits of the number itself. Sums of counts do not depend on any order, and draw nothing: a set gives the same
    bytes however it was divided, which sketches that keep random values do not.
    """

    bins: Tensor
    counts: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """Count all values, whatever their shape."""
        bits = values.detach().cpu().float().contiguous().view(torch.int32).flatten()
        # Bits of negative numbers grow with their size: turned round, bins stand in the order of the values.
        ordered = torch.where(bits < 0, (SIGN - bits).sub_(1), bits).bitwise_right_shift_(SHIFT)
        lowest = int(ordered.min()) if len(ordered) else 0
        counted = torch.bincount(ordered.sub_(lowest))
        found = counted.nonzero().squeeze(1)
        return cls((found + lowest).to(torch.int32), counted[found])

    def percentiles(self, percents: Sequence[float]) -> list[Tensor]:
        """Find percentiles of all values, each to 2^-12 of itself."""
        ends = self.counts.cumsum(dim=0)
        ranks = torch.tensor(percents, dtype=torch.double, device=ends.device) / 100 * (int(ends[-1]) - 1)
        # Between two values a point on the way, as numpy takes it.
        low, high = (self._ranked(ends, whole.long()) for whole in (ranks.floor(), ranks.ceil()))
        return list((low + (ranks - ranks.floor()) * (high - low)).float())

    def _ranked(self, ends: Tensor, ranks: Tensor) -> Tensor:
        """Find the values of these ranks, each where it lies in its bin if all values there are spread evenly."""
        place = torch.searchsorted(ends, ranks, right=True)
        low, high = _value(self.bins[place]).double(), _value(self.bins[place] + 1).double()
        count = self.counts[place]
        inside = (ranks - ends[place] + count + 0.5) / count
        # Zeros are many, and exactly zero.
        return torch.where(self.bins[place] == 0, 0.0, low + inside * (high - low))

    def merged(self, other: Self) -> Self:
        bins, owners = torch.unique(torch.cat([self.bins, other.bins]), return_inverse=True)
        counts = torch.zeros(len(bins), dtype=torch.long).index_add_(0, owners, torch.cat([self.counts, other.counts]))
        return replace(self, bins=bins, counts=counts)

    def tensors(self) -> dict[str, Tensor]:
        return {"bins": self.bins, "counts": self.counts}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        return cls(tensors["bins"], tensors["counts"])


G = TypeVar("G", bound=Gathered)


@dataclass(frozen=True)
class Statistic(ABC, Generic[G]):
    """Describes something that methods learn of all images: how it is gathered from some, and asked for."""

    kind: ClassVar[type[Gathered]]

    name: str
    within: str = ""
    """The name of another statistic that tells the same and more."""

    @abstractmethod
    def gather(self, acts: Activations) -> G | None:
        """Measure these images; none where they lack what it takes, as labels."""

    def known(self, acts: Activations) -> G | None:
        """Give what is known of all the images that these are a sample of; none where these are all there are."""
        if acts.whole is None:
            return None
        for name in filter(None, (self.name, self.within)):
            parts = [key for key in acts.whole.tensors if key.startswith(f"{name}.")]
            if parts:
                found: G = self.kind.of_tensors(  # type: ignore[assignment]
                    {key.removeprefix(f"{name}."): acts.whole.tensors[key].to(acts.features.device) for key in parts}
                )
                return found
        warnings.warn(
            f"{self.name}: is not among the statistics that were kept of the training images; the {len(acts):,} images that were"
            " kept serve instead; run `idness fit` again for the methods that you use",
            IdnessWarning, stacklevel=4,
        )  # fmt: skip
        return None


@dataclass(frozen=True, kw_only=True)
class RowMoments(Statistic[Moments]):
    """Describes the moments of rows made of each image, by groups of images."""

    kind = Moments

    rows: Callable[[Activations], Tensor]
    groups: Callable[[Activations], Tensor] | None = None
    """Gives each image's group, below 0 where it does not count."""
    labelled: bool = False
    """Whether groups need labels."""
    scatter: bool = False

    def gather(self, acts: Activations) -> Moments | None:
        if self.labelled and acts.labels is None:
            return None
        if self.groups is None:
            return Moments.of(self.rows(acts), scatter=self.scatter)
        owners = self.groups(acts)
        counted = owners >= 0
        return Moments.of(self.rows(acts[counted]), owners[counted], acts.logits.shape[1], scatter=self.scatter)

    @shared
    def of(self, acts: Activations) -> Moments:
        """Give the moments of all images."""
        found = self.known(acts) or self.gather(acts)
        assert found is not None  # the detector's needs were checked
        return found

    def mean(self, acts: Activations) -> Tensor:
        """Give the mean of all rows alone, without the cost of the rest."""
        found = self.known(acts)
        return self.rows(acts).double().mean(dim=0) if found is None else found.mean


@dataclass(frozen=True, kw_only=True)
class AllValues(Statistic[Counts]):
    """Describes how all values of all images are spread, each counted alike."""

    kind = Counts

    values: Callable[[Activations], Tensor]

    def gather(self, acts: Activations) -> Counts:
        return Counts.of(self.values(acts))

    def percentiles(self, acts: Activations, percents: Sequence[float]) -> list[Tensor]:
        """Find percentiles: exact where these are all images, else to 2^-12 of themselves."""
        found = self.known(acts)
        return percentiles(self.values(acts), percents) if found is None else found.percentiles(percents)


def _products(rows: Tensor, weights: Tensor) -> Tensor:
    """Sum up the products of each row's values with each other (D, D), rows weighted."""
    return rows.T @ (rows * weights.unsqueeze(1))


def _value(bins: Tensor) -> Tensor:
    """Give the number nearest to zero, or for negative ones farthest from it, that is in each bin."""
    ordered = bins.to(torch.int32) << SHIFT
    return torch.where(ordered < 0, SIGN - ordered - 1, ordered).view(torch.float32)


def _features(acts: Activations) -> Tensor:
    return acts.features


def _predicted(acts: Activations) -> Tensor:
    return acts.logits.argmax(dim=1)


def _labels(acts: Activations) -> Tensor:
    assert acts.labels is not None
    return acts.labels


def _recognised(acts: Activations) -> Tensor:
    return torch.where(_predicted(acts) == _labels(acts), _labels(acts), -1)


def _directions(acts: Activations) -> Tensor:
    return unit(acts.features.double())


def _profile(acts: Activations) -> Tensor:
    parts = torch.split(acts.features.cpu(), AT_ONCE)
    return torch.cat([torch.from_numpy(np.sort(part.numpy(), axis=1)) for part in parts]).to(acts.features.device)


VALUES = AllValues("values", values=_features)
"""All features of all images as one heap."""
FEATURES = RowMoments("features", "classes", rows=_features, scatter=True)
"""Mean and covariance of the features."""
CLASSES = RowMoments("classes", rows=_features, groups=_labels, labelled=True, scatter=True)
"""Mean of each class, and the covariance around these."""
DIRECTIONS = RowMoments("directions", rows=_directions, groups=_labels, labelled=True, scatter=True)
"""The same of features of length 1."""
PREDICTED = RowMoments("predicted", rows=_features, groups=_predicted)
"""Mean of the images that are taken for each class."""
RECOGNISED = RowMoments("recognised", rows=_features, groups=_recognised, labelled=True)
"""Mean of the images of each class that are taken for it."""
PROFILE = RowMoments("profile", rows=_profile)
"""Mean of each image's features in ascending order."""
