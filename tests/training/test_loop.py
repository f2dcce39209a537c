from __future__ import annotations

import doctest
import importlib
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from idness.core.errors import ModelError, OptionError, StoreError, UnknownNameError
from idness.core.files import locked
from idness.training import METHODS, Settings, Trained, TrainingSet, finetune, networks
from idness.training.data import seeded
from tests.training.conftest import small_world
from tests.training.runs import Flattening, NoNorm

SAMPLES = Path(__file__).parents[1] / "samples"
QUICK: dict[str, Any] = {"epochs": 3, "batch_size": 8, "lr": 0.01, "milestones": (), "warmup": 0.0}


def start(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return networks.build("tiny_resnet", 3)


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_learns_and_is_deterministic(method: str, world: TrainingSet) -> None:
    runs = [finetune(start(), world, method, val=world, **QUICK) for _ in range(2)]
    assert equal(runs[0].model, runs[1].model)
    first, last = runs[0].log[0], runs[0].log[-1]
    # ConfBranch's loss rises while hints get cheaper or dearer; what it learns shows in the answers.
    assert last.accuracy > first.accuracy if method == "confbranch" else last.loss < first.loss
    assert all(math.isfinite(row.loss) for row in runs[0].log)
    assert not equal(runs[0].model, finetune(start(), world, method, **QUICK, seed=1).model)


def test_ish_differs_from_plain_also_in_mixed_precision(world: TrainingSet) -> None:
    ish, plain = (finetune(start(), world, method, **QUICK, precision="bf16-mixed") for method in ("ish", "plain"))
    assert not equal(ish.model, plain.model)
    assert ish.log[-1].loss < ish.log[0].loss
    assert all(p.dtype == torch.float32 for p in ish.model.parameters())


def test_accumulation_equals_a_larger_batch(world: TrainingSet) -> None:
    models = []
    for options in ({"batch_size": 8}, {"batch_size": 4, "accumulate": 2}):
        torch.manual_seed(0)
        models.append(finetune(NoNorm(), world, "ish", **{**QUICK, **options}).model)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_step_is_sgd_with_nesterov_and_cosine(world: TrainingSet) -> None:
    """Two steps by hand: one epoch of two batches, no augmentation."""
    data = TrainingSet(world.images[:16], world.labels[:16], world.classes)
    torch.manual_seed(0)
    model, twin = NoNorm(), NoNorm()
    twin.load_state_dict(model.state_dict())
    options: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.01, "augment": False, "mean": (0.0,) * 3, "std": (1.0,) * 3}
    finetune(model, data, "plain", epochs=1, batch_size=8, **options)
    order = torch.randperm(16, generator=seeded(0, "order", 0))
    sgd = torch.optim.SGD(twin.parameters(), momentum=0.9, nesterov=True, weight_decay=0.01)
    for step in range(2):
        chosen = order[step * 8 : step * 8 + 8]
        logits = twin(data.images[chosen].permute(0, 3, 1, 2).float() / 255)
        sgd.zero_grad()
        nn.functional.cross_entropy(logits, data.labels[chosen]).backward()
        sgd.param_groups[0]["lr"] = 0.1 * (1 + math.cos(math.pi * step / 2)) / 2
        sgd.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_rates() -> None:
    cosine = Settings(epochs=10, lr=0.003)
    assert cosine.rate(0, 5) == 0.003
    assert cosine.rate(25, 5) == pytest.approx(0.0015)
    assert cosine.rate(49, 5) < 1e-5
    warm = Settings(epochs=10, lr=1.0, warmup=2.0)
    assert [warm.rate(s, 2) for s in range(4)] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert warm.rate(4, 2) == 1.0
    steps = Settings(epochs=10, lr=1.0, milestones=(3, 6), gamma=0.1)
    assert [round(steps.rate(e, 1), 4) for e in (0, 2, 3, 6, 9)] == [1, 1, 0.1, 0.01, 0.01]


def test_ema_is_the_running_mean(world: TrainingSet) -> None:
    last = finetune(start(), world, "plain", **QUICK).model
    near = finetune(start(), world, "plain", **QUICK, ema=0.0).model
    far = finetune(start(), world, "plain", **QUICK, ema=0.99).model
    for (name, a), b, c in zip(
        last.state_dict().items(), near.state_dict().values(), far.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(a, b, msg=name)
        assert a.dtype == c.dtype
    begin = start().fc.weight.detach()
    assert 0 < float((far.fc.weight.detach() - begin).norm()) < float((last.fc.weight.detach() - begin).norm())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "Settings: epochs must be a whole number of at least 1, got 0"),
        ({"lr": -1.0}, "lr must be 0 or more"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\)"),
        ({"precision": "fp8"}, "precision must be one of"),
        ({"batch_size": 1000}, "needs at least one batch of"),
        ({"percent": 90}, "ish: unknown option 'percent'; it takes percentile, prune, layer, the fields"),
        ({"percentile": 0.85}, "percent"),
        ({"lr": float("nan")}, "lr must be a number, got nan"),
        ({"milestones": 5}, "milestones must be a list"),
        ({"seed": "x"}, "seed must be of type int"),
    ],
)
@pytest.mark.fault(
    "training options that are NaN, Inf, or of the wrong type (`--set lr=nan`)", does="one line, before anything runs"
)
def test_wrong_options_are_refused_and_the_plain_layer_is_restored(
    options: dict[str, Any], words: str, world: TrainingSet
) -> None:
    model = start()
    with pytest.raises(OptionError, match=words):
        finetune(model, world, "ish", **options)
    assert type(model.fc) is nn.Linear
    with pytest.raises(UnknownNameError, match="did you mean 'logitnorm'"):
        finetune(model, world, "logitnrm")


def test_run_folder(tmp_path: Path, world: TrainingSet) -> None:
    done = finetune(start(), world, "ish", val=world, out=tmp_path, **QUICK, percentile=70.0)
    weights = load_file(tmp_path / "weights.safetensors")
    assert list(weights) != []
    start(1).load_state_dict(weights)
    assert all(torch.equal(weights[k], v) for k, v in done.model.state_dict().items())
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0] == "epoch,step,lr,loss,accuracy,val_accuracy,images_per_second,waited"
    assert len(lines) == 4
    facts = json.loads((tmp_path / "checkpoint.json").read_text())
    assert facts["step"] == 18
    assert facts["run"]["options"] == {"percentile": 70.0}
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".idness.json",
        "checkpoint-00000018.safetensors",
        "checkpoint.json",
        "images.safetensors",
        "log.csv",
        "weights.safetensors",
    ]
    again = finetune(start(1), world, "ish", val=world, out=tmp_path, **QUICK, percentile=70.0)  # nothing left to do
    assert equal(done.model, again.model)
    assert again.log == done.log


def test_other_settings_or_data_are_refused(tmp_path: Path, world: TrainingSet) -> None:
    finetune(start(), world, "plain", out=tmp_path, **QUICK)
    with pytest.raises(StoreError, match="other settings"):
        finetune(start(), world, "plain", out=tmp_path, **{**QUICK, "lr": 0.02})
    with pytest.raises(StoreError, match="other data"):
        finetune(start(), small_world(seed=1), "plain", out=tmp_path, **QUICK)
    with pytest.raises(StoreError, match="other method"):
        finetune(start(), world, "ish", out=tmp_path, **QUICK)


@pytest.mark.parametrize("harm", ["flip", "lose"])
def test_damaged_checkpoints_are_refused(harm: str, tmp_path: Path, world: TrainingSet) -> None:
    finetune(start(), world, "plain", out=tmp_path, **QUICK)
    tensors = next(tmp_path.glob("checkpoint-*.safetensors"))
    content = bytearray(tensors.read_bytes())
    content[-10] ^= 1
    tensors.unlink()
    if harm == "flip":
        tensors.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged|no checkpoint-"):
        finetune(start(), world, "plain", out=tmp_path, **QUICK)


WITH_CHECKPOINTS: dict[str, Any] = {**QUICK, "ema": 0.9, "checkpoint_every": 4}


@cache
def never_stopped(method: str) -> Trained:
    return finetune(start(), small_world(), method, **WITH_CHECKPOINTS)


@pytest.mark.parametrize("stop", [8, 17])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_stopped_at_any_step_and_resumed_gives_the_same_bits(
    method: str, stop: int, tmp_path: Path, world: TrainingSet, stopped_at: Any
) -> None:
    with stopped_at(stop):
        finetune(start(), world, method, out=tmp_path, **WITH_CHECKPOINTS)
    resumed = finetune(start(1), world, method, out=tmp_path, **WITH_CHECKPOINTS)
    whole = never_stopped(method)
    assert equal(whole.model, resumed.model)
    assert [(r.step, r.loss, r.accuracy) for r in resumed.log] == [(r.step, r.loss, r.accuracy) for r in whole.log]


@pytest.mark.parametrize(("method", "options"), [("ish", {"layer": "fc"}), ("augmix", {})])
def test_networks_that_flatten_with_view_are_trained(method: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Flattening()
    before = model.conv.weight.detach().clone()
    done = finetune(model, small_world(24), method, epochs=1, batch_size=8, **options)
    assert math.isfinite(done.log[-1].loss)
    assert not torch.equal(model.conv.weight, before)


def test_training_that_diverges_fails_and_leaves_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"training: has diverged \(NaN or Inf after step \d of \d\); .* a lower lr="
    with pytest.raises(ModelError, match=message):
        finetune(Flattening(), small_world(24), "plain", out=tmp_path, epochs=1, batch_size=8, lr=1e38)
    assert not list(tmp_path.glob("*.safetensors"))

    def last_step(self: torch.optim.SGD, *_: object, **__: object) -> None:
        self.param_groups[0]["params"][0].data.fill_(math.inf)  # after a loss that was still a number

    monkeypatch.setattr(torch.optim.SGD, "step", last_step)
    with pytest.raises(ModelError, match=message):
        finetune(Flattening(), small_world(8), "plain", out=tmp_path, epochs=1, batch_size=8)
    assert not list(tmp_path.glob("*.safetensors"))


def test_two_trainings_in_one_folder_are_kept_apart(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(StoreError, match="another process is writing to it"):
        finetune(Flattening(), small_world(8), "plain", out=tmp_path, epochs=1, batch_size=8)
    assert not list(tmp_path.iterdir())
    finetune(Flattening(), small_world(8), "plain", out=tmp_path, epochs=1, batch_size=8)
    assert (tmp_path / "weights.safetensors").exists()


@pytest.mark.fault(
    "a run's folder contains the checkpoint of another architecture", does="one line; the folder is unchanged"
)
def test_a_checkpoint_of_another_network_is_told(tmp_path: Path, world: TrainingSet) -> None:
    finetune(start(), world, "plain", out=tmp_path, **QUICK)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    other = start()
    other.fc = nn.Sequential(nn.Linear(other.fc.in_features, 7), nn.Linear(7, other.fc.out_features))
    with pytest.raises(StoreError, match="another network|other network"):
        finetune(other, world, "plain", out=tmp_path, **QUICK)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["ish", "loop"])
def test_examples_in_docstrings_run(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"idness.training.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
