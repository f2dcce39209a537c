"""Networks and images of tools/auto_study.py: each network runs once over its images; activations are kept in .data/auto.

All images are real: the embedded benchmark, CIFAR-10 and other registry packages (tools/fetch.py), and those of `../shared/data`.
A network's activations are files NAME/SET.safetensors that are not computed again. Delete a network's folder after it was trained again.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional

import auto_networks
import imagenet_networks
from cifar6_sources import is_surface
from fetch import fetch, members, write_cifar10
from idness.core.files import atomic_write, sha256_of
from idness.core.types import Activations, Head, InputEditor
from idness.data import embedded
from idness.networks import densenet
from idness.networks.load import load_model, load_weights
from idness.networks.split import SplitModel, final_linear
from idness.selection.pseudo_ood import KINDS
from imagenet_networks import NORMALISATION

SIZE, SHORT = 224, 256
"""Side of an ImageNet input, and the shorter side of the image that it is the centre of."""
LIKE_CIFAR10 = {
    *range(7, 25), 30, 31, 32, *range(80, 101), *range(127, 147), *range(151, 294), 339, 340, *range(345, 355), 403, 404,
    405, 407, 408, 417, 436, 450, 468, 472, 475, 479, 484, 510, 511, 547, 554, 555, 561, 565, 569, 573, 575, 576, 581, 586,
    595, 603, 609, 612, 625, 627, 628, 654, 656, 661, 665, 670, 675, 690, 694, 705, 717, 724, 734, 744, 751, 757, 779, 780,
    803, 812, 814, 817, 820, 829, 833, 847, 864, 866, 867, 871, 874, 895, 908, 913, 914, 920,
}  # fmt: skip
"""ImageNet classes that show what CIFAR-10 has a class for: birds, cats, dogs, deer, frogs, horses, ships, planes, cars."""
NO_IMAGENET_CLASS = ("Anjou", "Cantaloupe", "Conference", "Galia-Melon", "Honeydew-Melon", "Kaiser", "Watermelon")
"""Groceries that ImageNet has no class for: pears and melons."""


@dataclass(frozen=True)
class Images:
    """The images of one set (N, H, W, 3), and their classes if these are the network's."""

    pixels: np.ndarray
    labels: np.ndarray | None = None


Sets = dict[str, Callable[[], Images]]


@dataclass(frozen=True)
class Places:
    """The folders of tools/fetch.py and of activations, of real data beside the repository, and of tools/auto_networks.py."""

    data: Path
    shared: Path
    nets: Path


def cifar6(places: Places) -> Sets:
    """Return the sets of the embedded benchmark."""

    def read(name: str) -> Images:
        found = embedded.load(name)
        return Images(found.images, found.labels if name[:3] == "id_" else None)

    return {name: lambda name=name: read(name) for name in embedded.sets() if name not in embedded.sets("ood_val")}


def cifar10(places: Places) -> Sets:
    """Return sets for a CIFAR-10 network: parts of its two splits, images of other things, iSUN, and far sets."""
    order, train = np.random.RandomState(0).permutation(10_000), np.random.RandomState(1).permutation(50_000)[:1500]

    def own(split: str, rows: np.ndarray) -> Images:
        with np.load(write_cifar10(places.data), allow_pickle=False) as file:
            return Images(file[f"{split}_images"][rows], file[f"{split}_labels"][rows].astype(np.int64))

    sets: Sets = {
        "id_train": lambda: own("train", train),
        "id_val": lambda: own("test", order[:500]),
        "id_test": lambda: own("test", order[1000:2500]),
        "imagenet32": lambda: _imagenet32(places.shared),
        "cifar100": lambda: _table(places, "cifar100_test", 500),
        "isun": lambda: Images(np.load(places.shared / "isun.npz", allow_pickle=False)["images"][::18]),
    }
    far = ("mnist", "fashion-mnist", "quickdraw", "textures", "traffic-lights", "groceries")
    return sets | {name: lambda name=name: Images(embedded.load(name).images[:300]) for name in far}


def cifar100(places: Places) -> Sets:
    """Return sets for a CIFAR-100 network: parts of its two splits, CIFAR-10, and the far sets of the paper's tables."""
    order, train = np.random.RandomState(0).permutation(10_000), np.random.RandomState(1).permutation(5000)[:1500]

    def own(name: str, rows: np.ndarray) -> Images:
        with np.load(places.data / "tables" / f"{name}.npz", allow_pickle=False) as file:
            return Images(file["images"][rows], file["labels"][rows].astype(np.int64))

    def cifar10_test() -> Images:
        with np.load(write_cifar10(places.data), allow_pickle=False) as file:
            return Images(file["test_images"][order[:500]])

    sets: Sets = {
        "id_train": lambda: own("cifar100_train_50_per_class", train),
        "id_val": lambda: own("cifar100_test", order[:500]),
        "id_test": lambda: own("cifar100_test", order[1000:2500]),
        "cifar10": cifar10_test,
    }
    far = {"svhn": "svhn", "isun": "isun_libjpeg9d", "textures": "textures", "places": "places_mini"}
    return sets | {name: lambda file=file: _table(places, file, 400) for name, file in far.items()}


def imagenet(places: Places, every: int = 1) -> Sets:
    """Return sets for an ImageNet network: halves of `id_val` to learn from and to compare on, `id_test`, and others.

    For a slow network, one in `every` test images is used.
    """
    root = places.shared / "imagenet-sample"
    order = np.random.RandomState(0).permutation(1000)

    def own(split: str, rows: Iterable[int] | None = None) -> Images:
        files = _photographs(root, split)
        chosen = files[::every] if rows is None else [files[row] for row in rows]
        return Images(np.stack([_opened(file) for file, _ in chosen]), np.array([label for _, label in chosen]))

    textures = sorted((root / "textures").glob("*.jpg"))[::2]
    return {
        "id_train": lambda: own("id_val", order[:500]),
        "id_val": lambda: own("id_val", order[500:]),
        "id_test": lambda: own("id_test"),
        "groceries": lambda: Images(_groceries(places.data)),
        "textures": lambda: Images(np.stack([_opened(file) for file in textures])),
        "game": lambda: Images(_game(places.data)),
        "quickdraw": lambda: Images(_enlarged(embedded.load("quickdraw").images[::2][:250])),
        "fashion-mnist": lambda: Images(_enlarged(embedded.load("fashion-mnist").images[::2][:250])),
    }


def _photographs(root: Path, split: str) -> list[tuple[Path, int]]:
    """Return the images of a split with their classes, numbered in the order of their names."""
    names = sorted(folder.name for folder in (root / "id_val").iterdir())
    return [(file, names.index(file.parent.name)) for file in sorted((root / split).glob("*/*.jpg"))]


def _imagenet32(shared: Path) -> Images:
    """Return images of what CIFAR-10 has no class for, averaged down to 32 x 32."""
    files = [file for file, label in _photographs(shared / "imagenet-sample", "id_val") if label not in LIKE_CIFAR10]
    return Images(np.stack([_square(file) for file in files[::2][:300]]))


def _table(places: Places, name: str, count: int) -> Images:
    """Return about `count` images of a set of the paper's CIFAR tables, evenly spaced."""
    with np.load(places.data / "tables" / f"{name}.npz", allow_pickle=False) as file:
        images = file["images"]
        return Images(images[:: len(images) // count].copy())


def _square(file: Path) -> np.ndarray:
    with Image.open(file, formats=["JPEG"]) as opened:
        side = min(opened.size)
        left, top = (opened.width - side) // 2, (opened.height - side) // 2
        box = (left, top, left + side, top + side)
        return np.asarray(opened.convert("RGB").resize((32, 32), Image.Resampling.BOX, box=box))


def _opened(file: Path) -> np.ndarray:
    with Image.open(file, formats=["JPEG"]) as opened:
        return _cropped(opened)


def _cropped(picture: Image.Image) -> np.ndarray:
    """Resize the shorter side to 256 pixels and crop the centre of 224 x 224."""
    factor = SHORT / min(picture.size)
    size = (round(picture.width * factor), round(picture.height * factor))
    resized = picture.convert("RGB").resize(size, Image.Resampling.BILINEAR)
    left, top = (resized.width - SIZE) // 2, (resized.height - SIZE) // 2
    return np.asarray(resized.crop((left, top, left + SIZE, top + SIZE)))


def _enlarged(images: np.ndarray) -> np.ndarray:
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    large = functional.interpolate(pixels, (SIZE, SIZE), mode="bilinear").round().byte()
    return large.permute(0, 2, 3, 1).contiguous().numpy()


def _spread(items: list[int], count: int) -> list[int]:
    """Return at most `count` items, evenly spaced."""
    return items[:: max(1, len(items) // count)][:count]


def _groceries(data: Path) -> np.ndarray:
    import pyarrow.parquet

    pack = next(content for name, content in members(fetch("groceries", data)) if name.endswith("images2.parquet"))
    table = pyarrow.parquet.read_table(io.BytesIO(pack), columns=["finegrained_cat", "image_data"])
    names = table["finegrained_cat"].to_pylist()
    rows = _spread([row for row, name in enumerate(names) if name in NO_IMAGENET_CLASS], 500)
    return np.stack([_cropped(Image.open(io.BytesIO(table["image_data"][row].as_py()))) for row in rows])


def _game(data: Path) -> np.ndarray:
    """Return surfaces of a game, as in the embedded benchmark, that are at least 200 pixels wide and high."""
    pack = next(content for name, content in members(fetch("textures", data)) if name.endswith(".pk3"))
    with zipfile.ZipFile(io.BytesIO(pack)) as archive:
        surfaces = [name for name in sorted(archive.namelist()) if is_surface(name)]
        pictures = [Image.open(io.BytesIO(archive.read(name)), formats=["JPEG", "TGA"]) for name in surfaces]
        large = [row for row, picture in enumerate(pictures) if min(picture.size) >= 200]
        return np.stack([_cropped(pictures[row]) for row in _spread(large, 400)])


BATCH = 32
NEVER = -1e9
"""A logit that no class of a network has."""
CIFAR_FAR = ("mnist", "fashion-mnist", "quickdraw", "textures", "traffic-lights")
IMAGENET_FAR = ("textures", "game", "quickdraw", "fashion-mnist")


@dataclass(frozen=True)
class Setup:
    """A network's activations on all its sets.

    `train` is labelled, `val` is for comparisons, and only figures rest on `test`. `pseudo` are pseudo-OOD images by kind, made from
    images of `val`. `edited` returns the same sets with the images changed by an editor, without pseudo-OOD images.
    """

    name: str
    head: Head
    train: Activations
    val: Activations
    test: Activations
    near: Mapping[str, Activations]
    far: Mapping[str, Activations]
    pseudo: Mapping[str, Activations]
    plan: Plan
    edited: Callable[[InputEditor], Setup] | None = None


@dataclass(frozen=True)
class Plan:
    """How a network is made and what it runs on.

    Args:
        about: a short description.
        make: loads it.
        sets: its images.
        near: the names of the near OOD sets.
        far: the names of the far OOD sets.
        normalisation: mean and standard deviation of each colour, in [0, 1].
        size: height and width of its images.
        pseudo_from: number of validation images that pseudo-OOD images are made from.
        kept: how many of its classes are kept; images of the others are a near set.
        chosen_on: whether the parts of `fuse`, the kinds of pseudo-OOD images or a threshold of `auto` were chosen with it.
        twice_every: methods of two passes see one in so many images, for a slow network.
        family: what its features come from.
    """

    about: str
    make: Callable[[Places], nn.Module]
    sets: Callable[[Places], Sets]
    near: tuple[str, ...] = ("cat", "frog", "ship")
    far: tuple[str, ...] = CIFAR_FAR
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] = field(default_factory=embedded.normalisation)
    size: int = 32
    pseudo_from: int = 500
    kept: int | None = None
    chosen_on: bool = False
    twice_every: int = 1
    family: str = "convolutions and ReLU"


def _trained(name: str, places: Places) -> nn.Module:
    return auto_networks.load(name, places.nets)


def _densenet(classes: int, places: Places) -> nn.Module:
    return load_weights(densenet.DenseNet(classes), places.shared / f"densenet101_cifar{classes}.pth.tar")


def _cut(about: str, make: Callable[[Path], nn.Module], *, every: int = 1, **more: object) -> Plan:
    """Return the plan of an ImageNet network whose head is cut to 700 classes."""
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


def _transformer(about: str, name: str) -> Plan:
    return Plan(about, partial(_trained, name), cifar6, chosen_on=True, family="transformer")


PLANS = {
    "base": Plan("embedded ResNet", lambda _: load_model("cifar6:base"), cifar6, chosen_on=True),
    "ish": Plan("embedded, ISH", lambda _: load_model("cifar6:ish"), cifar6, chosen_on=True),
    "narrow": Plan("ResNet of 64 features", partial(_trained, "narrow"), cifar6, chosen_on=True),
    "vgg": Plan("VGG without BatchNorm", partial(_trained, "vgg"), cifar6, chosen_on=True),
    "plain": Plan("CNN without shortcuts", partial(_trained, "plain"), cifar6),
    "silu": Plan(
        "CNN with SiLU, without shortcuts", partial(_trained, "silu"), cifar6, family="convolutions without ReLU"
    ),
    "gelu": Plan(
        "CNN with GELU and LayerNorm",
        partial(_trained, "gelu"),
        cifar6,
        chosen_on=True,
        family="convolutions without ReLU",
    ),
    "vit": _transformer("vision transformer", "vit"),
    "vit-token": _transformer("vision transformer with class token", "vit-token"),
    "hybrid": _transformer("convolutions and transformer", "hybrid"),
    "wide": Plan("wide ResNet", partial(_trained, "wide"), cifar6, chosen_on=True),
    "densenet": Plan(
        "DenseNet-101, CIFAR-10",
        partial(_densenet, 10),
        cifar10,
        ("imagenet32", "groceries", "cifar100"),
        ("isun", *CIFAR_FAR),
        chosen_on=True,
        twice_every=4,
    ),
    "densenet-100": Plan(
        "DenseNet-101, CIFAR-100",
        partial(_densenet, 100),
        cifar100,
        ("cifar10",),
        ("svhn", "isun", "textures", "places"),
        chosen_on=True,
        twice_every=4,
    ),
    "mobilenet+700": _cut("MobileNetV2, ImageNet", imagenet_networks.mobilenet, chosen_on=True, twice_every=4),
    "lite0+700": _cut("EfficientNet-Lite0, ImageNet", imagenet_networks.lite0, chosen_on=True, twice_every=4),
    "resnet50+700": _cut(
        "ResNet-50, ImageNet", imagenet_networks.resnet50, every=2, pseudo_from=200, chosen_on=True, twice_every=4
    ),
}


def open_setup(name: str, places: Places) -> Setup:
    """Read a network's activations, and compute those that are missing."""
    plan = PLANS[name]
    folder = places.data / "auto" / name.partition("+")[0]
    images = plan.sets(places)

    @cache
    def split(cut: bool = False) -> SplitModel:
        model = plan.make(places).eval().to(memory_format=torch.channels_last)
        found = SplitModel(model, example=torch.zeros(2, 3, plan.size, plan.size))
        if cut and plan.kept is not None:
            # Gradients must not see the classes that are not kept: none of them is ever likely.
            final = final_linear(model, found.layer, example=torch.zeros(2, 3, plan.size, plan.size))[2]
            out = torch.ones(len(final.bias), dtype=torch.bool)
            out[_kept(len(out), plan.kept)] = False
            final.weight.data[out], final.bias.data[out] = 0.0, NEVER
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
            some = Images(found.pixels[: plan.pseudo_from]) if kind else Images(found.pixels[::every], labels)
            print(f"{name}: {file.stem}{' twice' if editor else ''}, {len(some.pixels)} images", flush=True)
            edit = KINDS[kind] if kind else None
            atomic_write(file, save(_run(split(editor is not None), some, plan, edit, editor)))
        return load_file(file)

    def all_sets(editor: InputEditor | None = None) -> Setup:
        found = {key: get(key, editor=None if key == "id_train" else editor) for key in images}
        if editor is None:
            found |= {f"pseudo-{kind}": get("id_val", kind) for kind in KINDS}
        return _sorted(name, plan, load_file(folder / "head.safetensors"), found, all_sets)

    if not (folder / "head.safetensors").is_file():
        head = split().head
        atomic_write(folder / "head.safetensors", save({"weight": head.weight, "bias": head.offset}))
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
    edited: Callable[[InputEditor], Setup],
) -> Setup:
    """Sort sets by role, without the classes that are not kept."""
    if plan.kept is not None:
        head, found = _without_classes(plan.kept, head, found)
    acts = {}
    for key, item in found.items():
        edited_acts = Activations(item["edited features"], item["edited logits"]) if "edited logits" in item else None
        acts[key] = Activations(item["features"], item["logits"], item.get("labels"), edited_acts)
    return Setup(
        name,
        Head(head["weight"], head["bias"]),
        acts["id_train"],
        acts["id_val"],
        acts["id_test"],
        {key: acts[key] for key in plan.near},
        {key: acts[key] for key in plan.far},
        {kind: acts[f"pseudo-{kind}"] for kind in KINDS if f"pseudo-{kind}" in acts},
        plan,
        edited,
    )


def _kept(classes: int, count: int) -> Tensor:
    """Draw the classes that are kept; by another seed than the one that splits `id_val`, which has one image of each."""
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
