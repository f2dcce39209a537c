"""Training: ISH, the other training rows of the paper, and the networks of the embedded benchmark."""

from __future__ import annotations

from idness.networks import architectures as networks
from idness.training.augmix import AugMix
from idness.training.cider import Cider
from idness.training.confbranch import ConfBranch
from idness.training.finetune import Trained, finetune
from idness.training.images import TrainingSet, cifar6, image_folder
from idness.training.ish import Ish, IshLinear, ish
from idness.training.logitnorm import LogitNorm
from idness.training.objective import METHODS, Objective, Outcome, Plain, method
from idness.training.opening import open_training
from idness.training.regmixup import RegMixup
from idness.training.settings import Settings
from idness.training.streaming import StreamedSet

__all__ = [
    "METHODS",
    "AugMix",
    "Cider",
    "ConfBranch",
    "Ish",
    "IshLinear",
    "LogitNorm",
    "Objective",
    "Outcome",
    "Plain",
    "RegMixup",
    "Settings",
    "StreamedSet",
    "Trained",
    "TrainingSet",
    "cifar6",
    "finetune",
    "image_folder",
    "ish",
    "method",
    "networks",
    "open_training",
]
