"""Judges pictures with an exported guard: needs onnxruntime, NumPy and Pillow, and neither torch nor idness.

idness export guard/ model.onnx
python onnx_without_torch.py model.onnx photo.jpg ...
"""

from __future__ import annotations

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def prepare(path: str, how: dict) -> np.ndarray:
    """Resize, crop and normalise a picture as the network's metadata says."""
    picture = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    size, crop = how["resize"], how["crop"]
    if isinstance(size, int):  # the shorter side
        ratio = size / min(picture.size)
        size = [int(picture.height * ratio), int(picture.width * ratio)]
    if size:
        picture = picture.resize((size[1], size[0]), Image.Resampling[how["interpolation"].upper()])
    if crop:
        height, width = (crop, crop) if isinstance(crop, int) else crop
        left, top = round((picture.width - width) / 2), round((picture.height - height) / 2)
        picture = picture.crop((left, top, left + width, top + height))
    values = (np.asarray(picture, np.float32) / 255 - how["mean"]) / how["std"]
    return values.transpose(2, 0, 1).astype(np.float32)


def main(model: str, *pictures: str) -> None:
    """Print one line per picture."""
    session = onnxruntime.InferenceSession(model)
    facts = json.loads(session.get_modelmeta().custom_metadata_map["idness"])
    images = np.stack([prepare(path, facts["preprocessing"]) for path in pictures])
    names = facts["class_names"]
    for path, label, score, p_value, is_ood in zip(pictures, *session.run(None, {"images": images}), strict=True):
        name = names[label] if names and label >= 0 else str(label)
        print(f"{'OUT' if is_ood else 'in '}  {name:<16} ID-ness={score:.4g}  p={p_value:.3f}  {path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
