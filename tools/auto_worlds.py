"""Run the networks that tools/auto_study.py proves a choice on over their pictures, and keep what comes out in .data/auto.

A network's activations are files NAME/SET.safetensors; what is there is not run again. Delete a network's folder after it
was trained anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

import auto_networks
import imagenet_networks
from auto_images import SIZE, Images, Places, Sets, cifar6, cifar10, imagenet
from auto_kinds import RIVALS
from idness.core.files import atomic_write, sha256_of
from idness.core.types import Activations, Head, InputEditor
from idness.data import embedded
from idness.networks import densenet
from idness.networks.load import load_model, load_weights
from idness.networks.split import SplitModel
from idness.selection.pseudo_ood import KINDS
from imagenet_networks import NORMALISATION

BATCH = 32
NEVER = -1e9
"""A logit that no class of a network has."""
CIFAR_FAR = ("mnist", "fashion-mnist", "quickdraw", "textures", "traffic-lights")
IMAGENET_FAR = ("textures", "game", "quickdraw", "fashion-mnist")


@dataclass(frozen=True)
class World:
    """Holds what one network makes of all its sets.

    Args:
        name: the network.
        head: its final layer.
        train: ID images to learn from, labelled.
        val: ID images to compare on.
        test: ID images that only the figures rest on.
        near: OOD sets of the same kind of picture.
        far: OOD sets of another kind.
        pseudo: stand-ins for OOD images by kind, made of images of `val`.
        rivals: stand-ins of kinds that idness does not make.
        plan: how it came about.
        edited: gives the same sets with what the network makes of the images as an editor changes them. There are no stand-ins
            then, as methods of two looks are measured and never chosen, and training images stay as they are: none learns from them.
    """

    name: str
    head: Head
    train: Activations
    val: Activations
    test: Activations
    near: Mapping[str, Activations]
    far: Mapping[str, Activations]
    pseudo: Mapping[str, Activations]
    rivals: Mapping[str, Activations]
    plan: Plan
    edited: Callable[[InputEditor], World] | None = None


@dataclass(frozen=True)
class Plan:
    """Says how a network is had and what it runs on.

    Args:
        about: what it is, in a few words.
        make: loads it.
        sets: its pictures.
        near: the names of the near OOD sets.
        far: the names of the far OOD sets.
        normalisation: mean and standard deviation of each colour, in [0, 1].
        size: side of its pictures.
        stand_ins: of how many validation images stand-ins are made.
        kept: how many of its classes are kept; images of the others are a near set.
        chosen_on: whether the parts of `fuse`, the kinds of stand-ins or a threshold of `auto` were chosen with its help.
        family: networks of one family are left out together.
        twice_every: methods that look at an image twice see one in so many, on a network that is slow.
    """

    about: str
    make: Callable[[Places], nn.Module]
    sets: Callable[[Places], Sets]
    near: tuple[str, ...] = ("cat", "frog", "ship")
    far: tuple[str, ...] = CIFAR_FAR
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] = field(default_factory=embedded.normalisation)
    size: int = 32
    stand_ins: int = 500
    kept: int | None = None
    chosen_on: bool = False
    family: str = ""
    twice_every: int = 1


def _trained(name: str, places: Places) -> nn.Module:
    return auto_networks.load(name, places.nets)


def _densenet(places: Places) -> nn.Module:
    return load_weights(densenet.cifar10(), places.shared / "densenet101_cifar10.pth.tar")


def _cut(about: str, make: Callable[[Path], nn.Module], *, every: int = 1, **more: object) -> Plan:
    """Plan an ImageNet network whose head is cut to 700 classes."""
    return Plan(
        about,
        lambda places: make(places.data),
        partial(imagenet, every=every),
        ("heldout", "groceries"),
        IMAGENET_FAR,
        NORMALISATION[make.__name__],
        SIZE,
        kept=700,
        **more,
    )


PLANS = {
    "base": Plan("embedded ResNet", lambda _: load_model("cifar6:base"), cifar6, chosen_on=True, family="embedded"),
    "ish": Plan("embedded, ISH", lambda _: load_model("cifar6:ish"), cifar6, chosen_on=True, family="embedded"),
    "narrow": Plan("ResNet of 64 features", partial(_trained, "narrow"), cifar6, chosen_on=True),
    "vgg": Plan("VGG without BatchNorm", partial(_trained, "vgg"), cifar6),
    "vit": Plan("vision transformer", partial(_trained, "vit"), cifar6, chosen_on=True),
    "wide": Plan("wide ResNet", partial(_trained, "wide"), cifar6, chosen_on=True),
    "densenet": Plan(
        "DenseNet-101, CIFAR-10",
        _densenet,
        cifar10,
        ("imagenet32", "groceries"),
        ("isun", *CIFAR_FAR),
        chosen_on=True,
    ),
    "mobilenet+700": _cut("MobileNetV2, ImageNet", imagenet_networks.mobilenet, chosen_on=True),
    "lite0+700": _cut("EfficientNet-Lite0, ImageNet", imagenet_networks.lite0, chosen_on=True, twice_every=4),
    "resnet50+700": _cut(
        "ResNet-50, ImageNet", imagenet_networks.resnet50, every=2, stand_ins=200, chosen_on=True, twice_every=4
    ),
}


def open_world(name: str, places: Places) -> World:
    """Read what a network made of its sets, and run it where that is not there yet."""
    plan = PLANS[name]
    folder = places.data / "auto" / name.partition("+")[0]
    images = plan.sets(places)

    @cache
    def split(cut: bool = False) -> SplitModel:
        model = plan.make(places).eval().to(memory_format=torch.channels_last)
        found = SplitModel(model, example=torch.zeros(2, 3, plan.size, plan.size))
        if cut and plan.kept is not None:
            # Gradients must not see the classes that are not kept: none of them is ever likely.
            out = torch.ones(len(found.linear.bias), dtype=torch.bool)
            out[_kept(len(out), plan.kept)] = False
            found.linear.weight.data[out], found.linear.bias.data[out] = 0.0, NEVER
        return found

    @cache
    def pictures(key: str) -> Images:
        return images[key]()

    def get(key: str, kind: str = "", editor: InputEditor | None = None) -> dict[str, Tensor]:
        place = folder if editor is None else folder / f"edited-{sha256_of(editor.edit_key())[:12]}"
        file = place / f"{f'pseudo-{kind}' if kind else key}.safetensors"
        if not file.is_file():
            found = pictures(key)
            every = 1 if editor is None else plan.twice_every
            labels = None if found.labels is None else found.labels[::every].copy()
            some = Images(found.pixels[: plan.stand_ins]) if kind else Images(found.pixels[::every], labels)
            print(f"{name}: {file.stem}{' twice' if editor else ''}, {len(some.pixels)} images", flush=True)
            edit = (KINDS | RIVALS)[kind] if kind else None
            atomic_write(file, save(_run(split(editor is not None), some, plan, edit, editor)))
        return load_file(file)

    def all_sets(editor: InputEditor | None = None) -> World:
        found = {key: get(key, editor=None if key == "id_train" else editor) for key in images}
        if editor is None:
            found |= {f"pseudo-{kind}": get("id_val", kind) for kind in KINDS | RIVALS}
        return _sorted(name, plan, load_file(folder / "head.safetensors"), found, all_sets)

    if not (folder / "head.safetensors").is_file():
        linear = split().linear
        head = {"weight": linear.weight.detach(), "bias": linear.bias.detach()}
        atomic_write(folder / "head.safetensors", save({key: value.contiguous() for key, value in head.items()}))
    return all_sets()


def _run(
    split: SplitModel,
    images: Images,
    plan: Plan,
    edit: Callable[[Tensor, int], Tensor] | None,
    editor: InputEditor | None,
) -> dict[str, Tensor]:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in plan.normalisation)
    parts = []
    for start in range(0, len(images.pixels), BATCH):
        pixels = torch.from_numpy(images.pixels[start : start + BATCH]).permute(0, 3, 1, 2).float() / 255
        pixels = pixels if edit is None else edit(pixels, start)
        inputs = ((pixels - mean) / std).contiguous(memory_format=torch.channels_last)
        parts.append(split.split(inputs, edit_with=editor))
    acts = Activations.concat(parts)
    found = {"features": acts.features, "logits": acts.logits}
    if acts.edited is not None:
        found |= {"edited features": acts.edited.features, "edited logits": acts.edited.logits}
    labels = {} if images.labels is None else {"labels": torch.from_numpy(images.labels)}
    return {key: value.contiguous() for key, value in found.items()} | labels


def _sorted(
    name: str,
    plan: Plan,
    head: dict[str, Tensor],
    found: dict[str, dict[str, Tensor]],
    edited: Callable[[InputEditor], World],
) -> World:
    """Put sets into their places, without the classes that are not kept."""
    if plan.kept is not None:
        head, found = _without_classes(plan.kept, head, found)
    acts = {key: _activations(item) for key, item in found.items()}
    return World(
        name,
        Head(head["weight"], head["bias"]),
        acts["id_train"],
        acts["id_val"],
        acts["id_test"],
        {key: acts[key] for key in plan.near},
        {key: acts[key] for key in plan.far},
        {kind: acts[f"pseudo-{kind}"] for kind in KINDS if f"pseudo-{kind}" in acts},
        {kind: acts[f"pseudo-{kind}"] for kind in RIVALS if f"pseudo-{kind}" in acts},
        plan,
        edited,
    )


def _activations(item: Mapping[str, Tensor]) -> Activations:
    edited = Activations(item["edited features"], item["edited logits"]) if "edited logits" in item else None
    return Activations(item["features"], item["logits"], item.get("labels"), edited)


def _kept(classes: int, count: int) -> Tensor:
    """Draw the classes that are kept; by another seed than the one that splits `id_val`, which has one photograph of each."""
    return torch.from_numpy(np.sort(np.random.RandomState(1).permutation(classes)[:count]))


def _without_classes(
    count: int, head: dict[str, Tensor], found: dict[str, dict[str, Tensor]]
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Cut a head to some classes, drawn at random; test images of the others become the set `heldout`."""
    classes = len(head["bias"])
    kept = _kept(classes, count)
    place = torch.full((classes,), -1)
    place[kept] = torch.arange(count)
    held = place[found["id_test"]["labels"]] < 0
    sources = found["id_val"]["labels"]
    cut = {"heldout": {key: value[held] for key, value in found["id_test"].items() if key != "labels"}}
    for name, item in found.items():
        labels = item.get("labels", sources[: len(item["logits"])] if name.startswith("pseudo-") else None)
        known = torch.ones(len(item["logits"]), dtype=torch.bool) if labels is None else place[labels] >= 0
        cut[name] = {key: value[known] for key, value in item.items()}
        if "labels" in item:
            cut[name]["labels"] = place[item["labels"][known]]
    for item in cut.values():
        for key in ("logits", "edited logits"):
            if key in item:
                item[key] = item[key][:, kept].contiguous()
    return {key: value[kept] for key, value in head.items()}, cut
