"""Relative Mahalanobis++ -- Mueller and Hein, "Mahalanobis++: Improving OOD Detection via Feature Normalization", ICML 2025."""

from dataclasses import dataclass

from idness.methods.mdspp import MDSPP
from idness.methods.rmds import RMDS


@dataclass(kw_only=True)
class RMDSPP(MDSPP, RMDS):
    """Squared Mahalanobis distance to the mean of all data minus that to the nearest class, on features of length 1.

    Args:
        shrinkage: fraction in [0, 1) by which covariances move towards a multiple of the identity, 0 in the paper; `auto`
            chooses it by the number of images and features (OAS).
    """

    formula = (
        r"d_0(\bar a) - \min_c d_c(\bar a), \quad "
        r"d_c(\bar a) = (\bar a - \mu_c)^\top \Sigma^{-1} (\bar a - \mu_c), \quad "
        r"d_0(\bar a) = (\bar a - \mu)^\top \Sigma_0^{-1} (\bar a - \mu)"
    )
    assumes = "directions of classes are Gaussian with one covariance, and so are those of the whole data set"
