"""Examines a network on folders of images: `idness doctor`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from idness.activations.forward import collect
from idness.activations.prerelu import capture
from idness.core.progress import Listener
from idness.core.types import Activations
from idness.data import ImageSet, Preprocessing, embedded, open_set
from idness.metrics import accuracy
from idness.networks.opening import Network, open_network
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
    preprocessing: Preprocessing | None = None,
    layer: str | None = None,
    limit: int | None = 2000,
    listener: Listener | None = None,
) -> Diagnosis:
    """Load a network, run ID and OOD images through it, and examine what it makes of them.

    Args:
        model: how to load the network.
        data: ID images; without them only the structure is judged, on noise, or the embedded images of an embedded network.
        ood: OOD images, which make the verdict a measured one.
        weights: the network's weights.
        preprocessing: how pictures become input, where the network does not say.
        layer: the name of the final linear layer, where it should not be searched.
        limit: the most images used of each set, evenly picked.
        listener: hears of progress.
    """
    hear = listener or Listener()
    place = data or (embedded.TEST_SET if embedded.owns(model) else None)
    if place is None or str(weights) == "none":
        # A network without trained weights has nothing to show but its structure.
        return _structure(open_network(model, weights, layer=layer, preprocessing=preprocessing))
    known = open_set(str(place))
    images = known if isinstance(known, ImageSet) else None
    network = open_network(model, weights, layer=layer, preprocessing=preprocessing, images=images)
    if images is not None:
        hear.note(f"preprocessing: {network.preprocessing.describe()}")
    ids = collect(network, known, name="ID images", limit=limit, pre_relu=True, listener=hear)
    others = shuffled = None
    if ood is not None:
        others = collect(network, open_set(str(ood)), name="OOD images", limit=limit, listener=hear).acts
    elif ids.images is not None:
        # The ID images again, with their tiles shuffled, stand in for OOD images.
        name = "shuffled ID images"
        shuffled = collect(network, ids.images, name=name, limit=SHUFFLED, edit=_shuffle, listener=hear).acts
    return examine(network.split, _labelled(ids.acts), others, rectifier=ids.rectifier, shuffled=shuffled)


def _shuffle(images: Tensor, start: int) -> Tensor:
    return shuffled_tiles(images, seed=start)


def _labelled(acts: Activations) -> Activations:
    """Drop labels that are hardly ever the network's answer: folders in another order would make it look untrained."""
    right = acts.labels is not None and accuracy(acts.logits, acts.labels) > 2 / acts.logits.shape[1]
    return acts if right else Activations(acts.features, acts.logits)


def _structure(network: Network) -> Diagnosis:
    """Judge a network by what it makes of noise: whether its features are what a ReLU leaves."""
    split, how = network.split, network.how
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
    why = "By its structure SCALE suits this network; images of what it knows would say whether it really does."
    return Diagnosis(True, "scale", why, kept)
