from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from idness.benchmark.evaluate import score_set
from idness.core.types import Activations
from idness.data.activations import ActivationsSet
from idness.detectors.registry import build
from idness.selection.search import Choice
from tests.worlds import make_world


def shards(acts: Activations, size: int, count: int) -> ActivationsSet:
    """Cut activations as the store does; each image's hash is its place."""
    places = torch.arange(len(acts)).split(size)
    cut = [replace(acts[p], index=p, hashes=p[:, None].to(torch.uint8).expand(-1, 16)) for p in places]
    return ActivationsSet("test", count, lambda: cut, role="id_test")


def test_a_set_scored_in_shards_is_the_set_scored_at_once() -> None:
    world = make_world()
    found = score_set(shards(world.test, 23, 500), {"ebo": Choice(build("ebo").fit(world.head), "given")})
    assert np.allclose(found.scores["ebo"], torch.logsumexp(world.test.logits, dim=1).numpy(), atol=1e-5)
    assert found.index.tolist() == list(range(len(world.test)))
    assert found.predicted.tolist() == world.test.logits.argmax(dim=1).tolist()
    assert found.digests[:, 0].tolist() == list(range(len(world.test)))
