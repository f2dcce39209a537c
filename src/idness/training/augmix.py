"""AugMix -- Hendrycks et al., "AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty", ICLR 2020."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from idness.core.errors import OptionError
from idness.training.objective import Objective, Outcome, method

POINTWISE = ("autocontrast", "equalize", "posterize", "solarize")
GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def jsd_loss(clean: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Compute the Jensen-Shannon divergence of three predictions, from their logits."""
    shares = [logits.float().softmax(1) for logits in (clean, first, second)]
    # Clamped as in the authors' code: the mixture's log must be finite.
    mixture = (sum(shares, torch.zeros_like(shares[0])) / 3).clamp(1e-7, 1.0).log()
    return sum((F.kl_div(mixture, p, reduction="batchmean") for p in shares), mixture.new_zeros(())) / 3


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each colour of each image to 0 to 255."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    flat = high <= low
    return torch.where(flat, images, ((images - low) * 255 / torch.where(flat, 1, high - low)).floor())


def equalize(images: Tensor) -> Tensor:
    """Flatten the histogram of each colour of each image."""
    count, colours, height, width = images.shape
    values = images.long().reshape(count * colours, height * width)
    histogram = torch.zeros(len(values), 256, dtype=torch.long).scatter_add_(1, values, torch.ones_like(values))
    last = histogram.gather(1, values.amax(1, keepdim=True))
    step = (height * width - last) // 255
    before = histogram.cumsum(1) - histogram
    table = ((before + step // 2) // step.clamp_min(1)).clamp(0, 255)
    table = torch.where(step == 0, torch.arange(256), table)
    return table.gather(1, values).reshape(images.shape).to(images.dtype)


def posterize(images: Tensor, level: Tensor) -> Tensor:
    """Keep the 4 - 4 * level / 10 highest bits."""
    drop = 2 ** (8 - (4 - (level * 4 / 10).floor())).view(-1, 1, 1, 1)
    return (images / drop).floor() * drop


def solarize(images: Tensor, level: Tensor) -> Tensor:
    """Invert values from 256 - 256 * level / 10 on."""
    threshold = 256 - (level * 256 / 10).floor().view(-1, 1, 1, 1)
    return torch.where(images >= threshold, 255 - images, images)


def geometric(images: Tensor, kind: str, level: Tensor) -> Tensor:
    """Rotate, shear or move each image by its level, to a random side; what comes in is black."""
    side = torch.where(torch.rand(len(images)) < 0.5, -1.0, 1.0)
    # Corner-centred coordinates run from -1 to 1, so 1 is half of the width.
    angle = side * (level * 30 / 10).floor() * math.pi / 180
    shear, shift = side * level * 0.3 / 10, side * (level / 3 / 10) * 2
    one, zero = torch.ones_like(level), torch.zeros_like(level)
    rows = {
        "rotate": (angle.cos(), -angle.sin(), zero, angle.sin(), angle.cos(), zero),
        "shear_x": (one, shear, zero, zero, one, zero),
        "shear_y": (one, zero, zero, shear, one, zero),
        "translate_x": (one, zero, shift, zero, one, zero),
        "translate_y": (one, zero, zero, zero, one, shift),
    }[kind]
    matrix = torch.stack(rows, 1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", align_corners=False)


def random_operation(images: Tensor, severity: float) -> Tensor:
    """Change each image by one operation of random strength."""
    chosen = torch.randint(0, len(POINTWISE) + len(GEOMETRIC), (len(images),))
    level = torch.empty(len(images)).uniform_(0.1, severity)
    out = images.clone()
    for number, name in enumerate(POINTWISE + GEOMETRIC):
        mine = chosen == number
        part, strength = images[mine], level[mine]
        if len(part) == 0:
            continue
        if name in GEOMETRIC:
            out[mine] = geometric(part, name, strength)
        elif name in {"autocontrast", "equalize"}:
            out[mine] = autocontrast(part) if name == "autocontrast" else equalize(part)
        else:
            out[mine] = posterize(part, strength) if name == "posterize" else solarize(part, strength)
    return out


def augmix(images: Tensor, severity: float = 3.0, width: int = 3, alpha: float = 1.0) -> Tensor:
    """Mix each image with `width` chains of one to three random operations; values stay in 0 to 255."""
    start = images.float()
    count = len(start)
    weights = torch.distributions.Dirichlet(torch.full((width,), alpha)).sample((count,))
    kept = torch.distributions.Beta(alpha, alpha).sample((count,)).view(-1, 1, 1, 1)
    mixed = torch.zeros_like(start)
    for chain in range(width):
        depth = torch.randint(1, 4, (count,))
        current = start
        for n in range(3):
            current = torch.where((depth > n).view(-1, 1, 1, 1), random_operation(current, severity), current)
        mixed += weights[:, chain].view(-1, 1, 1, 1) * current
    return (1 - kept) * start + kept * mixed


@method("augmix")
class AugMix(Objective):
    """Train to give an image and two mixtures of its changed versions the same answer."""

    recipe = {"epochs": 100, "lr": 0.1, "weight_decay": 5e-4}

    def __init__(
        self,
        model: nn.Module,
        classes: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        severity: float = 3.0,
        width: int = 3,
        alpha: float = 1.0,
        weight: float = 12.0,
    ) -> None:
        super().__init__(model, classes, mean, std)
        if not 0.1 < severity <= 10 or width < 1 or not alpha > 0:
            raise OptionError(
                f"augmix: severity must be in (0.1, 10], width 1 or more, alpha above 0, got {severity}, {width}, {alpha}"
            )
        self.severity, self.width, self.alpha, self.weight = severity, width, alpha, weight

    def forward(self, images: Tensor, labels: Tensor) -> Outcome:
        """Compute the loss of one batch in three views, in one pass."""
        views = [
            images.float(),
            *(augmix(images.cpu(), self.severity, self.width, self.alpha).to(images.device) for _ in range(2)),
        ]
        clean, first, second = self.model(self.normalise(torch.cat(views))).chunk(3)
        return Outcome(F.cross_entropy(clean, labels) + self.weight * jsd_loss(clean, first, second), clean)
