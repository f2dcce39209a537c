"""The training loop: SGD, one rate per step, checkpoints, exact resume; one process or several.

Every random number is a function of (seed, step) or (seed, epoch, image), never of what was drawn before: a run that is killed
and resumed, at any step, ends with the same bits, and several processes draw what one process of their joint batch would draw.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from idness.core.documents import packed
from idness.core.errors import DataError, ModelError, OptionError, StoreError
from idness.core.files import OutputFolder, locked
from idness.core.progress import Listener
from idness.core.wording import without_folder
from idness.networks.modules import best_layout
from idness.networks.run_folder import DIGESTS, IMAGES, WEIGHTS
from idness.training.checkpoint import (
    METHOD,
    load_checkpoint,
    optimizer_tensors,
    part_of,
    restore_optimizer,
    save_checkpoint,
)
from idness.training.fabric import make_fabric
from idness.training.images import Images
from idness.training.log import RunLog
from idness.training.objective import Objective
from idness.training.plan import Plan, mix, seeded
from idness.training.settings import Settings

PREPARE = 512
"""How many training images a method may look at before the first step."""


@dataclass
class Trainer:
    """Trains one objective on one image set; `run` does it all.

    Right answers are counted on `val` after each epoch. Checkpoints, log and weights go to the folder `out`, where there is one.
    `facts` must be the same for a resumed run too; they are kept in the checkpoint and in the weights' metadata.
    `arch` is how the network is named, for that metadata.
    """

    objective: Objective
    train: Images
    settings: Settings
    val: Images | None = None
    out: OutputFolder | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    log: RunLog = field(default_factory=RunLog)
    step: int = 0
    arch: str = ""

    def run(self) -> nn.Module:
        """Train to the end, from the last checkpoint if there is one, and return the network."""
        self.fabric = make_fabric(self.settings.precision)
        self.fabric.launch()
        with locked(self.out.path if self.out is not None and self.fabric.is_global_zero else None):
            if self.out is not None and self.fabric.is_global_zero:
                self.out.check()
            try:
                return self._train()
            except RuntimeError as error:
                # Torch tells of a reader's death with an error of no kind of its own, wherever the loop is at that moment.
                if not str(error).startswith("DataLoader worker"):
                    raise
                raise DataError(
                    "training: a process that reads images was killed; is there too little memory? The same run goes on from its"
                    " last checkpoint: start it again, perhaps with fewer workers="
                ) from error

    def _train(self) -> nn.Module:
        s = self.settings
        rank, world = self.fabric.global_rank, self.fabric.world_size
        self.plan = Plan(len(self.train), s.batch_size, s.accumulate, s.seed, rank, world, self.train.blocks())
        self.per_step, self.steps_per_epoch = self.plan.per_step, self.plan.steps_per_epoch
        if self.steps_per_epoch == 0:
            raise OptionError(
                f"training: {len(self.train)} images are fewer than one batch of {self.per_step}; lower batch_size"
            )
        self.total = s.epochs * self.steps_per_epoch
        self.layout = self._lay_out()
        self._prepare()
        self.named = {name: p for name, p in self.objective.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.SGD(
            self.named.values(),
            lr=s.lr,
            momentum=s.momentum,
            nesterov=s.nesterov and s.momentum > 0,
            weight_decay=s.weight_decay,
        )
        self.module, self.wrapped_optimizer = self.fabric.setup(self.objective, self.optimizer)
        self.fingerprint = self.train.fingerprint() if self.out is not None else ""
        self.ema = self._copy_state() if s.ema is not None else {}
        self._resume()
        if not self.fabric.is_global_zero:
            self.log.listener = Listener()  # one process speaks for all
        self.log.begin(self.step, self.total, self._parameters())
        self.feed = self.train.batches(
            self.plan, self.step, self.total, crops=s.crops, augment=s.augment, view=self.objective.view()
        )
        with torch.random.fork_rng(devices=[]):
            while self.step < self.total:
                self._epoch()
        return self._finish()

    def _prepare(self) -> None:
        """Show the method some training images, if it wants to see any."""
        if type(self.objective).prepare is Objective.prepare:
            return
        some = torch.randperm(len(self.train), generator=seeded(self.settings.seed, "prepare"))[:PREPARE]
        images, labels = zip(*self.train.evaluated(some.tolist()), strict=True)
        self.objective.prepare(torch.cat(images), torch.cat(labels))

    def _lay_out(self) -> torch.memory_format:
        """Lay the weights out as asked, or as the network can take them."""
        if not self.settings.channels_last:
            return torch.contiguous_format
        images = self.objective.normalise(self.train.example() * 255)
        return best_layout(self.objective.model, images, weights=True)

    # One epoch, one step

    def _epoch(self) -> None:
        epoch, done = divmod(self.step, self.steps_per_epoch)
        self.module.train()
        started, self.waited = time.perf_counter(), 0.0
        for position in range(done, self.steps_per_epoch):
            loss, right = self._step()
            self.step += 1
            self._check_sane(math.isfinite(loss))
            self.log.step(loss, right, self.per_step // self.fabric.world_size)
            if self.step % self.settings.checkpoint_every == 0 and position + 1 < self.steps_per_epoch:
                self._checkpoint()
        taken = time.perf_counter() - started
        speed = (self.steps_per_epoch - done) * self.per_step / taken
        rate = self.optimizer.param_groups[0]["lr"]
        self.log.epoch(epoch + 1, self.step, rate, speed, self._accuracy(), self.waited / taken)
        self._checkpoint()
        if problems := self.train.problems():
            self.log.listener.note(
                f"{len(problems)} images could not be read, and their next neighbours were taken instead; the first: {problems[0]}"
            )

    def _step(self) -> tuple[float, int]:
        s = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = s.rate(self.step, self.steps_per_epoch)
        total, right = 0.0, 0
        for part in range(s.accumulate):
            images, labels = self._batch()
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
        self._update_ema()
        return total, right

    def _batch(self) -> tuple[Tensor, Tensor]:
        """Wait for this process's next batch, and lay it out as the network takes it."""
        began = time.perf_counter()
        images, labels = next(self.feed)
        self.waited += time.perf_counter() - began
        if images.ndim == 4:
            images = images.contiguous(memory_format=self.layout)
        return images.to(self.fabric.device), labels.to(self.fabric.device)

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

    # What is learned

    def _copy_state(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.objective.state_dict().items()}

    def _update_ema(self) -> None:
        decay = self.settings.ema
        if decay is None:
            return
        for name, value in self.objective.state_dict().items():
            if value.is_floating_point():
                self.ema[name].lerp_(value, 1 - decay)
            else:
                self.ema[name].copy_(value)

    def _parameters(self) -> list[str]:
        """Describe each parameter group, so that no decay is a surprise."""
        names = {p: name for name, p in self.named.items()}
        return [
            f"{sum(p.numel() for p in g['params']):,} parameters in {len(g['params'])} tensors"
            f" ({names[g['params'][0]]} ... {names[g['params'][-1]]}): lr {self.settings.lr:g}, momentum {g['momentum']:g},"
            f" nesterov {g['nesterov']}, weight decay {g['weight_decay']:g}"
            for g in self.optimizer.param_groups
        ]

    # Checkpoints

    def _identity(self) -> dict[str, Any]:
        return {
            "settings": {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self.settings).items()},
            "world_size": self.fabric.world_size,
            "data": self.fingerprint,
            **self.facts,
        }

    def _check_sane(self, sane: bool) -> None:
        if not sane:
            # Nothing of it is written: what is on disk is from before.
            raise ModelError(
                f"training has diverged: NaN or Inf after step {self.step} of {self.total}; start anew with a lower lr="
            )

    def _checkpoint(self) -> None:
        self._check_sane(all(bool(p.isfinite().all()) for p in self.named.values()))
        if self.out is None:
            return
        if self.fabric.is_global_zero:
            names: dict[Tensor, str] = {p: name for name, p in self.named.items()}
            tensors = {f"objective.{k}": v for k, v in self.objective.state_dict().items()}
            tensors |= {f"momentum.{k}": v for k, v in optimizer_tensors(self.optimizer, names).items()}
            tensors |= {f"ema.{k}": v for k, v in self.ema.items()}
            save_checkpoint(self.out, tensors, self.step, self._identity(), self.log)
        self.fabric.barrier()

    def _resume(self) -> None:
        found = load_checkpoint(self.out.path) if self.out is not None else None
        if found is None:
            return
        index, tensors = found
        then, now = _completed(index.run), self._identity()
        differing = sorted(k for k in then.keys() | now.keys() if then.get(k) != now.get(k))
        if differing:
            raise StoreError(
                f"{self.out}: holds a run with other {', '.join(differing)}; choose another folder or delete it"
            )
        try:
            self.objective.load_state_dict(part_of(tensors, "objective"))
            restore_optimizer(self.optimizer, self.named, part_of(tensors, "momentum"))
            for name, value in part_of(tensors, "ema").items():
                self.ema[name].copy_(value)
        except (RuntimeError, KeyError) as error:
            raise StoreError(
                f"{self.out}: holds a checkpoint of another network; choose another folder or delete it"
            ) from error
        self.step = index.step
        self.log.state = index.log

    def _finish(self) -> nn.Module:
        if self.ema:
            self.objective.load_state_dict(self.ema)
        model = self.objective.finish()
        if self.out is not None and self.fabric.is_global_zero:
            s = self.settings
            how = self.train.preprocessing(s.mean, s.std)
            about = {**self.facts, "mean": s.mean, "std": s.std, "size": how.size, "preprocessing": how.to_dict()}
            about |= {"arch": without_folder(self.arch)} if self.arch else {}
            metadata = {name: json.dumps(value) for name, value in about.items()}
            contents = {
                IMAGES: packed({DIGESTS: torch.from_numpy(self.train.digests().copy())}),
                WEIGHTS: packed(model.state_dict(), metadata),
            }
            own = {k: v for k, v in self.objective.state_dict().items() if not k.startswith("model.")}
            if own:  # what a method learned beside the network: ConfBranch's second head, CIDER's prototypes
                contents[METHOD] = packed(own, metadata)
            self.out.write(contents)
        self.fabric.barrier()
        return model


def _completed(run: dict[str, Any]) -> dict[str, Any]:
    """Add to what an older run was told the defaults of settings that came later."""
    usual = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(Settings()).items()}
    return {**run, "settings": {**usual, **run.get("settings", {})}}
