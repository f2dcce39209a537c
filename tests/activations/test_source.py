from __future__ import annotations

from pathlib import Path

import pytest
import torch

from idness.activations.source import given, read_head
from idness.core.errors import DataError, StoreError
from idness.data import ActivationsSet

SAMPLES = Path(__file__).parents[1] / "samples" / "activations-v1"


@pytest.mark.parametrize(("name", "count"), [("known", 24), ("ood", 12)])
def test_files_that_version_0_1_took_are_read(name: str, count: int) -> None:
    head, _ = read_head(SAMPLES / "head.safetensors")
    acts = given(name, "id_test", ActivationsSet(SAMPLES / f"{name}.safetensors")).load()
    assert acts.features.shape == (count, 32)
    assert torch.allclose(head(acts.features), acts.logits, atol=1e-4)
    assert (acts.labels is not None) == (name == "known")


def test_what_is_no_head_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="missing or no safetensors"):
        read_head(tmp_path / "head.safetensors")
    with pytest.raises(StoreError, match="must hold weight"):
        read_head(SAMPLES / "known.safetensors")
