"""Running a network over the images of a data set, into memory or into a store, which caches activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from idness.activations.store import FeatureStore
from idness.core.errors import DataError
from idness.core.files import key_of, sha256_of
from idness.core.progress import Progress
from idness.core.types import Activations, Head, InputEditor
from idness.data import Batch, ImageSet, read_batches
from idness.data.activations import SHARD, ActivationsFile, ActivationsSet, in_memory
from idness.data.duplicates import EXACT
from idness.data.sets import select
from idness.networks.open import Network
from idness.networks.split import SplitModel

TOLERANCE = 1e-4
"""Maximum difference between pooled ReLU outputs and the features, relative to the largest feature."""


def run_images(
    network: Network,
    images: ImageSet,
    *,
    spans: Iterable[tuple[int, int]] | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    pre_relu: bool = False,
    edit: Callable[[Tensor, int], Tensor] | None = None,
    edit_with: InputEditor | None = None,
    progress: Progress | None = None,
) -> Iterator[tuple[Batch, Activations]]:
    """Read, preprocess and run images batch by batch, in order; the next batches are decoded while the network runs.

    Yields each batch and the activations of its images, with index and hashes; a batch without readable images has none.

    `spans` are the ranges to run, each one batch; by default all images in batches of `batch_size`.
    `pre_relu` keeps the input of the final ReLU. `edit` changes the network's input, given a batch and the position of its first
    image. `edit_with` edits images for a second pass, like `Detector.input_edit`; it cannot be combined with `pre_relu`.
    """
    progress, how, split = progress or Progress(), network.preprocessing, network.split
    ranges = spans if spans is not None else spans_of(len(images), batch_size or network.batch)
    for batch in read_batches(images, how, ranges, workers=workers):
        network.check_size(images.source, batch.pixels)
        if len(batch.pixels):
            # Pixels are transferred as bytes and normalised on the network's device.
            plain = how.normalize(torch.from_numpy(batch.pixels).to(split.device))
            inputs = plain if edit is None else edit(plain, batch.start)
            if pre_relu:
                acts = capture(split, inputs)
            else:
                acts = split.split(inputs, precision=network.precision.used, edit_with=edit_with).to("cpu")
        else:
            acts = Activations(torch.zeros(0, split.head.width), torch.zeros(0, split.head.classes))
        index, hashes = torch.from_numpy(batch.index), torch.from_numpy(batch.digests.copy())
        progress.advance(batch.stop - batch.start)
        yield batch, replace(acts, index=index, hashes=hashes, skipped=batch.skipped)


def collect(
    network: Network | None,
    data: ImageSet | ActivationsSet,
    *,
    name: str = "",
    limit: int | None = None,
    distinct: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> ActivationsSet:
    """Return the activations of a set in memory, computed by the network, or read if the set already consists of activations.

    `name` is the name of the set, by default its source; `limit` is the maximum number of images, evenly spaced; `distinct` skips
    duplicate images of a set; `options` are `pre_relu`, `edit` and `edit_with` of `run_images`.
    """
    name = name or data.source
    if isinstance(data, ActivationsSet):
        if network is not None and isinstance(data, ActivationsFile):
            head = network.split.head
            data.head = Head(head.weight.cpu(), head.offset.cpu())
        acts = data.load(step=1 if limit is None else max(1, -(-len(data) // limit)))
        return in_memory(name, acts, count=len(data))
    if network is None:
        raise DataError(f"{name}: contains images, not activations; pass a network")
    images = data if limit is None else select(data, {"sample": limit})
    progress = progress or Progress()
    progress.phase(name, len(images))
    run = run_images(network, images, progress=progress, **options)
    found = ActivationsSet(name, len(images), lambda: (acts for _, acts in run), images)
    whole = _labelled(found.load(), network.labels_of(images))
    if distinct and whole.hashes is not None:
        _, first = np.unique(whole.hashes[:, :EXACT].numpy(), axis=0, return_index=True)
        whole = whole[torch.from_numpy(np.sort(first))]
    return in_memory(name, replace(whole, skipped=found.skipped), images, len(images))


def extract(
    network: Network,
    images: ImageSet,
    store: FeatureStore,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    edit_with: InputEditor | None = None,
    progress: Progress | None = None,
) -> tuple[str, int]:
    """Ensure that a store contains the activations of a set, or of its images as edited by an editor.

    The network runs over the missing images; the arguments are those of `run_images`. Returns the key of the set in the store, and
    the number of images that the network ran over.
    """
    known, progress = network.labels_of(images), progress or Progress()
    names, ran = dict[str, str](), 0
    # The files of a shard are hashed just before they are decoded, so that they are read from disk only once.
    for span in plan_spans(network, images, known, store, edit_with):
        found = store.find(span.key)
        if found is None:
            spans = spans_of(span.stop, batch_size or network.batch, span.start)
            run = run_images(network, images, spans=spans, workers=workers, edit_with=edit_with, progress=progress)
            # Of edited images, the activations in place of those of the images themselves; none if no image could be read.
            parts = [
                replace(acts.edited or acts, index=acts.index, hashes=acts.hashes, skipped=acts.skipped)
                for _, acts in run
            ]
            found = store.put(span.key, _shard(known, parts))
            ran += span.stop - span.start
        else:
            progress.advance(span.stop - span.start)
        names[span.key] = found
    return finish(network, images, store, names), ran


@dataclass(frozen=True)
class Span:
    """The range of images of one shard, and its key."""

    start: int
    stop: int
    key: str


def plan_spans(
    network: Network,
    images: ImageSet,
    known: Tensor | None,
    store: FeatureStore,
    edit_with: InputEditor | None = None,
) -> Iterator[Span]:
    """Yield the shards of a set; `known` are its labels as the network's class indices."""
    if len(images) == 0:
        raise DataError(f"{images.source}: must contain at least one image, got none; check the folder or file")
    change = [] if edit_with is None else [edit_with.edit_key()]
    for start, stop in spans_of(len(images), SHARD):
        labels = "" if known is None else sha256_of(known[start:stop].numpy().tobytes())
        stamp = images.stamp(start, stop, store.stamps)
        yield Span(start, stop, key_of(network.identity, str(start), stamp, labels, *change))


def shard_of(
    network: Network, images: ImageSet, known: Tensor | None, start: int, batch_size: int, workers: int | None = None
) -> Activations:
    """Return the single shard of a part of a set that begins at position `start` of the whole set."""
    run = run_images(network, images, batch_size=batch_size, workers=workers)
    made = _shard(known, [acts for _, acts in run])
    assert made.index is not None
    return replace(made, index=made.index + start, skipped=[(start + place, reason) for place, reason in made.skipped])


def finish(network: Network, images: ImageSet, store: FeatureStore, names: dict[str, str]) -> str:
    """Write the manifest of a set, given the hashes of its shards by key, unless it exists, and return the key of the set."""
    whole = key_of(network.identity, *names)
    if whole not in store or store.names(whole) != names:
        about = {"source": images.source, "images": len(images), "precision": network.precision.used}
        store.finish(whole, names, about)
    return whole


def spans_of(count: int, size: int, start: int = 0) -> list[tuple[int, int]]:
    """Return the range from `start` to `count` divided into ranges of at most `size`."""
    return [(low, min(low + size, count)) for low in range(start, count, size)]


def _shard(known: Tensor | None, parts: Sequence[Activations]) -> Activations:
    """Return batches joined to one shard; images with NaN or Inf are skipped, like unreadable ones."""
    acts = _labelled(Activations.concat(parts), known)
    assert acts.index is not None
    finite = acts.finite
    bad = [(int(place), "the network returns NaN or Inf for it") for place in acts.index[~finite]]
    return replace(acts[finite], skipped=sorted([*acts.skipped, *bad]))


def _labelled(acts: Activations, known: Tensor | None) -> Activations:
    return acts if known is None or acts.index is None else replace(acts, labels=known[acts.index])


def capture(split: SplitModel, images: Tensor) -> Activations:
    """Run one batch and return its activations.

    If the features are the pooled output of a final ReLU, the activations include `pre_relu` and `rectifier`. Function calls of the
    forward pass are observed, so nothing depends on names, and functional ReLUs (DenseNet) are found as well as modules (ResNet). The
    paper does not state how its "pre-ReLU activations" are pooled; here they are pooled as the network pools the output of the ReLU.
    """
    with _Watch(split.width) as watch:
        # The unchanged network: other engines do not call functions that can be observed.
        acts = Activations(*split.run(images)).to("cpu")
    # It is nearly always the last one, but an auxiliary branch may follow.
    for cap, before in reversed(watch.seen):
        for pooling, pool in _POOLINGS.items():
            pooled = pool(before.clamp(0.0, cap))
            far = (pooled - acts.features).abs().max() if pooled.shape == acts.features.shape else torch.inf
            if far <= TOLERANCE * (acts.features.abs().max() + 1e-12):
                kind = "ReLU" if cap == torch.inf else "ReLU6"
                return replace(acts, pre_relu=pool(before), rectifier=f"{kind}{pooling}")
    return acts


_POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda values: values,
    " and average pooling": lambda values: values[:, :, None].flatten(2).mean(dim=2),
    " and max pooling": lambda values: values[:, :, None].flatten(2).amax(dim=2),
}


class _Watch(TorchFunctionMode):
    """A mode that records the cap and input of every ReLU as wide as the features; only the last two are kept."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.seen: list[tuple[float, Tensor]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(zip(("input", "min_val", "max_val"), args, strict=False)) | dict(kwargs or {})
        cap = torch.inf if func in _RELUS else 6.0 if func is functional.relu6 else None
        if func in _HARDTANHS and options.get("min_val", -1.0) == 0.0:
            cap = float(options.get("max_val", 1.0))
        before = options.get("input")
        if cap is not None and isinstance(before, Tensor) and before.ndim in (2, 4) and before.shape[1] == self.width:
            # Copied, since an in-place ReLU overwrites its input.
            self.seen = [*self.seen[-1:], (cap, before.detach().float().cpu().clone())]
        return func(*args, **(kwargs or {}))


_RELUS = {functional.relu, functional.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}
_HARDTANHS = {functional.hardtanh, functional.hardtanh_}
