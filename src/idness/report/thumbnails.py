"""Turns small images into data URLs, and the images that detectors get most wrong into captioned strips."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idness.benchmark.parts import Wrong
from idness.benchmark.results import Report
from idness.core.wording import sentence, shown
from idness.metrics import id_threshold

BUDGET = 900_000
"""Bytes that all thumbnails of a page may take, as text."""
QUALITIES = (90, 75, 55, 30)


@dataclass(frozen=True)
class Thumbnail:
    """Keeps one image of a strip, with all that is said about it."""

    thumb: str | None
    alt: str
    score: str
    verdict: str
    fooled: bool
    words: str


@dataclass(frozen=True)
class Strip:
    """Keeps a row of images under one heading."""

    title: str
    entries: list[Thumbnail]


def data_urls(images: Mapping[str, NDArray[np.uint8]], budget: int = BUDGET) -> dict[str, str]:
    """Encode images as WebP data URLs, as well as the budget allows; the last ones are left out when even that is too much."""
    urls: dict[str, str] = {}
    for quality in QUALITIES:
        urls = {name: _data_url(image, quality) for name, image in images.items()}
        if sum(map(len, urls.values())) <= budget:
            return urls
    kept: dict[str, str] = {}
    for name, url in urls.items():
        budget -= len(url)
        if budget < 0:
            break
        kept[name] = url
    return kept


def strips(report: Report, row: str, ids: Mapping[str, str]) -> list[Strip]:
    """Caption the images that one row gets most wrong; `ids` names the pictures that the page has."""
    threshold = id_threshold(report.scores.of(row, "id_test"), report.recall)
    found = []
    for group, entries in report.wrong.get(row, {}).items():
        is_id = group == "id_test"
        title = "ID images that it trusts least" if is_id else f"{shown(group)} OOD images that it trusts most"
        captioned = [_captioned(report, entry, threshold, is_id, ids) for entry in entries]
        found.append(Strip(sentence(title), captioned))
    return found


def needed(report: Report, rows: Sequence[str]) -> dict[str, NDArray[np.uint8]]:
    """List the small images that these rows' strips show, each once, those of the first rows first."""
    wanted = [f"{e.set}/{e.index}" for row in rows for part in report.wrong.get(row, {}).values() for e in part]
    return {name: report.thumbs[name] for name in dict.fromkeys(wanted) if name in report.thumbs}


def class_name(report: Report, label: int | None) -> str:
    """Name a class; its number where names are unknown."""
    if label is None:
        return "unknown"
    names = report.benchmark.classes
    return shown(names[label], 24) if 0 <= label < len(names) else f"class {label}"


def _captioned(report: Report, entry: Wrong, threshold: float, is_id: bool, ids: Mapping[str, str]) -> Thumbnail:
    accepted = entry.score >= threshold
    fooled = accepted != is_id
    verdict = ("kept" if accepted else "rejected") if is_id else ("passes" if accepted else "caught")
    predicted = class_name(report, entry.predicted)
    if is_id:
        truth = class_name(report, entry.label)
        words = f"{truth}, seen as {predicted}" if entry.label not in (None, entry.predicted) else predicted
    else:
        words = f"{shown(entry.set, 24)}, seen as {predicted}"
    alt = f"{shown(entry.item, 60)} of {shown(entry.set, 24)}: {words}; score {entry.score:.4g}, {verdict}"
    return Thumbnail(ids.get(f"{entry.set}/{entry.index}"), alt, f"{entry.score:.4g}", verdict, fooled, words)


def _data_url(image: NDArray[np.uint8], quality: int) -> str:
    stream = io.BytesIO()
    options: dict[str, Any] = {"quality": quality, "method": 4}
    Image.fromarray(np.ascontiguousarray(image)).save(stream, "WEBP", **options)
    return "data:image/webp;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
