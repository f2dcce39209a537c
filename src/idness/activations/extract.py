"""Runs a network once over each image of a set, into the store; what is there already is not run again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from idness.activations.forward import run_images, spans_of
from idness.activations.store import SHARD, FeatureStore, Shard, ShardRef, empty_shard
from idness.core.errors import DataError
from idness.core.files import key_of, sha256_of
from idness.core.progress import Listener
from idness.core.types import Activations, InputEditor
from idness.data import Batch, ImageSet
from idness.data.likeness import DIGEST
from idness.networks.opening import Network


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
    if len(images) == 0:
        raise DataError(f"{images.source}: must hold at least one image, got none; check the folder or file")
    spans = spans_of(len(images), SHARD)
    keys = [_shard_key(network, images, *span, edit_with) for span in spans]
    refs = {key: store.find(key) for key in keys}
    missing = [(key, span) for key, span in zip(keys, spans, strict=True) if refs[key] is None]
    cached = len(images) - sum(stop - start for _, (start, stop) in missing)
    hear = listener or Listener()
    hear.advance(cached)
    if missing:
        refs |= dict(_run(network, images, store, missing, batch_size or network.batch, workers, edit_with, hear))
    whole = key_of(network.identity, *keys)
    found = [ref for key in keys if (ref := refs[key]) is not None]
    if whole not in store or store.refs(whole) != found:
        store.finish(
            whole, found, {"source": images.source, "images": len(images), "precision": network.precision.used}
        )
    return Extracted(whole, len(images) - cached, cached)


def _shard_key(network: Network, images: ImageSet, start: int, stop: int, editor: InputEditor | None) -> str:
    known = network.labels_of(images)
    labels = "" if known is None else sha256_of(known[start:stop].numpy().tobytes())
    change = [] if editor is None else [editor.edit_key()]
    return key_of(network.identity, str(start), images.stamp(start, stop), labels, *change)


def _run(
    network: Network,
    images: ImageSet,
    store: FeatureStore,
    missing: Sequence[tuple[str, tuple[int, int]]],
    batch_size: int,
    workers: int | None,
    editor: InputEditor | None,
    listener: Listener,
) -> Iterator[tuple[str, ShardRef]]:
    """Run the network over the missing shards and write each as soon as it is whole."""
    ends = {stop: key for key, (_, stop) in missing}
    batches = [batch for _, (start, stop) in missing for batch in spans_of(stop, batch_size, start)]
    shard_parts: list[tuple[Batch, Activations | None]] = []
    for batch, found in run_images(
        network, images, spans=batches, workers=workers, edit_with=editor, listener=listener
    ):
        acts = None if found is None else found.acts
        shard_parts.append((batch, acts if acts is None or editor is None else acts.edited))
        if batch.stop in ends:
            yield ends[batch.stop], store.put(ends[batch.stop], _joined(network, images, shard_parts))
            shard_parts = []


def _joined(network: Network, images: ImageSet, parts: Sequence[tuple[Batch, Activations | None]]) -> Shard:
    skipped = [entry for batch, _ in parts for entry in batch.skipped]
    ran = [(batch, acts) for batch, acts in parts if acts is not None]
    known = network.labels_of(images)
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
