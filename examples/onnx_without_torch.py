"""Judges images with an exported guard: needs onnxruntime, NumPy and Pillow, and neither torch nor idness.

idness export guard/ -o model.onnx
python onnx_without_torch.py model.onnx photo.jpg ...
"""

from __future__ import annotations

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def read(path: str, channels: int) -> Image.Image:
    """Read an image as idness does: upright, 16-bit values scaled to 8 bits, transparent parts on white."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode in ("I", "F"):
        sys.exit(f"{path}: must have 8 or 16 bits per channel; convert it so that white is 255 or 65535")
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layered = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered)
    image = image.convert("RGB")
    return image if channels == 3 else image.convert("L")


def prepare(path: str, how: dict) -> np.ndarray:
    """Resize, crop and normalise an image as the graph's metadata says."""
    image = read(path, len(how["mean"]))
    size, crop = how["resize"], how["crop"]
    if isinstance(size, int):  # the shorter side
        size = [int(size * side / min(image.size)) for side in (image.height, image.width)]
    if size:
        image = image.resize((size[1], size[0]), Image.Resampling[how["interpolation"].upper()])
    if crop:
        height, width = (crop, crop) if isinstance(crop, int) else crop
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        image = image.crop((left, top, left + width, top + height))
    values = np.atleast_3d(np.asarray(image, np.float32)) / 255
    values = (values - how["mean"]) / how["std"]
    return values.transpose(2, 0, 1).astype(np.float32)


def main(model: str, *paths: str) -> None:
    """Print one line per image."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # no warning that the input `threshold` has a default
    session = onnxruntime.InferenceSession(model, settings)
    facts = json.loads(session.get_modelmeta().custom_metadata_map["idness"])
    batch = np.stack([prepare(path, facts["preprocessing"]) for path in paths])
    names = facts["class_names"]
    for path, label, score, p_value, is_ood in zip(paths, *session.run(None, {"images": batch}), strict=True):
        name = names[label] if names and label >= 0 else str(label)
        print(f"{'OUT' if is_ood else 'in '}  {name:<16} ID-ness={score:.4g}  p={p_value:.3f}  {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
