"""Training with ISH and the other training methods of the paper."""

from __future__ import annotations

from idness.networks import architectures as networks
from idness.training.augmix import AugMix as AugMix
from idness.training.cider import Cider as Cider
from idness.training.confbranch import ConfBranch as ConfBranch
from idness.training.data import StreamedSet as StreamedSet
from idness.training.data import TrainingSet as TrainingSet
from idness.training.data import cifar6 as cifar6
from idness.training.data import image_folder as image_folder
from idness.training.data import open_training as open_training
from idness.training.ish import Ish as Ish
from idness.training.ish import IshLinear as IshLinear
from idness.training.ish import ish as ish
from idness.training.logitnorm import LogitNorm as LogitNorm
from idness.training.loop import Trained as Trained
from idness.training.loop import finetune as finetune
from idness.training.objective import METHODS as METHODS
from idness.training.objective import Objective as Objective
from idness.training.objective import Outcome as Outcome
from idness.training.objective import Plain as Plain
from idness.training.objective import Settings as Settings
from idness.training.objective import method as method
from idness.training.regmixup import RegMixup as RegMixup

__all__ = ["networks"]
