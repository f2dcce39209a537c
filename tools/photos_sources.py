"""Read the images of the photos benchmark from the packages of tools/fetch.py, as 224 x 224 RGB.

Every choice is a rule that depends only on the bytes of the packages, so that the same packages yield the same pixels. Images of the 1,000
ImageNet classes are excluded by their folder or name in the package; photos_sets.toml lists these.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from cifar6_sources import is_surface, unlike
from fetch import fetch, members

SIDE = 224

CHOSEN = tomllib.loads(Path(__file__).with_name("photos_sets.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Photos:
    """The images of one set (N, 224, 224, 3), their origins, and, for ID images, their labels."""

    images: np.ndarray
    sources: list[str]
    labels: list[int] | None = None


def id_photos(folder: Path) -> dict[str, Photos]:
    """Return the ID photographs, sorted by class and name: every fifth for validation, all others for testing."""
    paths = sorted((folder / "id_test").glob("*/*.jpg"))
    wnids = sorted(path.name for path in (folder / "id_val").iterdir())
    parts = {"id_val": paths[4::5], "id_test": [path for place, path in enumerate(paths) if place % 5 != 4]}
    return {
        name: Photos(
            np.stack([square(Image.open(path)) for path in part]),
            [path.stem for path in part],
            [wnids.index(path.parent.name) for path in part],
        )
        for name, part in parts.items()
    }


def attribution(folder: Path) -> list[dict[str, str]]:
    """Return the author, licence and page of each ID photograph."""
    with (folder / "id_test_attribution.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def fruit(to: Path, count: int = 150) -> Photos:
    """Return photographs taken in turn from pears and melons in a grocery store, without near-duplicates."""
    import pyarrow.parquet

    pack = next(content for name, content in members(fetch("groceries", to)) if name.endswith("images2.parquet"))
    table = pyarrow.parquet.read_table(io.BytesIO(pack), columns=["finegrained_cat", "image_data"])
    by_product: dict[str, list[tuple[str, np.ndarray]]] = {name: [] for name in CHOSEN["fruit"]["products"]}
    for row, (name, content) in enumerate(zip(*(column.to_pylist() for column in table.columns), strict=True)):
        if name in by_product:
            by_product[name].append((f"{name}/{row}", square(Image.open(io.BytesIO(content)))))
    turns = [(place, name) for name, found in by_product.items() for place in range(len(found))]
    return _taken([by_product[name][place] for place, name in sorted(turns)], count)


def stamps(to: Path) -> Photos:
    """Return the listed stamps, each uncropped on white, enlarged at most twofold."""
    wanted = {f"{folder}/{name}" for folder, names in CHOSEN["stamps"].items() for name in names.split()}
    files = {
        name.split("/stamps/")[1].removesuffix(".png"): content
        for name, content in members(fetch("stamps", to))
        if "/stamps/" in name and name.endswith(".png")
    }
    missing = wanted - set(files)
    if missing:
        raise RuntimeError(f"the package has no stamp {sorted(missing)}")
    return _taken([(name, whole(Image.open(io.BytesIO(files[name])), largest=2.0)) for name in sorted(wanted)])


def textures(to: Path, count: int = 150) -> Photos:
    """Return opaque surfaces with contrast, at least 224 pixels wide and high, without near-duplicates, evenly over their names."""
    pack = next(content for name, content in members(fetch("textures", to)) if name.endswith(".pk3"))
    found = []
    with zipfile.ZipFile(io.BytesIO(pack)) as archive:
        for name in sorted(filter(is_surface, archive.namelist())):
            if _skipped("textures", name):
                continue
            with Image.open(io.BytesIO(archive.read(name)), formats=["JPEG", "TGA"]) as picture:
                clear = picture.mode == "RGBA" and (np.asarray(picture)[..., 3] < 255).mean() > 0.01
                if min(picture.size) >= SIDE and not clear:
                    found.append((name.removeprefix("textures/"), square(picture.convert("RGB"))))
    return _taken([item for item in found if item[1].mean(axis=-1).std() >= 4], count, evenly=True)


def x_rays(to: Path, count: int = 150) -> Photos:
    """Return chest X-rays of the package's test split, half of them normal, without near-duplicates."""
    found = {
        "/".join(name.split("/")[-2:]): content
        for name, content in members(fetch("x-rays", to))
        if "/datasets/pneumonia/test/" in name and name.endswith(".jpeg")
    }
    halves = [sorted(name for name in found if name.startswith(kind)) for kind in ("NORMAL", "PNEUMONIA")]
    read = [[(name, square(Image.open(io.BytesIO(found[name])))) for name in names] for names in halves]
    first, second = (_taken(items, count // 2, evenly=True) for items in read)
    return Photos(np.concatenate([first.images, second.images]), first.sources + second.sources)


def nebulae(to: Path, count: int = 150) -> Photos:
    """Return deep-sky photographs with contrast, at least 224 pixels wide and high, without near-duplicates, evenly over their names."""
    found = []
    for name, content in sorted(members(fetch("nebulae", to))):
        if "/nebulae/default/" in name and name.endswith(".png"):
            picture = Image.open(io.BytesIO(content))
            if min(picture.size) >= SIDE:
                found.append((Path(name).stem, square(picture)))
    return _taken([item for item in found if item[1].mean(axis=-1).std() >= 4], count, evenly=True)


def maps(to: Path) -> Photos:
    """Return all maps, each uncropped on white."""
    found = [
        (Path(name).stem, whole(Image.open(io.BytesIO(content)), largest=2.0))
        for name, content in sorted(members(fetch("maps", to)))
        if re.fullmatch(r"usr/share/kgeography/[^/]*\.png", name)
    ]
    return _taken(found)


def clip_art(to: Path, count: int = 150) -> Photos:
    """Return drawings of food, plants and flags, each uncropped on white, without near-duplicates, evenly over their names."""
    found = []
    for name, content in sorted(members(fetch("clip-art", to))):
        inside = re.fullmatch(r"usr/share/openclipart/png/((?:food|plants|signs_and_symbols/flags)/.*)\.png", name)
        if inside and not _skipped("clip-art", Path(name).stem) and "/beverages/" not in name:
            with Image.open(io.BytesIO(content)) as picture:
                if max(picture.size) < 8000:  # a few have 13,000 pixels a side
                    found.append((inside[1], whole(picture)))
    return _taken(found, count, evenly=True)


def sketches(to: Path, count: int = 150) -> Photos:
    """Return drawings in turn from the listed categories, black on white, enlarged from 28 x 28, without single strokes."""
    drawings = {
        Path(name).name.removesuffix(".ndjson.gz"): gzip.decompress(content).splitlines()
        for name, content in members(fetch("quickdraw", to))
        if name.endswith(".ndjson.gz")
    }
    found = []
    for place in range(100):
        for name in CHOSEN["sketches"]["categories"]:
            ink = np.rint(np.array(json.loads(drawings[name][place])) * 255).astype(np.uint8).reshape(28, 28)
            if min(np.ptp(np.flatnonzero(ink.any(axis=axis))) for axis in (0, 1)) >= 7 and len(found) < count:
                found.append((f"{name}/{place}", square(Image.fromarray(255 - ink))))
    return _taken(found)


NEAR: dict[str, Callable[[Path], Photos]] = {"fruit": fruit, "stamps": stamps}
FAR: dict[str, Callable[[Path], Photos]] = {"textures": textures, "x-rays": x_rays, "nebulae": nebulae, "maps": maps}
OOD_VAL: dict[str, Callable[[Path], Photos]] = {"clip-art": clip_art, "sketches": sketches}


def square(picture: Image.Image) -> np.ndarray:
    """Return an image with the shorter side scaled to 224 pixels by Pillow's bilinear filter and cropped, as in the preprocessing."""
    flat = _flat(picture)
    short = min(flat.size)
    width, height = (int(SIDE * length / short) for length in flat.size)
    flat = flat.resize((width, height), Image.Resampling.BILINEAR) if short != SIDE else flat
    left, top = round((width - SIDE) / 2), round((height - SIDE) / 2)
    return np.asarray(flat.crop((left, top, left + SIDE, top + SIDE)))


def whole(picture: Image.Image, largest: float = 1.0) -> np.ndarray:
    """Return the whole image in the middle of a white square, scaled to fit but enlarged at most by the factor `largest`."""
    flat = _flat(picture)
    scale = min(SIDE / max(flat.size), largest)
    flat = flat.resize([max(1, round(length * scale)) for length in flat.size], Image.Resampling.BILINEAR)
    ground = Image.new("RGB", (SIDE, SIDE), "white")
    ground.paste(flat, ((SIDE - flat.width) // 2, (SIDE - flat.height) // 2))
    return np.asarray(ground)


def _skipped(kind: str, name: str) -> bool:
    return any(word in name for word in CHOSEN["skipped"][kind])


def _flat(picture: Image.Image) -> Image.Image:
    """Return an image as RGB, with transparent parts on white."""
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        layered = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")
    return picture.convert("RGB")


def _taken(items: list[tuple[str, np.ndarray]], count: int | None = None, *, evenly: bool = False) -> Photos:
    """Return images without near-duplicates of earlier ones, at most `count`: the first, or evenly spaced ones."""
    small = np.stack([np.asarray(Image.fromarray(image).resize((32, 32), Image.Resampling.BOX)) for _, image in items])
    kept = [items[row] for row in unlike(small)]
    if count is not None and len(kept) > count:
        kept = [kept[place * len(kept) // count] for place in range(count)] if evenly else kept[:count]
    return Photos(np.stack([image for _, image in kept]), [name for name, _ in kept])
