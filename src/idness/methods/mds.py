"""MDS -- Lee et al., "A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks", NeurIPS 2018."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idness.core.errors import IdnessWarning, InputError
from idness.core.options import check_share
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.gaussian import Moments, class_moments, nearest_squared, oas_shrinkage, whitening
from idness.detectors.kernels import shared


@dataclass(kw_only=True)
class MDS(Detector):
    """Negative squared Mahalanobis distance to the nearest class mean.

    All classes share one covariance. Penultimate features are used, without input perturbation, as in OpenOOD.

    Args:
        shrinkage: fraction in [0, 1) by which the covariance moves towards a multiple of the identity, for few training
            images; `auto` chooses it by the number of images and features (OAS). 0 in the paper.
    """

    formula = r"-\min_c\, (a - \mu_c)^\top \Sigma^{-1} (a - \mu_c)"
    assumes = "classes are Gaussian with one covariance"
    needs_train = needs_labels = True
    other = {"shrinkage": 0.1}

    shrinkage: Any = 0.0

    def __post_init__(self) -> None:
        if self.shrinkage != "auto":
            check_share(self, "shrinkage")

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        classes = class_moments(train, self.place)
        freedom = classes.count - int(classes.counts.count_nonzero())  # each class mean uses one
        if not freedom:
            raise InputError(
                f"needs classes with at least two training images, got {classes.count} images of as many classes; add images, or"
                " use knn or vim"
            )
        # Rounding errors of constant features are not variance.
        spread, noise = classes.around(classes.mean).diagonal(), torch.finfo(torch.double).eps ** 2 * 1e3
        varying = int((spread > classes.mean.square() * noise).sum())
        if freedom < varying and not self.shrinkage:
            warnings.warn(
                f"{type(self).__name__}: {classes.count} training images give a covariance of rank {freedom} for {varying}"
                " features; use ten times as many images as features, or set shrinkage=auto",
                IdnessWarning,
                stacklevel=5,
            )
        self.centre_ = classes.mean
        self.whitening_ = self.whiten(classes.within, freedom)
        self.means_ = _whitened_means(classes, self.whitening_)

    @staticmethod
    def place(features: Tensor) -> Tensor:
        """Return the points (N, D) between which distances are measured, in float64; subclasses normalize them."""
        return features.double()

    def whiten(self, covariance: Tensor, freedom: int) -> Tensor:
        """Return the whitening matrix of a covariance with this many degrees of freedom, after shrinkage."""
        return whitening(covariance, oas_shrinkage(covariance, freedom) if self.shrinkage == "auto" else self.shrinkage)

    def rate(self, acts: Activations) -> Tensor:
        return -self.nearest(acts.features).float()

    def nearest(self, features: Tensor) -> Tensor:
        """Return the squared distance (N,) of each image to the nearest class."""
        return _class_distance(features, self.place, self.centre_, self.whitening_, self.means_)


@shared
def _whitened_means(classes: Moments, whitening: Tensor) -> Tensor:
    return (classes.means[classes.counts > 0] - classes.mean) @ whitening


@shared
def _class_distance(
    features: Tensor, place: Callable[[Tensor], Tensor], centre: Tensor, whitening: Tensor, means: Tensor
) -> Tensor:
    return nearest_squared((place(features) - centre) @ whitening, means)
