"""The methods, one file each; adding one is its file, a line here and its test."""

from idness.methods.actsub import ActSub
from idness.methods.adascale import AdaScale
from idness.methods.ash import Ash
from idness.methods.cadref import CADRef
from idness.methods.chain import Chain
from idness.methods.confbranch import ConfBranch
from idness.methods.dice import DICE
from idness.methods.ebo import EBO
from idness.methods.fdbd import FDBD
from idness.methods.fuse import Fuse
from idness.methods.gen import GEN
from idness.methods.gradnorm import GradNorm
from idness.methods.klm import KLM
from idness.methods.knn import KNN
from idness.methods.lts import LTS
from idness.methods.mds import MDS
from idness.methods.mdspp import MDSPP
from idness.methods.mls import MLS
from idness.methods.msp import MSP
from idness.methods.nci import NCI
from idness.methods.neco import NECO
from idness.methods.nnguide import NNGuide
from idness.methods.odin import ODIN
from idness.methods.optfs import OptFS
from idness.methods.ras import RAS
from idness.methods.react import ReAct
from idness.methods.relation import Relation
from idness.methods.residual import Residual
from idness.methods.rmds import RMDS
from idness.methods.rmdspp import RMDSPP
from idness.methods.scale import Scale
from idness.methods.she import SHE
from idness.methods.ssd import SSD
from idness.methods.tempscale import TempScale
from idness.methods.vim import ViM
from idness.methods.vra import VRA
from idness.methods.weiper import WeiPer

__all__ = [
    "DICE",
    "EBO",
    "FDBD",
    "GEN",
    "KLM",
    "KNN",
    "LTS",
    "MDS",
    "MDSPP",
    "MLS",
    "MSP",
    "NCI",
    "NECO",
    "ODIN",
    "RAS",
    "RMDS",
    "RMDSPP",
    "SHE",
    "SSD",
    "VRA",
    "ActSub",
    "AdaScale",
    "Ash",
    "CADRef",
    "Chain",
    "ConfBranch",
    "Fuse",
    "GradNorm",
    "NNGuide",
    "OptFS",
    "ReAct",
    "Relation",
    "Residual",
    "Scale",
    "TempScale",
    "ViM",
    "WeiPer",
]
