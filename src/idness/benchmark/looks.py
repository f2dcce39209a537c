"""Runs the network for a benchmark: once over every image, and again for the rows that change images and look twice."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from idness.activations.extract import extract
from idness.activations.store import FeatureStore
from idness.benchmark.protocol import OpenSet
from idness.benchmark.settings import Settings
from idness.core.progress import Listener
from idness.core.types import Activations, Head, InputEditor
from idness.data import ActivationsSet, ImageSet
from idness.networks.open import Network
from idness.selection.search import Row

LEARNED = ("id_train", "id_val", "ood_val")
"""The roles of sets from which rows learn, or by which their options are chosen."""
TRAIN_SAMPLE = 50_000
"""Most training images that methods learn from; of larger sets a random sample."""


@dataclass
class Look:
    """Holds the rows that look at the same images, what the network makes of these, and in memory what they learn from."""

    wanted: Mapping[str, Row]
    sources: Sequence[ActivationsSet]
    head: Head
    held: dict[str, Activations] = field(init=False)

    def __post_init__(self) -> None:
        self.held = {
            source.name: source.load(TRAIN_SAMPLE if source.role == "id_train" else None)
            for source in self.sources
            if source.role in LEARNED
        }


class Looker:
    """Runs a network over the sets of a benchmark, and keeps account; there is none where all sets are activations."""

    def __init__(
        self, network: Network | None, head: Head, sets: Sequence[OpenSet], settings: Settings, listener: Listener
    ) -> None:
        self.network, self.head, self.settings, self.listener = network, head, settings, listener
        self.sets = {entry.name: entry for entry in sets}
        self.store = FeatureStore(settings.cache)
        self.ran = self.cached = 0
        self.seconds = 0.0

    def looks(self, wanted: Mapping[str, Row]) -> list[Look]:
        """Run the network over all that is not in the store yet; the rows of one pass come first, in one look.

        Rows that change images alike share a look. They have none where there are no images to change.
        """
        start = time.perf_counter()
        total = sum(len(entry.data) for entry in self.sets.values() if isinstance(entry.data, ImageSet))
        if total:
            self.listener.phase("network", total)
        plain = [self._run(entry) for entry in self.sets.values()]
        for source in plain:
            if source.role == "id_train" and source.count > TRAIN_SAMPLE:
                self.listener.note(
                    f"{source.name}: methods learn from a random sample of {TRAIN_SAMPLE:,} of {source.count:,} images (seed 0)"
                )
        looks = [Look({name: row for name, row in wanted.items() if row.detector.input_edit is None}, plain, self.head)]
        if all(isinstance(entry.data, ImageSet) for entry in self.sets.values()):
            looks += [self._second(editor, rows, plain) for editor, rows in _by_edit(wanted)]
        self.seconds = time.perf_counter() - start
        return looks

    def _second(self, editor: InputEditor, rows: Mapping[str, Row], plain: Sequence[ActivationsSet]) -> Look:
        seen = [source for source in plain if source.role != "id_train" or _learns_from_train(rows, plain)]
        self.listener.phase(f"network, again for {', '.join(rows)}", sum(source.count for source in seen))
        edited = [source.with_edited(self._run(self.sets[source.name], editor)) for source in seen]
        return Look(rows, edited, self.head)

    def _run(self, entry: OpenSet, editor: InputEditor | None = None) -> ActivationsSet:
        data, count = entry.data, len(entry.data)
        if not isinstance(data, ImageSet):
            return ActivationsSet(entry.name, count, data.shards, role=entry.role, sha256=data.fingerprint())
        assert self.network is not None
        key, ran = extract(
            self.network,
            data,
            self.store,
            batch_size=self.settings.batch_size,
            workers=self.settings.workers,
            edit_with=editor,
            listener=self.listener,
        )
        self.ran += ran
        self.cached += count - ran
        return ActivationsSet(entry.name, count, partial(self.store.shards, key), data, entry.role)


def _by_edit(wanted: Mapping[str, Row]) -> list[tuple[InputEditor, dict[str, Row]]]:
    """Group the rows that change images by how they change them."""
    groups: dict[str, tuple[InputEditor, dict[str, Row]]] = {}
    for name, row in wanted.items():
        editor = row.detector.input_edit
        if editor is not None:
            groups.setdefault(editor.edit_key(), (editor, {}))[1][name] = row
    return list(groups.values())


def _learns_from_train(rows: Mapping[str, Row], plain: Sequence[ActivationsSet]) -> bool:
    """Say whether a row learns from training images, which are many: they are not run again for nothing."""
    validated = any(source.role == "id_val" for source in plain)
    return any(row.detector.needs_train and not (row.detector.needs_val and validated) for row in rows.values())
