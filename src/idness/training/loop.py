"""The training loop: SGD with one learning rate per step, checkpoints and exact resumption, in one or several processes.

Every random number is a function of (seed, step) or (seed, epoch, image), never of earlier draws: a run that is killed and resumed
at any step ends with identical results, and several processes draw what a single one with their joint batch would draw.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import time
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from idness.core.documents import Document, packed
from idness.core.errors import DataError, ModelError, OptionError, StoreError, needed, unknown_name
from idness.core.files import OutputFolder, locked, sha256_of
from idness.core.progress import Progress, show_progress
from idness.core.text import without_folder
from idness.data import Preprocessing, preprocessing_for
from idness.networks.architectures import SmallResNet
from idness.networks.engines import keep_memory
from idness.networks.load import DIGESTS, IMAGES, LOG, WEIGHTS
from idness.networks.modules import best_layout
from idness.networks.split import final_linear
from idness.training.data import Images, Plan, mix, seeded
from idness.training.objective import CIFAR_MEAN, CIFAR_STD, METHODS, Objective, Settings

PREPARE = 512
"""Maximum number of training images from which a method is initialised."""
INDEX, METHOD = "checkpoint.json", "method.safetensors"
CHECKPOINT = re.compile(r"checkpoint-\d{8,}\.safetensors")


@dataclass(frozen=True)
class Epoch:
    """A row of the log; accuracies are fractions in [0, 1], and `waited` is the fraction of time spent waiting for images."""

    epoch: int
    step: int
    lr: float
    loss: float
    accuracy: float
    val_accuracy: float | None
    images_per_second: float
    waited: float = 0.0


@dataclass
class LogState:
    """The rows of the log, and the running sums of the current epoch."""

    rows: list[Epoch] = field(default_factory=list)
    loss_sum: float = 0.0
    right: int = 0
    seen: int = 0
    steps: int = 0


@dataclass(frozen=True)
class Index:
    """The JSON part of a checkpoint: the file of tensors and its hash, the number of steps done, the run's identity, and the log."""

    tensors: str
    sha256: str
    step: int
    run: dict[str, Any]
    log: LogState


_REMEDY = "delete the folder to start again"
# The loss of a diverged run of 0.1 is not finite.
_DOCUMENT = Document(content=Index, version=1, absent=_REMEDY, remedy=_REMEDY, finite=False)


def run_folder(path: str | os.PathLike[str], *, force: bool = False) -> OutputFolder:
    """Return the output folder of a training run; folders of 0.1.0 are recognised by their checkpoint."""

    def written(folder: Path) -> tuple[str, ...]:
        try:
            return (INDEX, Path(_DOCUMENT.read(folder / INDEX).tensors).name, LOG, WEIGHTS, IMAGES, METHOD)
        except StoreError:
            return ()

    return OutputFolder.of(path, written, force=force)


def load_checkpoint(folder: Path) -> tuple[Index, dict[str, Tensor]] | None:
    """Return the last checkpoint in a folder; `None` if there is none."""
    if not (folder / INDEX).is_file():
        return None
    index = _DOCUMENT.read(folder / INDEX)
    return index, _DOCUMENT.tensors(folder / Path(index.tensors).name, index.sha256)


@dataclass(frozen=True)
class Trained:
    """The result of a run: the network, the log, the settings, and the trained method."""

    model: nn.Module
    log: list[Epoch]
    settings: Settings
    objective: Objective


def finetune(
    model: nn.Module,
    data: Images,
    method: str = "ish",
    *,
    val: Images | None = None,
    out: str | os.PathLike[str] | None = None,
    arch: str = "",
    device: str = "auto",
    progress: bool | Progress = False,
    **options: Any,
) -> Trained:
    """Train a classifier in place with one of the training methods, using the recipe of its paper unless options override it.

    With `out`, checkpoints, log.csv and weights.safetensors are written there, and an interrupted run resumes from its last
    checkpoint with the same result. Unless `mean` and `std` are given, images are normalised as defined by the network's attribute
    `preprocessing`, torchvision or timm; a network without such a definition gets values in [0, 1].

    Args:
        model: any classifier that ends in a linear layer.
        data: training images.
        method: name of the training method.
        val: images on which accuracy is measured after each epoch.
        out: folder of the run: new, empty, or that of an earlier run.
        arch: the network's name; stored with the weights so that every command accepts the folder as a network.
        device: `cpu`, `cuda`, or `auto` for a GPU if available.
        progress: whether to show progress on standard error, or a progress callback.
        options: fields of `Settings`, and the method's own options.

    Returns:
        The trained network with the log.

    Raises:
        OptionError: if an option is unknown or out of range.
        ModelError: if the network has no final linear layer, or training diverges.
        StoreError: if `out` contains a run with other settings, data or network.

    Example:
        >>> import torch
        >>> from idness.training import TrainingSet, finetune, networks
        >>> images = torch.randint(0, 256, (16, 8, 8, 3), dtype=torch.uint8)
        >>> data = TrainingSet(images, torch.arange(16) % 2, ("cat", "dog"))
        >>> done = finetune(networks.build("tiny_resnet", 2), data, "ish", epochs=2, batch_size=8)
        >>> done.log[-1].step
        4
    """
    if method not in METHODS:
        raise unknown_name("training method", method, METHODS)
    kind = METHODS[method]
    folder = None if out is None else run_folder(out)
    chosen = {option.name: options.pop(option.name) for option in fields(Settings) if option.name in options}
    settings = Settings(**{**_normalisation(model, arch, folder), **kind.recipe, **chosen})
    known = [option.name for option in fields(kind) if option.init and option not in fields(Objective)]
    if unknown := sorted(options.keys() - set(known)):
        takes = ", ".join([*known, "the fields of training.Settings"])
        raise OptionError(f"{method}: unknown option {unknown[0]!r}; it takes {takes}")
    # Searched with images of the right size, since many networks accept no other.
    found = (
        {"layer": final_linear(model, example=_two(data) / 255)[1]} if "layer" in set(known) - options.keys() else {}
    )
    objective = kind(model, len(data.classes), settings.mean, settings.std, **found, **options)
    facts = {"method": method, "options": options, "classes": list(data.classes)}
    with show_progress(quiet=isinstance(progress, Progress) or not progress) as bars:
        report = progress if isinstance(progress, Progress) else bars
        trainer = Trainer(objective, data, settings, val, folder, facts, report, arch=arch, device=device)
        try:
            trained = trainer.run()
        except BaseException:
            objective.finish()  # after an error, the network must not keep a layer of the training method
            raise
    return Trained(trained, trainer.log.rows, settings, objective)


def _two(images: Images) -> Tensor:
    """Return up to two images as a batch (N, 3, H, W) of uint8."""
    return next(images.evaluated(range(min(2, len(images)))))[0].contiguous()


def _normalisation(model: nn.Module, arch: str, folder: OutputFolder | None) -> dict[str, tuple[float, ...]]:
    """Return mean and std: those of the run to resume, else the network's own."""
    found = None if folder is None else load_checkpoint(folder.path)
    if found is not None:
        stored = found[0].run.get("settings", {})
        return {name: tuple(stored[name]) for name in ("mean", "std") if name in stored}
    usual = Preprocessing(mean=CIFAR_MEAN, std=CIFAR_STD) if isinstance(model, SmallResNet) else Preprocessing()
    own = preprocessing_for(model, arch, "none") or usual
    return {"mean": own.mean, "std": own.std}


def make_fabric(precision: str, device: str = "auto") -> Any:
    """Return Lightning Fabric for this process, which runs alone or was started by torchrun."""
    fabric = needed("lightning_fabric", "training", "train")
    gpu = device != "cpu" and torch.cuda.is_available()
    if precision == "auto":  # CPUs may report bf16 support that makes training slower
        precision = "32-true" if not gpu else "bf16-mixed" if torch.cuda.is_bf16_supported() else "16-mixed"
    world, local = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    several: dict[str, Any] = {"devices": 1}
    if "TORCHELASTIC_RUN_ID" in os.environ and world > 1:
        strategy = fabric.strategies.DDPStrategy(process_group_backend=None if gpu else "gloo")
        several = {"devices": local, "num_nodes": world // local, "strategy": strategy}
    return fabric.Fabric(accelerator=device, precision=precision, **several)


@dataclass
class Trainer:
    """The training of one objective on one set of images, started by `run`.

    `facts` must be the same in a resumed run, like settings and images; they are stored with checkpoints and weights.
    """

    objective: Objective
    train: Images
    settings: Settings
    val: Images | None = None
    out: OutputFolder | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    arch: str = ""
    device: str = "auto"
    step: int = field(default=0, init=False)
    log: LogState = field(default_factory=LogState, init=False)

    def run(self) -> nn.Module:
        """Train to the end, from the last checkpoint if any, and return the network."""
        self.fabric = make_fabric(self.settings.precision, self.device)
        self.fabric.launch()
        if self.fabric.device.type == "cpu":
            keep_memory()  # saves a fifth of the time of a step
        if not self.fabric.is_global_zero:
            self.progress = Progress()
        own = self.out if self.fabric.is_global_zero else None
        with locked(None if own is None else own.path):
            if own is not None:
                own.check()
            try:
                return self._train()
            except RuntimeError as error:
                # Torch has no specific error type for a killed worker.
                if not str(error).startswith("DataLoader worker"):
                    raise
                raise DataError(
                    "training: a worker process that reads images was killed, possibly for lack of memory;"
                    " run the same command again to resume, with fewer workers= if needed"
                ) from error

    def _train(self) -> nn.Module:
        s, train, note = self.settings, self.train, self.progress.note
        rank, world = self.fabric.global_rank, self.fabric.world_size
        self.plan = Plan(len(train), s.batch_size, s.accumulate, s.seed, rank, world, train.blocks)
        self.steps_per_epoch = self.plan.steps_per_epoch
        if self.steps_per_epoch == 0:
            few = f"needs at least one batch of {self.plan.per_step} images, got {len(train)}"
            raise OptionError(f"training: {few}; lower batch_size")
        self.total = s.epochs * self.steps_per_epoch
        note(f"{len(train):,} training images of {len(train.classes)} classes")
        self.progress.phase("preparing", None)
        self.layout = torch.contiguous_format
        if s.channels_last:
            self.layout = best_layout(self.objective.model, self.objective.normalise(_two(train)))
        if type(self.objective).prepare is not Objective.prepare:
            some = torch.randperm(len(train), generator=seeded(s.seed, "prepare"))[:PREPARE]
            images, labels = zip(*train.evaluated(some.tolist()), strict=True)
            self.objective.prepare(torch.cat(images), torch.cat(labels))
        self.named = {name: p for name, p in self.objective.named_parameters() if p.requires_grad}
        nesterov = s.nesterov and s.momentum > 0
        sgd: dict[str, Any] = {"lr": s.lr, "momentum": s.momentum, "nesterov": nesterov, "weight_decay": s.weight_decay}
        self.optimizer = torch.optim.SGD(self.named.values(), **sgd)
        self.module, self.wrapped_optimizer = self.fabric.setup(self.objective, self.optimizer)
        self.ema = self._copy_state() if s.ema is not None else {}
        fingerprint = train.fingerprint() if self.out is not None else ""
        self.identity = {"settings": _plain(s), "world_size": world, "data": fingerprint, **self.facts}
        self._resume()
        if self.step:
            note(f"resuming at step {self.step:,} of {self.total:,}")
        self.progress.phase("steps", self.total)
        self.progress.advance(self.step)
        crops = s.crops if s.augment else ""
        self.feed = train.batches(self.plan, self.step, self.total, crops, self.objective.view())
        with torch.random.fork_rng(devices=[]):
            while self.step < self.total:
                self._epoch()
        return self._finish()

    def _epoch(self) -> None:
        epoch, done = divmod(self.step, self.steps_per_epoch)
        self.module.train()
        started, self.waited = time.perf_counter(), 0.0
        for position in range(done, self.steps_per_epoch):
            loss, right = self._step()
            self.step += 1
            self._check_sane(math.isfinite(loss))
            log = self.log
            log.loss_sum, log.right, log.steps = log.loss_sum + loss, log.right + right, log.steps + 1
            log.seen += self.plan.per_step // self.fabric.world_size
            self.progress.advance(1)
            self.progress.status(f"loss {log.loss_sum / log.steps:.3f}  accuracy {log.right / log.seen:.1%}")
            if self.step % self.settings.checkpoint_every == 0 and position + 1 < self.steps_per_epoch:
                self._checkpoint()
        taken = time.perf_counter() - started
        speed, waited = (self.steps_per_epoch - done) * self.plan.per_step / taken, self.waited / taken
        log, val, rate = self.log, self._accuracy(), self.optimizer.param_groups[0]["lr"]
        loss, accuracy = log.loss_sum / log.steps, log.right / log.seen
        row = Epoch(epoch + 1, self.step, rate, loss, accuracy, val, round(speed, 1), round(waited, 4))
        self.log = LogState([*log.rows, row])
        shown = f"loss {loss:.4f}  accuracy {accuracy:.2%}" + ("" if val is None else f"  validation {val:.2%}")
        self.progress.note(f"epoch {epoch + 1}: {shown}  {speed:,.0f} images/s, {waited:.1%} waiting")
        self._checkpoint()

    def _step(self) -> tuple[float, int]:
        s = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = s.rate(self.step, self.steps_per_epoch)
        total, right = 0.0, 0
        for part in range(s.accumulate):
            began = time.perf_counter()
            images, labels = next(self.feed)
            self.waited += time.perf_counter() - began
            if images.ndim == 4:
                images = images.contiguous(memory_format=self.layout)
            images, labels = images.to(self.fabric.device), labels.to(self.fabric.device)
            torch.manual_seed(mix(s.seed, "method", self.step, part * self.fabric.world_size + self.fabric.global_rank))
            last = part == s.accumulate - 1
            with self.fabric.no_backward_sync(self.module, enabled=not last and self.fabric.world_size > 1):
                outcome = self.module(images, labels)
                self.fabric.backward(outcome.loss / s.accumulate)
            total += float(outcome.loss.detach()) / s.accumulate
            right += int((outcome.logits.detach().argmax(1) == labels).sum())
        if s.clip is not None:
            self.fabric.clip_gradients(self.module, self.wrapped_optimizer, max_norm=s.clip)
        self.wrapped_optimizer.step()
        self.wrapped_optimizer.zero_grad()
        self.objective.after_step()
        state = self.objective.state_dict() if self.ema else {}
        for name, mean in self.ema.items():
            if mean.is_floating_point():
                mean.lerp_(state[name], 1 - (s.ema or 0.0))
            else:
                mean.copy_(state[name])
        return total, right

    def _accuracy(self) -> float | None:
        if self.val is None:
            return None
        kept = self._copy_state()
        if self.ema:
            self.objective.load_state_dict(self.ema)
        self.objective.eval()
        mine = range(self.fabric.global_rank, len(self.val), self.fabric.world_size)
        right = torch.zeros((), dtype=torch.int64, device=self.fabric.device)
        with torch.no_grad():
            for images, labels in self.val.evaluated(mine):
                logits = self.objective.model(self.objective.normalise(images.to(self.fabric.device)))
                right += (logits.argmax(1) == labels.to(logits.device)).sum()
        if self.ema:
            self.objective.load_state_dict(kept)
        return int(self.fabric.all_reduce(right, reduce_op="sum")) / len(self.val)

    def _copy_state(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.objective.state_dict().items()}

    def _check_sane(self, sane: bool) -> None:
        if not sane:  # nothing is written, so files on disk are from before
            where = f"step {self.step} of {self.total}"
            raise ModelError(f"training: has diverged (NaN or Inf after {where}); start again with a lower lr=")

    def _checkpoint(self) -> None:
        """Write tensors, index and log; if killed at any time, either the previous checkpoint or this one is complete."""
        self._check_sane(all(bool(p.isfinite().all()) for p in self.named.values()))
        if self.out is None:
            return
        if self.fabric.is_global_zero:
            tensors = {f"objective.{k}": v for k, v in self.objective.state_dict().items()}
            momentum = {k: self.optimizer.state.get(p, {}).get("momentum_buffer") for k, p in self.named.items()}
            tensors |= {f"momentum.{k}": v for k, v in momentum.items() if v is not None}
            tensors |= {f"ema.{k}": v for k, v in self.ema.items()}
            name, content = f"checkpoint-{self.step:08d}.safetensors", packed(tensors)
            table = io.StringIO()
            writer = csv.DictWriter(table, [option.name for option in fields(Epoch)], lineterminator="\n")
            writer.writeheader()
            for row in map(asdict, self.log.rows):
                writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
            index = _DOCUMENT.text(Index(name, sha256_of(content), self.step, self.identity, self.log))
            self.out.write({name: content, INDEX: index, LOG: table.getvalue()})
            self.out.remove(old for old in self.out.files if CHECKPOINT.fullmatch(old) and old != name)
        self.fabric.barrier()

    def _resume(self) -> None:
        found = load_checkpoint(self.out.path) if self.out is not None else None
        if found is None:
            return
        index, tensors = found
        # A run of an older version lacks settings that were added later, whose defaults it used.
        then = {**index.run, "settings": {**_plain(Settings()), **index.run.get("settings", {})}}
        differing = sorted(k for k in then.keys() | self.identity.keys() if then.get(k) != self.identity.get(k))
        if differing:
            raise StoreError(f"{self.out}: contains a run with other {', '.join(differing)}; choose another folder")
        parts: dict[str, dict[str, Tensor]] = {"objective": {}, "momentum": {}, "ema": {}}
        for name, value in tensors.items():
            parts[name.partition(".")[0]][name.partition(".")[2]] = value
        try:
            self.objective.load_state_dict(parts["objective"])
            for name, value in parts["momentum"].items():
                parameter = self.named[name]  # the buffer adopts its memory format
                self.optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(value)
            for name, value in parts["ema"].items():
                self.ema[name].copy_(value)
        except (RuntimeError, KeyError) as error:
            raise StoreError(f"{self.out}: contains a checkpoint of another network; choose another folder") from error
        self.step, self.log = index.step, index.log

    def _finish(self) -> nn.Module:
        if self.ema:
            self.objective.load_state_dict(self.ema)
        model = self.objective.finish()
        if self.out is not None and self.fabric.is_global_zero:
            how = replace(self.train.how, mean=tuple(self.settings.mean), std=tuple(self.settings.std))
            about = {**self.facts, "preprocessing": how.to_dict()}
            about |= {"arch": without_folder(self.arch)} if self.arch else {}
            metadata = {name: json.dumps(value) for name, value in about.items()}
            contents = {
                IMAGES: packed({DIGESTS: torch.from_numpy(self.train.digests().copy())}),
                WEIGHTS: packed(model.state_dict(), metadata),
            }
            own = {k: v for k, v in self.objective.state_dict().items() if not k.startswith("model.")}
            if own:  # tensors of the method itself: ConfBranch's second head, CIDER's prototypes
                contents[METHOD] = packed(own, metadata)
            self.out.write(contents)
        self.fabric.barrier()
        return model


def _plain(settings: Settings) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(settings).items()}
