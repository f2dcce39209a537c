"""Examines a network on folders of images: `idness doctor`, and the advice that `idness calibrate` follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from idness.activations.forward import SetActivations, collect
from idness.activations.prerelu import capture
from idness.core.progress import Listener
from idness.core.types import Activations
from idness.core.wording import sentence
from idness.data import ImageSet, embedded
from idness.data.open import open_argument
from idness.data.sets import Part
from idness.networks.class_names import check_accuracy
from idness.networks.open import ModelOptions, Network, input_channels, open_network
from idness.selection.auto import LABELS, scale_gains
from idness.selection.pseudo_ood import KINDS
from idness.selection.suitability import ENOUGH, SAFE, Diagnosis, Finding, examine, structure

RELUS = ("relu", "relu6", "hardtanh")
MOST = 2000
"""ID images that an advice rests on, evenly picked; more change none."""
STAND_INS = 500
"""ID images that stand-ins for OOD images are made of."""
SIZE = 224
"""Side of the noise images that probe a network's structure, where nothing says what it takes."""


def diagnose(
    model: str | ModelOptions,
    data: str | Path | None = None,
    ood: str | Path | None = None,
    *,
    limit: int | None = MOST,
    listener: Listener | None = None,
) -> Diagnosis:
    """Load a network, run ID and OOD images through it, and say what to use on it and why.

    Args:
        model: the network's name, as `load_model` takes it, or its options.
        data: ID images; without them only the structure is judged, on noise, or the embedded images of an embedded network.
        ood: OOD images, which the advice then rests on.
        limit: the most images used of each set, evenly picked.
        listener: hears of progress.
    """
    hear = listener or Listener()
    options = model if isinstance(model, ModelOptions) else ModelOptions(model)
    place = data or (embedded.TEST_SET if embedded.owns(str(options.model)) else None)
    if place is None or str(options.weights) == "none":
        # A network without trained weights has nothing to show but its structure.
        return _by_structure(open_network(options))
    known = open_argument("data", place)
    flagged = None if ood is None else open_argument("ood", ood)
    images = known if isinstance(known, ImageSet) else None
    network = open_network(options, images=images)
    if images is not None:
        hear.note(f"preprocessing: {network.preprocessing.describe()}")
    ids = collect(network, known, name="ID images", limit=limit, pre_relu=True, listener=hear)
    others = None
    if flagged is not None:
        others = collect(network, flagged, name="OOD images", limit=limit, listener=hear).acts
    return advise(network, ids, ood=others, listener=hear)


def advise(
    network: Network,
    ids: SetActivations,
    *,
    learn: Activations | None = None,
    ood: Activations | None = None,
    listener: Listener | None = None,
) -> Diagnosis:
    """Say what to use on a network, from its activations on ID images; the same for the same images, whoever asks.

    Without OOD images, or with too few, stand-ins for them are made of the ID images and run through the network.

    Args:
        network: the network.
        ids: ID images, with what it made of them.
        learn: activations of other ID images for methods that learn; without them every other one of `ids`.
        ood: activations of OOD images.
        listener: hears of progress.
    """
    picked = _picked(ids)
    enough = ood is not None and len(ood) >= ENOUGH
    pseudo = {} if enough else stand_ins(network, picked, every=2 if learn is None else 1, listener=listener)
    acts, wrong = _labelled(picked, network)
    found = examine(network.split, acts, ood, learn=learn, pseudo=pseudo, rectifier=ids.rectifier)
    return found if wrong is None else replace(found, findings=(Finding("labels", wrong, False), *found.findings))


def scaling(
    network: Network, ids: SetActivations, *, ood: Activations | None = None, listener: Listener | None = None
) -> dict[float, float]:
    """Give, for each percentile, what SCALE gains on a network over the energy score: on OOD images, or on stand-ins."""
    picked = _picked(ids)
    others = stand_ins(network, picked, listener=listener) if ood is None else {"OOD images": ood}
    return scale_gains(network.split.head, picked.acts, others)


def stand_ins(
    network: Network, ids: SetActivations, *, every: int = 1, listener: Listener | None = None
) -> dict[str, Activations]:
    """Make stand-ins for OOD images of every n-th ID image and run them through the network, by kind.

    The last of each n are taken: methods learn from the others. There are none where the set is activations.
    """
    if ids.images is None or ids.index is None:
        return {}
    images = Part(ids.images, ids.index[every - 1 :: every].tolist(), "for stand-ins")
    return {
        kind: collect(
            network, images, name=f"{kind} ID images", limit=STAND_INS, edit=_edit(network, make), listener=listener
        ).acts
        for kind, make in KINDS.items()
    }


def _picked(ids: SetActivations) -> SetActivations:
    step = max(1, -(-len(ids.acts) // MOST))
    return replace(ids, acts=ids.acts[::step], index=None if ids.index is None else ids.index[::step])


def _edit(network: Network, make: Callable[[Tensor, int], Tensor]) -> Callable[[Tensor, int], Tensor]:
    """Let a kind of stand-in work on pictures in [0, 1], where the network takes normalised ones."""
    how = network.preprocessing
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (how.mean, how.std))

    def edit(inputs: Tensor, start: int) -> Tensor:
        return (make((inputs * std + mean).clamp(0, 1), start) - mean) / std

    return edit


def _labelled(ids: SetActivations, network: Network) -> tuple[Activations, str | None]:
    """Drop labels that are hardly ever the network's answer, as methods would learn nonsense from them, and say so."""
    acts = ids.acts
    if acts.labels is None:
        return acts, None
    labels, answers = acts.labels.numpy(), acts.logits.argmax(dim=1).numpy()
    wrong = check_accuracy(ids.name, labels, answers, acts.logits.shape[1], any_accuracy=True)
    return (replace(acts, labels=None), wrong) if wrong else (acts, None)


def _by_structure(network: Network) -> Diagnosis:
    """Judge a network by what it makes of noise: whether its features are what a ReLU leaves."""
    split, how = network.split, network.how
    shape = how.size if how is not None and how.size is not None else (SIZE, SIZE)
    channels = how.channels if how is not None else input_channels(split.model) or 3
    found = capture(split, torch.randn(4, channels, *shape, generator=torch.Generator().manual_seed(0)))
    findings = structure(split.head, found.acts, found.rectifier)
    if found.rectifier is None and findings[0].good is not False and found.last not in RELUS:
        # The mean of a smooth activation is positive on noise and negative on images.
        last = f"the last activation function is {found.last or 'unknown'}, no ReLU"
        findings.append(Finding("final layer", last, False))
    if split.multi_label:
        return Diagnosis("ebo", f"{sentence(LABELS)}.", findings=tuple(findings))
    suits = all(finding.good is not False for finding in findings if finding.name != "width")
    why = (
        f"Use {SAFE}, which is safe on every network that was tried; by its structure SCALE"
        f" {'may suit this one too' if suits else 'does not suit this one'}, and ID images would say more."
    )
    return Diagnosis(SAFE, why, suits=None if suits else False, findings=tuple(findings))
