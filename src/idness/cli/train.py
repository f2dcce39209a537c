"""`idness train`."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from idness.training import TrainingSet

CIFAR10 = Path(".data/cifar10.npz")


def train(
    data: Annotated[str, typer.Option(help="Folder with one subfolder of images per class, or cifar6.")],
    out: Annotated[Path, typer.Option(help="Folder of the run: checkpoints, log.csv, weights.safetensors.")],
    val: Annotated[str, typer.Option(help="Folder like --data, to count right answers on after each epoch.")] = "",
    arch: Annotated[
        str, typer.Option(help="small_resnet, tiny_resnet, torchvision:NAME, timm:NAME or path/to/file.py:FUNCTION.")
    ] = "small_resnet",
    method: Annotated[str, typer.Option(help="plain, ish, logitnorm, regmixup, augmix, cider or confbranch.")] = "ish",
    init: Annotated[
        str,
        typer.Option(
            help="Weights or a run's folder to start from, or pretrained (torchvision, timm); else from scratch."
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
    size: Annotated[int | None, typer.Option(help="Bring the images of a folder to this many pixels a side.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--set", help="Any other option as name=value, e.g. percentile=90 or ema=0.999.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of this process; all cores if not given.")] = None,
    archive: Annotated[Path, typer.Option(help="CIFAR-10 as .npz, for --data cifar6.")] = CIFAR10,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Fine-tune a classifier, or train one from scratch, with one of the paper's training methods."""
    import torch

    from idness.cli.terminal import stdout
    from idness.core.files import check_writable
    from idness.networks import trust
    from idness.training import finetune, networks

    check_writable(out)
    given = {"epochs": epochs, "lr": lr, "weight_decay": weight_decay, "batch_size": batch_size, "warmup": warmup}
    options = {name: value for name, value in given.items() if value is not None} | _parse(option or [])
    if threads is not None:
        torch.set_num_threads(threads)
    images = _images(data, archive, size)
    checked = _checked(val, data, archive, size, images)
    model = networks.load(arch, len(images.classes), init, seed, example=images.example())
    trust.remember(arch)  # so that the run's folder may be opened again
    done = finetune(model, images, method, val=checked, out=out, arch=arch, progress=not quiet, seed=seed, **options)
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


def _images(data: str, archive: Path, size: int | None) -> TrainingSet:
    from idness.data import embedded
    from idness.training import cifar6, image_folder

    return cifar6(archive) if data == embedded.NAME else image_folder(data, size)


def _checked(val: str, data: str, archive: Path, size: int | None, images: TrainingSet) -> TrainingSet | None:
    from idness.core.errors import DataError
    from idness.data import embedded
    from idness.training import cifar6, image_folder

    if data == embedded.NAME and not val:
        return cifar6(archive, "val")
    found = image_folder(val, size) if val else None
    if found is not None and found.classes != images.classes:
        raise DataError(
            f"{val}: must have the classes of {data} ({', '.join(images.classes[:5])}), got {', '.join(found.classes[:5])}"
        )
    return found
