"""`idness train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from idness.cli import options as o
from idness.cli.terminal import open_console


def train(
    data: Annotated[str, typer.Option(help="Class folders, image list, .npz, Parquet, WebDataset, or cifar6.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Output folder: checkpoints, log.csv, weights.safetensors.")],
    val: Annotated[str, typer.Option(help="Validation images, to measure accuracy after each epoch.")] = "",
    root: Annotated[Path | None, typer.Option(help="Base folder for the paths of an image list.")] = None,
    model: Annotated[
        str, typer.Option(help="small_resnet, tiny_resnet, torchvision:NAME, timm:NAME or file.py:FUNCTION.")
    ] = "small_resnet",
    method: Annotated[str, typer.Option(help="plain, ish, logitnorm, regmixup, augmix, cider or confbranch.")] = "ish",
    init: Annotated[
        str,
        typer.Option(help="Weights or run folder to start from, pretrained, or torchvision:resnet50:IMAGENET1K_V1."),
    ] = "",
    epochs: Annotated[int | None, typer.Option(help="Number of epochs; default: the method's recipe.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; default: the method's recipe.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay; default: the method's recipe.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step and process.")] = None,
    warmup: Annotated[float | None, typer.Option(help="Warm-up epochs of the learning rate.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    size: Annotated[int | None, typer.Option(help="Side of the input in pixels; default: the network's own.")] = None,
    crops: Annotated[str, typer.Option(help="shift (by up to 4 pixels), resized, or auto (by input size).")] = "auto",
    workers: Annotated[
        int | None, typer.Option(help="Processes that read images; default: none if they are small.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="32-true, bf16-mixed, 16-mixed or auto.")] = None,
    accumulate: Annotated[int | None, typer.Option(help="Batches whose gradients are summed for one step.")] = None,
    option: Annotated[list[str] | None, typer.Option("--set", help="Any other option, such as percentile=90.")] = None,
    threads: o.Threads = None,
    archive: Annotated[Path, typer.Option(help="CIFAR-10 as .npz, for --data cifar6.")] = Path(".data/cifar10.npz"),
    device: o.Device = "auto",
    force: o.Force = False,
    quiet: o.Quiet = False,
) -> None:
    """Fine-tune a classifier, or train one from scratch, with one of the paper's training methods."""
    import torch

    from idness.core.options import read_option
    from idness.core.progress import show_progress
    from idness.core.scripts import approve
    from idness.training import finetune, open_training
    from idness.training.loop import run_folder

    folder = run_folder(out, force=force)
    folder.check()
    given: dict[str, Any] = {"epochs": epochs, "lr": lr, "weight_decay": weight_decay, "batch_size": batch_size}
    given |= {"warmup": warmup, "precision": precision, "accumulate": accumulate, "crops": crops, "seed": seed}
    options = {name: value for name, value in given.items() if value is not None} | {"device": device}
    options |= dict(read_option(pair, f"--set {pair}") for pair in option or ())
    if threads is not None:
        torch.set_num_threads(threads)
    source = {"val": val, "root": root, "init": init, "size": size, "crops": crops, "workers": workers, "seed": seed}
    with show_progress(quiet=quiet) as progress:
        network, images, validation = open_training(data, model, **source, archive=archive, progress=progress)  # type: ignore[arg-type]
        approve(model)  # so that the run's folder can be opened again
        done = finetune(network, images, method, val=validation, out=folder, arch=model, progress=progress, **options)
    last = done.log[-1]
    accuracy = "" if last.val_accuracy is None else f", {last.val_accuracy:.2%} validation accuracy"
    console = open_console()
    console.print(f"{method}: {last.epoch} epochs, loss {last.loss:.4f}{accuracy}")
    console.print(f"wrote {out / 'weights.safetensors'} and {out / 'log.csv'}", soft_wrap=True)
