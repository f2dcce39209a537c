"""A small folder laid out like ImageNet: five classes of generated photographs, JPEG, of mixed sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

WNIDS = ("n01440764", "n01443537", "n01484850", "n01491361", "n01494475")
SIZES = ((60, 80), (90, 70), (64, 64), (120, 75), (75, 100))


def picture(label: int, number: int) -> Image.Image:
    """Draw noise in the colour of the class."""
    colour = (40 * label, 200 - 40 * label, 30 * (label % 3))
    pixels = np.random.default_rng(100 * label + number).normal(colour, 8, (*SIZES[number % len(SIZES)], 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def small_imagenet(root: Path) -> Path:
    """Write the folder, eight images for each of five wnids."""
    for label, wnid in enumerate(WNIDS):
        (root / wnid).mkdir(parents=True, exist_ok=True)
        for number in range(8):
            picture(label, number).save(root / wnid / f"{wnid}_{number}.JPEG", quality=90)
    return root


def as_parquet(root: Path, path: Path, rows: int = 4) -> Path:
    import pyarrow as arrow
    from pyarrow import parquet

    listed = sorted(root.glob("*/*.JPEG"))
    labels = [WNIDS.index(file.parent.name) for file in listed]
    table = arrow.table({"image": [file.read_bytes() for file in listed], "label": labels})
    parquet.write_table(table, path, row_group_size=rows)
    return path
