import math

import pytest
import torch
from torch import nn

from idness.methods import ODIN
from idness.networks.split import SplitModel


def network() -> nn.Sequential:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.SiLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(24, 4)).double().eval()


def confidence(model: nn.Module, image: torch.Tensor, temperature: float) -> float:
    """The largest softmax probability of one image, written out."""
    with torch.no_grad():
        logits = [z / temperature for z in model(image[None])[0].tolist()]
    return math.exp(max(logits)) / sum(math.exp(z) for z in logits)


@pytest.mark.parametrize("temperature", [1.0, 1000.0])
def test_it_moves_and_scores_as_the_paper_writes(temperature):
    """The gradient by differences, one pixel at a time: the sign of the loss's is minus that of the log-probability's."""
    model, images = network(), torch.rand(2, 3, 5, 5, dtype=torch.double)
    split, eps, step = SplitModel(model), 0.01, 1e-3
    odin = ODIN(temperature=temperature, eps=eps).fit(split.head)
    scores = odin.score(split.split(images, edit_with=odin)).tolist()
    for image, score in zip(images, scores, strict=True):
        moved = image.clone()
        for place in range(image.numel()):
            nudge = torch.zeros_like(image).flatten()
            nudge[place] = step
            nudge = nudge.reshape(image.shape)
            up, down = (-math.log(confidence(model, other, temperature)) for other in (image + nudge, image - nudge))
            moved.view(-1)[place] -= eps * math.copysign(1, up - down)  # x - eps sign(gradient of -log S)
        assert score == pytest.approx(confidence(model, moved, temperature), rel=1e-6)
