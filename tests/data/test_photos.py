from __future__ import annotations

import csv
import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch

from idness.core.errors import DataError
from idness.data import embedded, open_set
from idness.data.activations import ActivationsFile
from idness.networks.load import load_model

HOME = embedded.HOME / "photos"
COUNTS = {
    "id_train": 1000, "id_val": 200, "id_test": 800, "fruit": 150, "stamps": 174, "textures": 150, "x-rays": 150, "nebulae": 150,
    "maps": 154, "clip-art": 150, "sketches": 150,
}  # fmt: skip


def test_sets_are_as_the_manifest_says() -> None:
    entries = embedded.manifest(root=HOME)["sets"]
    assert {name: entry["count"] for name, entry in entries.items()} == COUNTS
    for name, count in COUNTS.items():
        opened = open_set(f"embedded:photos/{name}")
        assert len(opened) == count
        if not isinstance(opened, ActivationsFile):
            assert np.asarray(opened.picture(0)).shape == (224, 224, 3)
            assert (opened.labels is None) == (not name.startswith("id_"))


def test_no_validation_source_is_tested_and_no_image_has_two_roles() -> None:
    entries: Any = embedded.manifest(root=HOME)["sets"]
    used = {
        role: {entries[name]["package"] for name in embedded.sets(role, root=HOME)}
        for role in ("near", "far", "ood_val")
    }
    assert not used["ood_val"] & (used["near"] | used["far"])
    listed = json.loads((HOME / "images.json").read_text())
    digests = [entry["sha256_16"] for entry in listed.values() if "sha256_16" in entry]
    each = list(
        itertools.chain.from_iterable([text[at : at + 16] for at in range(0, len(text), 16)] for text in digests)
    )
    assert len(each) == len(set(each)) == sum(COUNTS.values()) - COUNTS["id_train"]


def test_every_id_photograph_is_attributed() -> None:
    with (HOME / "ATTRIBUTION.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == COUNTS["id_val"] + COUNTS["id_test"]
    assert all(row["author"] and row["page"].startswith("http") for row in rows)
    assert {row["licence"] for row in rows} == {"https://creativecommons.org/licenses/by/2.0/"}


def test_load_decodes_a_whole_set_and_refuses_activations() -> None:
    found = embedded.load("photos/id_val")
    assert found.images.shape == (200, 224, 224, 3)
    assert found.labels is not None
    assert len(found.classes) == len(set(found.classes)) == 1000
    with pytest.raises(DataError, match="contains activations, not images"):
        embedded.load("photos/id_train")


def test_the_network_classifies_its_photographs() -> None:
    images = open_set("embedded:photos/id_val")
    model = load_model("photos:mobilenet_v2").eval()
    rows = range(0, 200, 8)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in embedded.normalisation("photos"))
    pixels = torch.stack([torch.from_numpy(np.array(images.picture(row))).permute(2, 0, 1) / 255 for row in rows])
    with torch.inference_mode():
        logits = model((pixels - mean) / std)
    right = logits.argmax(1).numpy() == images.labels[list(rows)]
    assert right.mean() >= 0.7


def test_the_network_has_the_weights_of_torchvision() -> None:
    torchvision = pytest.importorskip("torchvision")
    theirs, ours = torchvision.models.mobilenet_v2(), load_model("photos:mobilenet_v2")
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(theirs.eval()(images), ours.eval()(images))
