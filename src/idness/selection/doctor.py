"""Examines a network on folders of images: `idness doctor`."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import torch

from idness.activations.capture import BATCH, Captured, capture_set
from idness.activations.prerelu import capture
from idness.core.errors import IdnessWarning, ModelError
from idness.core.progress import Listener
from idness.core.types import Activations, Head
from idness.data import Preprocessing, embedded, open_set, preprocessing_for, read_batches
from idness.data.sets import select
from idness.networks.split import SplitModel, load_model
from idness.selection.pseudo_ood import shuffled_tiles
from idness.selection.suitability import Diagnosis, Finding, examine

RELUS = ("relu", "relu6", "hardtanh")
SHUFFLED = 500
"""ID images that are run again with shuffled tiles, where there are no OOD images."""
SIZE = 224
"""Side of the noise images that probe a network's structure, where nothing says what it takes."""


def diagnose(
    model: str,
    data: str | Path | None = None,
    ood: str | Path | None = None,
    *,
    weights: str | Path | None = None,
    layer: str | None = None,
    limit: int | None = 2000,
    listener: Listener | None = None,
) -> Diagnosis:
    """Load a network, run ID and OOD images through it, and examine what it makes of them.

    Args:
        model: how to load the network.
        data: ID images; without them only the structure is judged, on noise, or the embedded images of an embedded network.
        ood: OOD images, on which methods are then compared.
        weights: the network's weights.
        layer: the name of the final linear layer, where it should not be searched.
        limit: the most images used of each set, evenly picked.
        listener: hears of progress.
    """
    network = load_model(model, weights)
    how = preprocessing_for(network, model, None if weights is None else str(weights))
    place = data or (embedded.TEST_SET if embedded.owns(model) else None)
    if place is None or str(weights) == "none":
        # A network without trained weights has nothing to show but its structure.
        return _structure(SplitModel(network, layer), how)
    hear = listener or Listener()
    if how is None:
        raise ModelError(
            f"{model}: how a picture becomes its input is not known; set model.preprocessing, a mapping with resize, crop, mean, std"
        )
    hear.note(f"preprocessing: {how.describe()}")
    doubt = how.suspicion()
    if doubt:
        warnings.warn(doubt, IdnessWarning, stacklevel=2)
    split = SplitModel(network, layer, example=None if how.size is None else torch.zeros(2, 3, *how.size))
    inside = capture_set("ID images", open_set(str(place)), split, how, limit=limit, listener=hear)
    outside = None
    if ood is not None:
        outside = capture_set("OOD images", open_set(str(ood)), split, how, limit=limit, listener=hear)
    return examine(
        split,
        _labelled(inside, split.head),
        None if outside is None else outside.acts,
        rectifier=inside.rectifier,
        shuffled=_shuffled(inside, split, how, hear) if outside is None else None,
    )


def _shuffled(inside: Captured, split: SplitModel, how: Preprocessing, hear: Listener) -> Activations | None:
    """Run some of the ID images again with their tiles shuffled."""
    if inside.images is None:
        return None
    images = select(inside.images, {"sample": SHUFFLED})
    hear.phase("shuffled ID images", len(images))
    parts = []
    for batch in read_batches(
        images, how, [(start, min(start + BATCH, len(images))) for start in range(0, len(images), BATCH)]
    ):
        if len(batch.pixels):
            parts.append(split.split(shuffled_tiles(how.normalize(batch.pixels), seed=batch.start)))
        hear.advance(batch.stop - batch.start)
    return Activations.concat(parts) if parts else None


def _labelled(found: Captured, head: Head) -> Activations:
    """Drop labels that are not the network's: folders in another order would make it look untrained."""
    acts = found.acts
    if acts.labels is None or int(acts.labels.max()) >= head.classes:
        return Activations(acts.features, acts.logits)
    right = float((acts.logits.argmax(dim=1) == acts.labels).float().mean())
    return acts if right > 2 / head.classes else Activations(acts.features, acts.logits)


def _structure(split: SplitModel, how: Preprocessing | None) -> Diagnosis:
    """Judge a network by what it makes of noise: whether its features are what a ReLU leaves."""
    shape = how.size if how is not None and how.size is not None else (SIZE, SIZE)
    found = capture(split, torch.randn(4, 3, *shape, generator=torch.Generator().manual_seed(0)))
    full = examine(split, found.acts, rectifier=found.rectifier)
    kept = tuple(finding for finding in full.findings if finding.name in ("features", "final layer", "width"))
    if full.findings[0].good is False:
        return dataclasses.replace(full, findings=kept, percentiles=None)
    if found.rectifier is None and found.last not in RELUS:
        # The mean of a smooth activation is positive on noise and negative on images.
        end = Finding("final layer", f"the last activation function is {found.last or 'unknown'}, no ReLU", False)
        why = "SCALE does not suit this network: nothing keeps its features from being negative. GEN needs only the logits."
        return Diagnosis(False, "gen", why, (*kept, end))
    why = (
        "By its structure SCALE suits this network; images of what it knows (--data) would say whether it really does."
    )
    return Diagnosis(True, "scale", why, kept)
