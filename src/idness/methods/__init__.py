"""The methods, one module each, imported on first use; a new method needs a module, an import here and a test."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idness.methods.actsub import ActSub as ActSub
    from idness.methods.adascale import AdaScale as AdaScale
    from idness.methods.ash import Ash as Ash
    from idness.methods.cadref import CADRef as CADRef
    from idness.methods.chain import Chain as Chain
    from idness.methods.confbranch import ConfBranch as ConfBranch
    from idness.methods.dice import DICE as DICE
    from idness.methods.ebo import EBO as EBO
    from idness.methods.fdbd import FDBD as FDBD
    from idness.methods.fuse import Fuse as Fuse
    from idness.methods.gen import GEN as GEN
    from idness.methods.gradnorm import GradNorm as GradNorm
    from idness.methods.klm import KLM as KLM
    from idness.methods.knn import KNN as KNN
    from idness.methods.lts import LTS as LTS
    from idness.methods.mds import MDS as MDS
    from idness.methods.mdspp import MDSPP as MDSPP
    from idness.methods.mls import MLS as MLS
    from idness.methods.msp import MSP as MSP
    from idness.methods.nci import NCI as NCI
    from idness.methods.neco import NECO as NECO
    from idness.methods.nnguide import NNGuide as NNGuide
    from idness.methods.odin import ODIN as ODIN
    from idness.methods.optfs import OptFS as OptFS
    from idness.methods.ras import RAS as RAS
    from idness.methods.react import ReAct as ReAct
    from idness.methods.relation import Relation as Relation
    from idness.methods.residual import Residual as Residual
    from idness.methods.rmds import RMDS as RMDS
    from idness.methods.rmdspp import RMDSPP as RMDSPP
    from idness.methods.scale import Scale as Scale
    from idness.methods.she import SHE as SHE
    from idness.methods.ssd import SSD as SSD
    from idness.methods.tempscale import TempScale as TempScale
    from idness.methods.vim import ViM as ViM
    from idness.methods.vra import VRA as VRA
    from idness.methods.weiper import WeiPer as WeiPer

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""Names of the methods, which are the names of their modules and, in lower case, of their classes."""


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return [method_class(method).__name__ for method in NAMES]
    if name in NAMES:
        return importlib.import_module(f"{__name__}.{name}")
    if name.lower() in NAMES and method_class(name.lower()).__name__ == name:
        return method_class(name.lower())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def method_class(name: str) -> Any:
    """Return the class of a method by name."""
    module = importlib.import_module(f"{__name__}.{name}")
    return next(value for key, value in vars(module).items() if key.lower() == name and isinstance(value, type))
