from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from idness import paper
from idness.benchmark.protocol import Settings
from idness.core.types import Activations, Head
from idness.data import embedded
from idness.detectors.registry import build
from idness.metrics import auroc, fpr_at_id_recall
from idness.networks import densenet
from idness.networks.split import SplitModel
from idness.paper.datasets import locate
from idness.paper.reproduce import reproduce

COUNT = 24


@pytest.fixture(scope="module")
def corner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few real images of two sets under their usual names, and an untrained DenseNet."""
    root = tmp_path_factory.mktemp("data")
    known = embedded.load("id_test").images[:: 3000 // COUNT]
    labels = np.arange(len(known)) % 10
    np.savez(root / "cifar10.npz", test_images=known, test_labels=labels)
    np.savez(root / "isun.npz", images=embedded.load("textures").images[:COUNT])
    torch.manual_seed(0)
    torch.save({"state_dict": densenet.DenseNet(10).state_dict()}, root / "densenet101_cifar10.pth.tar")
    return root


def test_a_table_is_reproduced_as_far_as_the_data_goes(corner: Path, tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path / "cache")
    done = reproduce(["cifar10"], [corner], out=tmp_path / "out", settings=settings)
    [outcome] = done.outcomes
    assert outcome.status == "partial"
    assert outcome.images == {"id_test": (COUNT, 10000), "isun": (COUNT, 8925)}

    ours = {(cell.row, cell.column, cell.metric): cell.ours for cell in outcome.measured}
    inside, outside, head = by_hand(corner)
    scale = build("scale", percentile=95).fit(head)
    good, bad = scale.score(inside), scale.score(outside)
    assert ours["SCALE", "iSUN", "auroc"] == pytest.approx(100 * auroc(good, bad), abs=1e-3)
    assert ours["SCALE", "iSUN", "fpr"] == pytest.approx(100 * fpr_at_id_recall(good, bad), abs=1e-3)
    assert ours["SCALE", "average", "auroc"] == ours["SCALE", "iSUN", "auroc"]
    assert ("SCALE", "SVHN", "auroc") not in ours
    # Nothing to learn from was there, so these rows were not run, and nothing is invented for them.
    assert not any(row == "DICE" for row, _, _ in ours)
    assert "needs training images" in outcome.failed["DICE"]
    assert "DICE: not run: needs training images" in done.to_markdown()

    missing = {item.name: item for item in outcome.sets if not item.available}
    assert "64 MB" in missing["svhn"].size
    assert str(corner) in missing["svhn"].command
    assert "weights" not in missing
    assert "id_train" in missing

    for name in ("reproduce.json", "reproduce.md", "cifar10/results.json", "cifar10/report.html"):
        assert (tmp_path / "out" / name).is_file()
    assert str(corner) not in (tmp_path / "out" / "cifar10" / "results.json").read_text()


def by_hand(corner: Path) -> tuple[Activations, Activations, Head]:
    model = densenet.DenseNet(10).eval()
    model.load_state_dict(torch.load(corner / "densenet101_cifar10.pth.tar", weights_only=True)["state_dict"])
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    split = SplitModel(model, "fc")

    def run(images: np.ndarray) -> Activations:
        pixels = (torch.from_numpy(images).float() / 255 - mean) / std
        return split.split(pixels.permute(0, 3, 1, 2))

    inside = run(np.load(corner / "cifar10.npz")["test_images"])
    return inside, run(np.load(corner / "isun.npz")["images"]), split.head


def test_all_tables_answer_without_any_data(tmp_path: Path) -> None:
    done = reproduce([], [tmp_path], out=tmp_path / "out", settings=Settings(cache=tmp_path / "cache"))
    assert [outcome.table.name for outcome in done.outcomes] == paper.names()
    for outcome in done.outcomes:
        assert outcome.status == "not reproduced"
        assert not all(item.available for item in outcome.sets)
        assert outcome.entries
    tables = json.loads((tmp_path / "out" / "reproduce.json").read_text())["tables"]
    assert len(tables) == len(paper.names())
    assert "idness train" in tables["training"]["missing"][-1]["command"]
    page = (tmp_path / "out" / "reproduce.md").read_text()  # with the paper's own numbers
    assert "| SCALE | 5.80 / 98.72 | 0.73 / 99.74 |" in page
    assert "| SSB-hard | 0.262 |" in page


def test_the_table_of_averages_follows_from_the_two_it_averages(corner: Path, tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path / "cache")
    done = reproduce(["cifar", "cifar10"], [corner], out=tmp_path / "out", settings=settings)
    averages, single = done.outcomes
    for cell in averages.measured:
        same = next(c for c in single.entries if (c.row, c.column, c.metric) == (cell.row, "average", cell.metric))
        assert (cell.column, cell.ours, cell.theirs, cell.sets) == ("CIFAR-10", same.ours, same.theirs, same.sets)
    assert averages.measured


def test_sets_may_lie_in_several_folders(corner: Path, tmp_path: Path) -> None:
    (tmp_path / "LSUN").mkdir()
    Image.fromarray(embedded.load("cat").images[0]).save(tmp_path / "LSUN" / "a.png")
    where = locate("cifar10", [tmp_path, corner])
    found = {item.name: item for item in where.sets}
    assert (found["lsun-c"].found, found["lsun-c"].expected) == (1, 10000)
    assert found["isun"].found == COUNT
    assert where.weights == corner / "densenet101_cifar10.pth.tar"
    assert not found["svhn"].available
