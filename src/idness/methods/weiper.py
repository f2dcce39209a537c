"""WeiPer+KLD -- Granz et al., "WeiPer: OOD Detection using Weight Perturbations of Class Projections", NeurIPS 2024."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from idness.core.options import count, positive
from idness.core.types import Activations, Head
from idness.detectors.detector import Detector
from idness.detectors.kernels import row_blocks, shared, unit

BINS = 100  # the authors use 80 for a vision transformer
EXACT = 5_000
"""Number of perturbed logits per image below which they are computed in float64."""


@dataclass(kw_only=True)
class WeiPer(Detector):
    """Divergence of the histograms of an image's features and perturbed logits from those of training images.

    Score: -D(features) - lambda_1 D(perturbed logits) + lambda_2 (mean largest probability of the perturbed heads).
    D is the symmetric divergence from the mean histogram of training images. Defaults are the authors' for CIFAR-10.

    Args:
        delta: length of a perturbation, relative to the length of the weights of the class.
        repeats: number of perturbed heads.
        most: maximum number of perturbed logits per image; with many classes there are fewer perturbed heads.
        s_1: number of bins over which an image's histogram of features is averaged.
        s_2: number of bins over which the histogram of perturbed logits is averaged.
        lambda_1: weight of the divergence of perturbed logits.
        lambda_2: weight of the mean largest probability.
    """

    formula = (
        r"-D(a) - \lambda_1 D(\tilde z) + \lambda_2 \operatorname{mean} \max_c \operatorname{softmax}(\tilde z)_c, \quad "
        r"\tilde z = \tilde W a + b"
    )
    assumes = "features and perturbed logits of ID images have a typical histogram"
    needs_train = uses_head = True
    grid = {"delta": (1.8, 2.4), "s_1": (4, 40), "s_2": (15, 40), "lambda_1": (0.1, 2.5), "lambda_2": (0.1, 1.0)}
    other = {"repeats": 10, "most": 50}

    delta: float = positive(1.8)
    repeats: int = count(100)
    most: int = count(10_000)
    s_1: int = count(4)
    s_2: int = count(15)
    lambda_1: float = positive(2.5)
    lambda_2: float = positive(0.1)

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        self.weights_ = _perturbed_weights(head, self.delta, self.repeats, self.most)
        self.spans_, self.usual_ = _usual(head, train.features, self.weights_)

    def rate(self, acts: Activations) -> Tensor:
        measures = _measures(self.head_, acts.features, self.weights_, self.spans_)
        # As in the authors' code, an image's histogram is smoothed and the mean is not; the floors are also theirs.
        far = _divergence(self.usual_, measures, 0, self.s_1, 0.01)
        perturbed = _divergence(self.usual_, measures, BINS, self.s_2, 0.025)
        return (measures[:, -1] * self.lambda_2 - far - perturbed * self.lambda_1).float()


@shared
def _perturbed_weights(head: Head, delta: float, repeats: int, most: int) -> Tensor:
    copies = min(repeats, max(1, most // head.classes))
    # Rounding differs between batches and must not move a value to another bin, which matters unless there are thousands.
    plain = head.weight.to(torch.double if copies * head.classes < EXACT else torch.float32)
    drawn = torch.Generator().manual_seed(0)
    noise = unit(torch.randn((copies * head.classes, head.width), generator=drawn, dtype=torch.float32)).to(plain)
    lengths = (delta * plain.norm(dim=1, keepdim=True)).repeat(copies, 1)
    return noise.mul_(lengths).add_(plain.repeat(copies, 1))


def _perturbed(head: Head, features: Tensor, weights: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield blocks of features and their perturbed logits (N, copies, C), in the precision of the weights."""
    offsets = head.offset.to(weights).repeat(len(weights) // head.classes)
    for part in row_blocks(features, len(weights)):
        values = part.to(weights)
        yield values, linear(values, weights, offsets).reshape(values.shape[0], -1, head.classes)


@shared
def _usual(head: Head, features: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the range of all features and that of all perturbed logits (2, 2), and the mean measures of images."""
    ends = torch.cat([torch.stack(logits.aminmax()) for _, logits in _perturbed(head, features, weights)])
    spans = torch.stack([torch.stack(values.to(weights).aminmax()) for values in (features, ends)])
    return spans, _measures(head, features, weights, spans).mean(dim=0)


@shared
def _measures(head: Head, features: Tensor, weights: Tensor, spans: Tensor) -> Tensor:
    """Return two histograms and the mean largest probability of each image (N, 2 BINS + 1)."""
    rows = []
    for values, logits in _perturbed(head, features, weights):
        sure = (logits.amax(dim=2) - logits.logsumexp(dim=2)).exp().mean(dim=1, keepdim=True)
        spread = map(histogram, (values, logits.flatten(1)), spans)
        rows.append(torch.cat([*spread, sure], dim=1))
    return torch.cat(rows)


def histogram(values: Tensor, span: Tensor, bins: int = BINS) -> Tensor:
    """Return the fraction of each row's values (N, M) in each of the equal bins (N, B) of a span.

    The upper end is included; values outside the span lower the sum of the fractions.
    """
    low, high = span.unbind()
    # Slightly wider than the span, so that the largest value falls into the last bin; never 0.
    width = ((high - low) * (1 + 1e-9) / bins).clamp(min=1e-30)
    place = ((values - low) / width).floor()
    slot = torch.where((place >= 0) & (place < bins), place, bins).long()  # an additional slot for values outside
    counts = values.new_zeros(values.shape[0], bins + 1).scatter_add(1, slot, torch.ones_like(values))
    return counts[:, :bins] / values.shape[1]


def smooth(rows: Tensor, window: int) -> Tensor:
    """Return the moving average of each row with repeated ends; an even window extends further to the right, as in torch."""
    bins = rows.shape[1]
    seen = torch.arange(bins).unsqueeze(1) + torch.arange(window) - (window - 1) // 2
    return rows @ torch.eye(bins)[seen.clamp(0, bins - 1)].mean(dim=1).T.to(rows)


@shared
def _divergence(usual: Tensor, measures: Tensor, first: int, window: int, floor: float) -> Tensor:
    """Return KL(p || q) + KL(q || p) of the mean histogram and each smoothed one, which start at column `first`, raised by a floor."""
    p, q = usual[first : first + BINS] + floor, smooth(measures[:, first : first + BINS], window) + floor
    p, q = p / p.sum(), q / q.sum(dim=1, keepdim=True)
    return ((q - p) * (q.log() - p.log())).sum(dim=1)
