"""A small folder laid out like ImageNet: five classes of generated photographs, JPEG, of mixed sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

WNIDS = ("n01440764", "n01443537", "n01484850", "n01491361", "n01494475")
SIZES = ((60, 80), (90, 70), (64, 64), (120, 75), (75, 100))


def picture(label: int, number: int) -> Image.Image:
    """Draw a soft pattern whose colours and stripes belong to the class."""
    height, width = SIZES[number % len(SIZES)]
    rng = np.random.default_rng(100 * label + number)
    rows, columns = np.mgrid[0:height, 0:width] / 10
    waves = np.sin((label + 1) * rows + rng.uniform(0, 6)) + np.cos((5 - label) * columns + rng.uniform(0, 6))
    colours = np.array([40 * label, 200 - 40 * label, 30 * (label % 3)])
    pixels = colours + 25 * waves[:, :, None] + rng.normal(0, 8, (height, width, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def small_imagenet(root: Path, per_class: int = 8, first: int = 0) -> Path:
    """Write the folder, one subfolder for each of five wnids."""
    for label, wnid in enumerate(WNIDS):
        (root / wnid).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + per_class):
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
