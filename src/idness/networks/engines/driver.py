"""Chooses the engine and the batch size of a network on its first images, and runs it."""

from __future__ import annotations

import json
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from idness.core.errors import IdnessWarning, ModelError, OptionError, StoreError
from idness.core.files import atomic_write, key_of
from idness.networks.engines.engine import ENGINES, FEW, PACKAGES, Engine, Plain, build, version
from idness.networks.engines.memory import keep_memory, largest_batch
from idness.networks.identity import fingerprint

if TYPE_CHECKING:
    from idness.networks.split import SplitModel

CHOICES = ("auto", *ENGINES)
UNKNOWN = 2_000
"""How many images are expected where nobody says."""
SMALL, MANY = 256, 1_000
"""For fewer images than the first nothing is tried, and for fewer than the second the batch size is not measured."""
SIDE = 64
"""Up to this height and width images are small, and more of them go into a batch."""
SETUP = {"onnxruntime": 3.0, "openvino": 3.0, "compiled": 30.0}
"""The engines that are tried, and the seconds to expect until they run."""
SAVES = 0.5
"""The share of the seconds that another engine saves where it is a good one: it is tried where that is more than its set-up."""
GAIN = 1.1
"""How many times as fast another engine must be to be worth its rounding, and another batch size to be taken."""
MORE = 10
"""How many times as many images as when the choice was made are reason to choose again."""


@dataclass(frozen=True)
class ChosenEngine:
    """Says which engine was asked for, which one runs, of which version, in batches of how many images, why, and what it gains.

    `form` is what became of the network for it, once the engine is made.
    """

    asked: str
    used: str
    version: str
    batch: int
    why: str
    images: int = 0
    gain: float = 1.0
    form: str = ""

    def key(self) -> str:
        """Identify what it computes: nothing for torch itself, whose features are exact enough to be the network's own."""
        return "" if self.used == "eager" else f"{self.used} {self.version}"

    def describe(self) -> str:
        """Say it in one line; of an engine that was measured to be faster, only by how much."""
        why = f"{self.gain:.1f} times as fast as eager" if self.gain > 1 else self.why
        return f"{self.used}, batches of {self.batch} ({why})"


class Driver:
    """Runs a network by the engine that was asked for.

    Args:
        asked: `eager`, `compiled`, `onnxruntime` or `openvino`; `auto` measures which of them is worth its set-up. Where the one that
            was asked for cannot run the network, eager does, and a warning says why.
        images: how many there will be.
        folder: keeps what was chosen for next time.
        clock: tells the seconds that were spent; those of the processor, which other programs do not lengthen.
    """

    def __init__(
        self,
        asked: str = "auto",
        images: int = UNKNOWN,
        folder: Path | None = None,
        clock: Callable[[], float] = time.process_time,
    ) -> None:
        if asked not in CHOICES:
            raise OptionError(f"engine must be one of {', '.join(CHOICES)}; got {asked!r}")
        self.asked, self.images, self.folder, self.clock = asked, images, folder, clock
        self.chosen: ChosenEngine | None = None
        self._engine: Engine | None = None
        self._stamp: object = None
        self._lock = Lock()

    def run(self, split: SplitModel, images: Tensor) -> tuple[Tensor, Tensor]:
        """Give features and logits of a batch; weights that have changed since the engine was made have it made anew."""
        with self._lock:
            self._ready(split, images)
            engine = self._engine
        assert engine is not None
        return engine.run(images)

    def decide(self, split: SplitModel, images: Tensor) -> ChosenEngine:
        """Choose on these images, or give what was chosen before."""
        with self._lock:
            return self._decide(split, images)

    def settle(self, split: SplitModel, images: Tensor) -> ChosenEngine:
        """Choose and make the engine on these images, and let whoever uses the same folder later, anywhere, take the same one."""
        with self._lock:
            chosen = self._ready(split, images)
        place = self._settled_place(split, images)
        if place is not None:
            atomic_write(place, json.dumps(asdict(chosen), indent=1))
        return chosen

    @classmethod
    def adopting(cls, chosen: ChosenEngine, split: SplitModel, images: Tensor) -> Driver:
        """Run a network as another process has settled: by the same engine, made in the same way."""
        driver = cls(images=chosen.images)
        if split.device.type == "cpu":
            keep_memory()
        driver.chosen = chosen
        driver._keep(split, driver._made_as(chosen, split, images))
        return driver

    def _ready(self, split: SplitModel, images: Tensor) -> ChosenEngine:
        """Choose, and make the engine, unless there is one for the weights as they are."""
        chosen = self._decide(split, images)
        if self._engine is None or self._stamp != _stamp(split.model):
            try:
                engine = self._made_as(replace(chosen, form=""), split, images)
            except ModelError as error:
                raise ModelError(
                    f"engine {chosen.used}: cannot run the network ({error}); use engine='eager'"
                ) from error
            self._keep(split, engine)
            self.chosen = replace(chosen, form=engine.form)
        assert self.chosen is not None
        return self.chosen

    def _decide(self, split: SplitModel, images: Tensor) -> ChosenEngine:
        if self.chosen is None:
            if split.device.type == "cpu":
                keep_memory()
            self.chosen = self._chosen(split, images)
        return self.chosen

    def _chosen(self, split: SplitModel, images: Tensor) -> ChosenEngine:
        batch = default_batch(images)
        if self.asked != "auto":
            return self._as_asked(split, images, batch)
        settled = _settled(self._settled_place(split, images))
        if settled is not None:
            return replace(settled, images=self.images)
        if self.images < SMALL:
            why = "too few images to choose for"
            self._keep(split, plain := Plain(split, images))
            return ChosenEngine("auto", "eager", version("eager"), batch, why, self.images, form=plain.form)
        place = self._place(split, images)
        known = _remembered(place, self.images)
        if known is not None:
            return replace(known, why=f"{known.why}; remembered")
        found = self._measured(split, images, batch)
        if place is not None:
            with suppress(StoreError):  # a folder that cannot be written to costs the next run a few seconds
                atomic_write(place, json.dumps(asdict(found), indent=1))
        return found

    def _as_asked(self, split: SplitModel, images: Tensor, batch: int) -> ChosenEngine:
        used, why = self.asked, "as asked"
        try:
            self._keep(split, engine := self._made(used, split, images))
        except ModelError as error:
            warnings.warn(f"engine {used} cannot run the network, so eager does: {error}", IdnessWarning, stacklevel=2)
            used, why = "eager", f"{used} cannot run the network: {error}"
            self._keep(split, engine := self._made(used, split, images))
        # onnxruntime gets a few of them at a time, however many there are.
        measured = self.images >= MANY and used != "onnxruntime"
        batch = self._best_batch(split, images, batch)[0] if measured else batch
        return ChosenEngine(self.asked, used, version(used), batch, why, self.images, form=engine.form)

    def _measured(self, split: SplitModel, images: Tensor, batch: int) -> ChosenEngine:
        """Measure eager, then whatever may save more seconds than it takes to set up."""
        best, used = self._made("eager", split, images), "eager"
        self._keep(split, best)
        batch, plain = self._best_batch(split, images, batch)
        cost, said = plain, []
        for name, setup in SETUP.items():
            if SAVES * cost * self.images <= setup:
                said.append(f"{name} would not be worth its set-up")
            elif not version(name):
                said.append(f"{name} is not installed")
            elif split.device.type != "cpu":
                said.append(f"{name} is not for {split.device.type}")
            else:
                try:
                    tried = self._made(name, split, images)
                    seconds = self._seconds(tried, images, min(batch, len(images)))
                    said.append(f"{name} is {plain / seconds:.1f} times as fast as eager")
                    if cost / seconds >= GAIN:
                        best, used, cost = tried, name, seconds
                except ModelError as error:
                    said.append(f"{name} cannot run the network: {error}")
        self._keep(split, best)
        why = f"measured for {self.images:,} images: {'; '.join(said)}"
        return ChosenEngine("auto", used, version(used), batch, why, self.images, round(plain / cost, 3), best.form)

    def _best_batch(self, split: SplitModel, images: Tensor, usual: int) -> tuple[int, float]:
        """Find the batch size of least seconds per image, and give both; the usual one unless another is clearly better."""
        assert self._engine is not None
        limit = min(largest_batch(split.model, images), len(images))
        sizes = sorted({max(1, min(size, limit)) for size in (usual // 2, usual, 2 * usual)})
        if self.images < MANY:
            sizes = [min(usual, limit)]
        costs = {size: self._seconds(self._engine, images, size) for size in sizes}
        best, usual = min(costs, key=lambda size: costs[size]), min(usual, limit)
        chosen = best if costs[usual] / max(costs[best], 1e-12) >= GAIN else usual
        return chosen, costs[chosen]

    def _seconds(self, engine: Engine, images: Tensor, size: int) -> float:
        """Measure seconds per image in batches of a size; a GPU has answered when its numbers are here."""
        engine.run(images[:1])  # warms up
        start = self.clock()
        engine.run(images[:size])[1].cpu()
        return max(self.clock() - start, 1e-9) / size

    def _made_as(self, chosen: ChosenEngine, split: SplitModel, images: Tensor) -> Engine:
        """Make the engine that was chosen; for images too few to choose for, the network as it is."""
        if chosen.asked == "auto" and chosen.images < SMALL:
            return Plain(split, images)
        return self._made(chosen.used, split, images, chosen.form)

    def _made(self, name: str, split: SplitModel, images: Tensor, form: str = "") -> Engine:
        if name != "eager" and split.device.type != "cpu" and name != "compiled":
            raise ModelError(f"it runs on the CPU, the network is on {split.device.type}")
        return build(name, split, images[:FEW], form)

    def _keep(self, split: SplitModel, engine: Engine) -> None:
        self._engine, self._stamp = engine, _stamp(split.model)

    def _place(self, split: SplitModel, images: Tensor) -> Path | None:
        """Name the file that remembers the choice for this network, these images, these packages and this machine."""
        if self.folder is None:
            return None
        shape, threads = tuple(images.shape[1:]), torch.get_num_threads()
        packages = {name: version(name) for name in ENGINES}
        machine = platform.node(), platform.machine(), threads
        key = key_of(fingerprint(split.model), repr(split.model), split.layer, repr((shape, packages, machine)))
        return self.folder / f"{key}.json"

    def _settled_place(self, split: SplitModel, images: Tensor) -> Path | None:
        """Name the file that says what the folder's activations of this network were made by, whatever the machine."""
        if self.folder is None:
            return None
        key = key_of(fingerprint(split.model), repr(split.model), split.layer, repr(tuple(images.shape[1:])))
        return self.folder / f"{key}-settled.json"


def default_batch(images: Tensor) -> int:
    """Give the batch size for images that nobody has measured: many small ones, few large ones, as the cache of a CPU has it."""
    small = images.ndim < 4 or max(images.shape[-2:]) <= SIDE
    return 64 if small else 16


def _remembered(place: Path | None, images: int) -> ChosenEngine | None:
    """Read what was chosen before; nothing where it was for far fewer images."""
    known = _read(place)
    if known is None:
        return None
    current = known.used in ENGINES and known.version == version(known.used)
    return known if current and images <= MORE * max(known.images, 1) else None


def _settled(place: Path | None) -> ChosenEngine | None:
    """Read what a folder's activations were made by; nothing, with a warning, where that engine is not here in its version."""
    known = _read(place)
    if known is None or known.used not in ENGINES:
        return None
    here = version(known.used)
    if known.key() and known.version != here:
        warnings.warn(
            f"the activations that are kept were made by {known.used} {known.version}, here is {here or 'none'}, so they are not used;"
            f" install {PACKAGES[known.used]}=={known.version} to use them",
            IdnessWarning,
            stacklevel=2,
        )
        return None
    said = "as the activations that are kept were made"
    return known if said in known.why else replace(known, why=f"{known.why}; {said}")


def _read(place: Path | None) -> ChosenEngine | None:
    try:
        return None if place is None else ChosenEngine(**json.loads(place.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _stamp(model: nn.Module) -> Sequence[tuple[int, int]]:
    """Say which state of its weights a network is in: where they are, and how often each was changed."""
    # Before every batch: a walk of our own over the modules' tables takes a fifth of the time that parameters() and buffers() do.
    waiting, seen, held = [model], {id(model)}, []
    while waiting:
        module = waiting.pop()
        held += [
            value for table in (module._parameters, module._buffers) for value in table.values() if value is not None
        ]
        for inner in module._modules.values():
            if inner is not None and id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)
    return [(value.data_ptr(), 0 if value.is_inference() else value._version) for value in held]
