import pytest
import torch

from idness.core.errors import OptionError
from idness.detectors.registry import build, parse, rows
from idness.networks.split import SplitModel
from idness.training import finetune
from tests.training.conftest import small_world
from tests.training.runs import NoNorm


def test_it_reads_the_confidence_that_a_run_has_learned(tmp_path):
    torch.manual_seed(0)
    world = small_world(24)
    done = finetune(NoNorm(), world, "confbranch", out=tmp_path, epochs=2, batch_size=8, lr=0.05, milestones=())
    split = SplitModel(done.model, example=next(world.evaluated([0, 1]))[0] / 255)
    images = done.objective.normalise(world.images.permute(0, 3, 1, 2))
    scores = build("confbranch", run=str(tmp_path)).fit(split.head).score(split.extract([images]))
    with torch.no_grad():
        _, confidence = done.objective.eval().confidence(images)
    torch.testing.assert_close(torch.sigmoid(scores), confidence)
    assert scores.std() > 0
    assert parse(f"confbranch(run={tmp_path})").run == str(tmp_path)


def test_it_is_compared_only_where_its_run_is_named(tmp_path):
    assert "confbranch" not in rows(costly=True)
    head = SplitModel(NoNorm(), example=torch.rand(2, 3, 8, 8)).head
    with pytest.raises(OptionError, match=r"run must be a folder of `idness train --method confbranch`.*got ''"):
        build("confbranch").fit(head)
    finetune(NoNorm(), small_world(8), "confbranch", out=tmp_path, epochs=1, batch_size=8)
    other = type(head)(torch.zeros(3, 7), torch.zeros(3))
    with pytest.raises(OptionError, match="run must belong to this network with 7 features, got 32"):
        build("confbranch", run=str(tmp_path)).fit(other)
