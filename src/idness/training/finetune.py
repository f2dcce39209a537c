"""One function that fine-tunes a classifier, or trains one from scratch, with any of the training methods."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from idness.core.errors import OptionError
from idness.core.progress import shown
from idness.data import Preprocessing, preprocessing_for
from idness.networks.architectures import SmallResNet
from idness.networks.split import final_linear
from idness.training.checkpoint import load_checkpoint, run_folder
from idness.training.images import Images
from idness.training.log import Epoch, RunLog
from idness.training.loop import Trainer
from idness.training.objective import Objective, find_method
from idness.training.settings import CIFAR_MEAN, CIFAR_STD, SETTING_NAMES, Settings


@dataclass(frozen=True)
class Trained:
    """Holds what a run leaves: the network, its log, what it was told, and the method with what it learned."""

    model: nn.Module
    log: list[Epoch]
    settings: Settings
    objective: Objective


def finetune(
    model: nn.Module,
    data: Images,
    method: str = "ish",
    *,
    val: Images | None = None,
    out: str | os.PathLike[str] | None = None,
    arch: str = "",
    progress: bool = False,
    **options: Any,
) -> Trained:
    """Train a classifier in place with one of the training methods, by its paper's recipe unless told otherwise.

    With `out`, checkpoints, log.csv and weights.safetensors go there, and a run that was stopped goes on from its last
    checkpoint to the same result. Images are normalised as the network says, by its attribute `preprocessing` or as torchvision
    and timm know it, unless `mean` and `std` are given; a network that says nothing gets values in [0, 1].

    Args:
        model: any classifier that ends in a linear layer.
        data: images to learn from.
        method: name of the training method.
        val: images to count right answers on after each epoch.
        out: folder of the run: new, empty, or one of an earlier run.
        arch: how the network is named, kept with its weights, so that every command takes the folder in its place.
        progress: show a progress bar on standard error.
        options: fields of `Settings`, and the method's own options.
    """
    kind = find_method(method)
    chosen = dict(kind.recipe) | {k: v for k, v in options.items() if k in SETTING_NAMES}
    folder = None if out is None else run_folder(out)
    settings = Settings(**{**normalisation(model, arch, None if folder is None else folder.path), **chosen})
    own = {k: v for k, v in options.items() if k not in SETTING_NAMES}
    known = [field.name for field in fields(kind) if field.init and field not in fields(Objective)]
    for name in own:
        if name not in known:
            takes = f"it takes {', '.join(known)} and" if known else "it takes"
            raise OptionError(f"{method}: unknown option {name!r}; {takes} what training.Settings does")
    # Searched on images of the right size: many a network takes no other.
    found = {"layer": final_linear(model, example=data.example())[1]} if "layer" in known and "layer" not in own else {}
    objective = kind(model, len(data.classes), settings.mean, settings.std, **found, **own)
    facts = {"method": method, "options": own, "classes": list(data.classes)}
    with shown(quiet=not progress) as listener:
        trainer = Trainer(objective, data, settings, val, folder, facts, RunLog(listener), arch=arch)
        try:
            trained = trainer.run()
        except BaseException:
            objective.finish()  # a network that fails must not keep a layer of its training method
            raise
    return Trained(trained, trainer.log.state.rows, settings, objective)


def normalisation(model: nn.Module, arch: str = "", folder: Path | None = None) -> dict[str, tuple[float, ...]]:
    """Give the mean and std that a run's images are normalised by: those of the run that goes on, else the network's own."""
    found = load_checkpoint(folder) if folder is not None else None
    if found is not None:
        told = found[0].run.get("settings", {})
        return {name: tuple(told[name]) for name in ("mean", "std") if name in told}
    own = preprocessing_for(model, arch, "none")
    if own is None:
        own = Preprocessing(mean=CIFAR_MEAN, std=CIFAR_STD) if isinstance(model, SmallResNet) else Preprocessing()
    return {"mean": own.mean, "std": own.std}
