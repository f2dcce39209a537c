"""Runs a network once over each image of a set, into the store; what is there already is not run again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from idness.activations.forward import run_images, spans_of
from idness.activations.store import SHARD, FeatureStore, Shard, ShardRef, empty_shard
from idness.core.errors import DataError
from idness.core.files import key_of, sha256_of
from idness.core.progress import Listener
from idness.core.types import Activations, InputEditor
from idness.data import Batch, ImageSet
from idness.data.duplicates import DIGEST
from idness.data.sets import stamp_of
from idness.networks.open import Network


@dataclass(frozen=True)
class Extracted:
    """Says where the activations of a set are, and how many images were run and taken from the store."""

    key: str
    ran: int
    cached: int


def extract(
    network: Network,
    images: ImageSet,
    store: FeatureStore,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    edit_with: InputEditor | None = None,
    listener: Listener | None = None,
) -> Extracted:
    """Make sure that the store holds the activations of a set, or those of its images as an editor changes them.

    The network runs over what is missing, in batches of the size that suits it where none is given.
    The listener hears of every image; the phase is the caller's, who may run several
    sets in one.
    """
    known = network.labels_of(images)
    hear = listener or Listener()
    refs: dict[str, ShardRef | None] = {}
    ran = 0

    def missing() -> Iterator[Span]:
        nonlocal ran
        for span in plan(network, images, known, store, edit_with):
            refs[span.key] = store.find(span.key)
            if refs[span.key] is None:
                ran += span.stop - span.start
                yield span
            else:
                hear.advance(span.stop - span.start)

    # Files are hashed just before they are decoded, so that they are read from disk once. A set that is read in order has one
    # position in its file and is hashed first.
    spans = missing() if images.parallel else iter(list(missing()))
    first = next(spans, None)
    if first is not None:
        run = chain([first], spans)
        refs |= _run(network, images, store, run, known, batch_size or network.batch, workers, edit_with, hear)
    whole = finish(network, images, store, [ref for ref in refs.values() if ref is not None])
    return Extracted(whole, ran, len(images) - ran)


@dataclass(frozen=True)
class Span:
    """Names what one shard covers: the places of its images, and its key."""

    start: int
    stop: int
    key: str


def plan(
    network: Network,
    images: ImageSet,
    known: Tensor | None,
    store: FeatureStore,
    edit_with: InputEditor | None = None,
) -> Iterator[Span]:
    """Divide a set into what one shard each covers; `known` are its labels, as the network has them."""
    if len(images) == 0:
        raise DataError(f"{images.source}: must hold at least one image, got none; check the folder or file")
    change = [] if edit_with is None else [edit_with.edit_key()]
    for start, stop in spans_of(len(images), SHARD):
        labels = "" if known is None else sha256_of(known[start:stop].numpy().tobytes())
        stamp = stamp_of(images, start, stop, store.stamps)
        yield Span(start, stop, key_of(network.identity, str(start), stamp, labels, *change))


def shard_of(
    network: Network, images: ImageSet, known: Tensor | None, start: int, batch_size: int, workers: int | None = None
) -> Shard:
    """Make the shard of a set that is all that it covers, whose first image has the place `start` in the whole."""
    parts = run_images(network, images, batch_size=batch_size, workers=workers)
    made = _joined(network, known, [(batch, None if found is None else found.acts) for batch, found in parts])
    moved = [(start + place, reason) for place, reason in made.skipped]
    return replace(made, index=made.index + start, skipped=moved)


def finish(network: Network, images: ImageSet, store: FeatureStore, refs: Sequence[ShardRef]) -> str:
    """Write down that all shards of a set are there, where the store does not know yet, and give the key of the whole."""
    whole = key_of(network.identity, *(ref.key for ref in refs))
    if whole not in store or store.refs(whole) != list(refs):
        about = {"source": images.source, "images": len(images), "precision": network.precision.used}
        store.finish(whole, refs, about)
    return whole


def _run(
    network: Network,
    images: ImageSet,
    store: FeatureStore,
    missing: Iterable[Span],
    known: Tensor | None,
    batch_size: int,
    workers: int | None,
    editor: InputEditor | None,
    listener: Listener,
) -> dict[str, ShardRef]:
    """Run the network over the missing shards and write each as soon as it is whole."""
    ends: dict[int, str] = {}
    written: dict[str, ShardRef] = {}

    def batches() -> Iterator[tuple[int, int]]:
        for span in missing:
            ends[span.stop] = span.key
            yield from spans_of(span.stop, batch_size, span.start)

    shard_parts: list[tuple[Batch, Activations | None]] = []
    for batch, found in run_images(
        network, images, spans=batches(), workers=workers, edit_with=editor, listener=listener
    ):
        acts = None if found is None else found.acts
        shard_parts.append((batch, acts if acts is None or editor is None else acts.edited))
        if batch.stop in ends:
            written[ends[batch.stop]] = store.put(ends[batch.stop], _joined(network, known, shard_parts))
            shard_parts = []
    return written


def _joined(network: Network, known: Tensor | None, parts: Sequence[tuple[Batch, Activations | None]]) -> Shard:
    skipped = [entry for batch, _ in parts for entry in batch.skipped]
    ran = [(batch, acts) for batch, acts in parts if acts is not None]
    if not ran:
        head = network.split.head
        return empty_shard(skipped, head.width, head.classes, known is not None, DIGEST)
    acts = Activations.concat(acts for _, acts in ran)
    index = torch.cat([torch.from_numpy(batch.index) for batch, _ in ran])
    digests = torch.cat([torch.from_numpy(batch.digests.copy()) for batch, _ in ran])
    # An image for which the network gives no number is as useless as one that cannot be read; the others are not.
    finite = acts.finite
    skipped += [(int(place), "the network gives NaN or Inf for it") for place in index[~finite]]
    labels = None if known is None else known[index[finite]]
    kept = Activations(acts.features[finite], acts.logits[finite], labels)
    return Shard(kept, index[finite], digests[finite], sorted(skipped))
