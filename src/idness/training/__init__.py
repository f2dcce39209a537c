"""Training with ISH and the other training methods of the paper."""

from __future__ import annotations

from idness.networks import architectures as networks
from idness.training.augmix import AugMix
from idness.training.cider import Cider
from idness.training.confbranch import ConfBranch
from idness.training.data import StreamedSet, TrainingSet, open_training
from idness.training.ish import Ish, IshLinear, ish
from idness.training.logitnorm import LogitNorm
from idness.training.loop import Trained, finetune
from idness.training.objective import METHODS, Objective, Outcome, Plain, Settings, method
from idness.training.regmixup import RegMixup

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
    "finetune",
    "ish",
    "method",
    "networks",
    "open_training",
]
