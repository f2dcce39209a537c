"""KLM -- Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings" (KL matching), ICML 2022."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from idness.core.types import Activations, Head
from idness.detectors.detector import Detector


@dataclass(kw_only=True)
class KLM(Detector):
    """Negative smallest divergence of an image's probabilities from the mean probabilities of a predicted class.

    The template d_k is the mean over validation images (without them, training images) that are predicted as class k;
    labels are not used. The score is -min_k KL(p || d_k).
    """

    formula = r"-\min_k \operatorname{KL}(p \,\Vert\, d_k)"
    assumes = "each class has typical probabilities"
    needs_train = needs_val = True
    remembers = True  # with one image per class the templates are the images themselves

    def learn(self, head: Head, train: Activations, val: Activations) -> None:
        logs = val.logits.double().log_softmax(dim=1)
        predicted = val.logits.argmax(dim=1)
        # Computed from logarithms, since probabilities of other classes may be 0 in floating point, which would make the
        # divergence infinite. Classes that are never predicted have no template.
        groups = [logs[predicted == label] for label in sorted(set(predicted.tolist()))]
        self.templates_ = torch.stack([group.logsumexp(dim=0) - math.log(len(group)) for group in groups])

    def rate(self, acts: Activations) -> Tensor:
        logs = acts.logits.double().log_softmax(dim=1)
        probabilities = logs.exp()
        # KL(p || d) = sum p log p - sum p log d: one matrix product for all classes.
        nearest = (probabilities @ self.templates_.T).amax(dim=1)
        return (nearest - (probabilities * logs).sum(dim=1)).float()
