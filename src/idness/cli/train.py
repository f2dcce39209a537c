"""`idness train`."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated, Any

import typer

from idness.cli.options import Force

CIFAR10 = Path(".data/cifar10.npz")


def train(
    data: Annotated[
        str,
        typer.Option(
            help="Folder with one subfolder of images per class, image list (.txt), Parquet, WebDataset shards (.tar), or cifar6."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run: checkpoints, log.csv, weights.safetensors.")],
    val: Annotated[str, typer.Option(help="Images like --data, to count right answers on after each epoch.")] = "",
    root: Annotated[
        Path | None, typer.Option(help="Folder below which an image list's files lie; the list's own.")
    ] = None,
    arch: Annotated[
        str, typer.Option(help="small_resnet, tiny_resnet, torchvision:NAME, timm:NAME or path/to/file.py:FUNCTION.")
    ] = "small_resnet",
    method: Annotated[str, typer.Option(help="plain, ish, logitnorm, regmixup, augmix, cider or confbranch.")] = "ish",
    init: Annotated[
        str,
        typer.Option(
            help="Weights or a run's folder to start from, pretrained, or exactly torchvision:resnet50:IMAGENET1K_V1; else from scratch."
        ),
    ] = "",
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the images; the method's recipe if not given.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate; the recipe's if not given.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay; the recipe's if not given.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step and process.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Epochs of rising learning rate.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the order of images and all else that is random.")] = 0,
    size: Annotated[int | None, typer.Option(help="Pixels a side that the network sees; its own if not given.")] = None,
    crops: Annotated[
        str, typer.Option(help="shift (by up to 4 pixels), resized (random parts), or auto: by the network's size.")
    ] = "auto",
    workers: Annotated[
        int | None, typer.Option(help="Processes that read images; without it small images are held in memory.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="32-true, bf16-mixed, 16-mixed or auto.")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Batches whose gradients make one step.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="Any other option as name=value, e.g. percentile=90 or ema=0.999.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of this process; all cores if not given.")] = None,
    archive: Annotated[Path, typer.Option(help="CIFAR-10 as .npz, for --data cifar6.")] = CIFAR10,
    force: Force = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Fine-tune a classifier, or train one from scratch, with one of the paper's training methods."""
    import torch

    from idness.cli.terminal import stdout
    from idness.core.scripts import approve
    from idness.training import finetune, open_training
    from idness.training.checkpoint import run_folder

    folder = run_folder(out, force=force)
    folder.check()
    given: dict[str, Any] = {
        "epochs": epochs,
        "lr": lr,
        "weight_decay": weight_decay,
        "batch_size": batch_size,
        "warmup": warmup,
    }
    given |= {"precision": precision, "accumulate": accumulate, "crops": crops, "seed": seed}
    options = {name: value for name, value in given.items() if value is not None} | _parse(option or [])
    if threads is not None:
        torch.set_num_threads(threads)
    opened = open_training(
        data, arch, val=val, root=root, init=init, size=size, crops=crops, workers=workers, seed=seed, archive=archive
    )
    approve(arch)  # so that the run's folder may be opened again
    done = finetune(
        opened.model, opened.train, method, val=opened.val, out=folder, arch=arch, progress=not quiet, **options
    )
    last = done.log[-1]
    right = "" if last.val_accuracy is None else f", {last.val_accuracy:.2%} right on validation"
    console = stdout()
    console.print(f"{method}: {last.epoch} epochs, loss {last.loss:.4f}{right}")
    console.print(f"wrote {out / 'weights.safetensors'} and {out / 'log.csv'}", soft_wrap=True)


def _parse(pairs: list[str]) -> dict[str, Any]:
    from idness.core.errors import OptionError

    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise OptionError(f"--set takes name=value, got {pair!r}")
        try:
            options[name.strip()] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            options[name.strip()] = text
    return options
