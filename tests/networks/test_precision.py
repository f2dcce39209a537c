from __future__ import annotations

import itertools

import pytest
import tiny_net
import torch

from idness.core.errors import OptionError
from idness.networks import precision
from idness.networks.precision import bf16_problem, choose_precision
from idness.networks.split import SplitModel

IMAGES = torch.rand(16, 3, 8, 8)


@pytest.fixture
def split() -> SplitModel:
    return SplitModel(tiny_net.make(), example=IMAGES[:2])


def test_asked_for(split: SplitModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_precision("fp32", split, IMAGES).used == "fp32"
    monkeypatch.setattr(precision, "bf16_problem", lambda: "")
    assert choose_precision("bf16", split, IMAGES).used == "bf16"
    with pytest.raises(OptionError, match="fp32, bf16, auto"):
        choose_precision("fp16", split, IMAGES)


def test_a_machine_that_cannot_is_told_not_crashed(split: SplitModel, monkeypatch: pytest.MonkeyPatch) -> None:
    bf16_problem.cache_clear()
    monkeypatch.setattr(precision, "PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    found = choose_precision("auto", split, IMAGES)
    assert (found.used, found.why) == ("fp32", "bf16 cannot be used on this machine (the process dies by signal 4)")
    with pytest.raises(OptionError, match="use fp32"):
        choose_precision("bf16", split, IMAGES)
    bf16_problem.cache_clear()


@pytest.mark.parametrize(("slow", "fast", "used"), [(4.0, 1.0, "bf16"), (1.0, 1.0, "fp32"), (1.1, 1.0, "fp32")])
def test_auto_takes_what_is_clearly_faster(
    split: SplitModel, monkeypatch: pytest.MonkeyPatch, slow: float, fast: float, used: str
) -> None:
    monkeypatch.setattr(precision, "bf16_problem", lambda: "")
    monkeypatch.setattr(split, "split", lambda *_, **__: None)
    steps = itertools.accumulate(itertools.chain([0], *[(slow, 0)] * 3, *[(fast, 0)] * 3))
    found = choose_precision("auto", split, IMAGES, clock=lambda: next(steps))
    assert found.used == used
    assert f"{slow / fast:.1f} times as fast" in found.why
