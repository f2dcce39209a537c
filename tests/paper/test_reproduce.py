from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from idness import paper
from idness.benchmark.settings import Settings
from idness.core.errors import UnknownNameError
from idness.core.progress import Listener
from idness.core.types import Activations, Head
from idness.data import embedded
from idness.detectors.registry import build
from idness.metrics import auroc, fpr_at_id_recall
from idness.networks import densenet
from idness.networks.split import SplitModel
from idness.paper.locate import locate
from idness.paper.reproduce import reproduce

COUNT = 24


class Phases(Listener):
    """Remembers which phases began."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def phase(self, name: str, total: int) -> None:
        self.names.append(name)


@pytest.fixture(scope="module")
def corner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few real images of two sets under their usual names, and an untrained DenseNet."""
    root = tmp_path_factory.mktemp("data")
    known = embedded.load("id_test").images[:: 3000 // COUNT]
    labels = np.arange(len(known)) % 10
    np.savez(root / "cifar10.npz", test_images=known, test_labels=labels)
    np.savez(root / "isun.npz", images=embedded.load("textures").images[:COUNT])
    torch.manual_seed(0)
    torch.save({"state_dict": densenet.cifar10().state_dict()}, root / "densenet101_cifar10.pth.tar")
    return root


def test_a_table_is_reproduced_as_far_as_the_data_goes(corner: Path, tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path / "cache")
    heard = Phases()
    done = reproduce(["cifar10"], [corner], out=tmp_path / "out", settings=settings, listener=heard)
    [outcome] = done.outcomes
    assert outcome.status == "in part"
    assert outcome.images == {"id_test": (COUNT, 10000), "isun": (COUNT, 8925)}
    assert "network" in heard.names

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
    assert "these learn from training images" in outcome.failed["DICE"]
    assert "- DICE: not run: these learn" in done.to_markdown()

    missing = {gap.name: gap for gap in outcome.missing}
    assert "64 MB" in missing["svhn"].size
    assert str(corner) in missing["svhn"].command
    assert "weights" not in missing
    assert "id_train, id_val" in missing

    for name in ("reproduce.json", "reproduce.md", "cifar10/results.json", "cifar10/report.html"):
        assert (tmp_path / "out" / name).is_file()
    assert str(corner) not in (tmp_path / "out" / "cifar10" / "results.json").read_text()

    again = Phases()
    second = reproduce(["cifar10"], [corner], out=tmp_path / "out", settings=settings, listener=again)
    assert second.to_json() == done.to_json()
    assert again.names == []  # neither network nor scores: the report was there

    np.savez(corner / "isun.npz", images=embedded.load("textures").images[COUNT : 2 * COUNT])
    changed = Phases()
    third = reproduce(["cifar10"], [corner], out=tmp_path / "out", settings=settings, listener=changed)
    assert "network" in changed.names
    assert third.to_json() != done.to_json()


def by_hand(corner: Path) -> tuple[Activations, Activations, Head]:
    model = densenet.cifar10().eval()
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
        assert outcome.missing
        assert outcome.entries
    tables = json.loads((tmp_path / "out" / "reproduce.json").read_text())["tables"]
    assert len(tables) == len(paper.names())
    assert "idness train" in tables["training"]["missing"][-1]["command"]


def test_the_table_of_averages_follows_from_the_two_it_averages(corner: Path, tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path / "cache")
    done = reproduce(["cifar", "cifar10"], [corner], out=tmp_path / "out", settings=settings)
    averages, single = done.outcomes
    for cell in averages.measured:
        same = next(c for c in single.entries if (c.row, c.column, c.metric) == (cell.row, "average", cell.metric))
        assert (cell.column, cell.ours, cell.theirs, cell.parts) == ("CIFAR-10", same.ours, same.theirs, same.parts)
    assert averages.measured


def test_sets_may_lie_in_several_folders(corner: Path, tmp_path: Path) -> None:
    (tmp_path / "LSUN").mkdir()
    Image.fromarray(embedded.load("cat").images[0]).save(tmp_path / "LSUN" / "a.png")
    where = locate("cifar10", [tmp_path, corner])
    assert where.images["lsun-c"] == (1, 10000)
    assert where.images["isun"][0] == COUNT
    assert where.weights == corner / "densenet101_cifar10.pth.tar"
    assert not where.complete


def test_unknown_tables_are_told() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'cifar10'"):
        reproduce(["cifar-10"])


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OpenOOD's folders with a few images, an untrained ResNet-50 under its public name, and one as ISH leaves it."""
    models = pytest.importorskip("torchvision.models")
    root = tmp_path_factory.mktemp("imagenet")
    lists = root / "benchmark_imglist" / "imagenet"
    lists.mkdir(parents=True)
    for place, name in enumerate(("imagenet", "ssb_hard", "ninco", "inaturalist", "textures", "openimage_o")):
        folder = root / "images_largescale" / name
        folder.mkdir(parents=True)
        lines = []
        for index, image in enumerate(embedded.load("frog").images[2 * place : 2 * place + 2]):
            Image.fromarray(image).save(folder / f"{index}.png")
            lines.append(f"{name}/{index}.png {index if name == 'imagenet' else -1}")
        (lists / f"test_{name}.txt").write_text("\n".join(lines) + "\n")
    for seed, path in enumerate(("resnet50-0676ba61.pth", "ish/weights.safetensors")):
        torch.manual_seed(seed)
        state = models.resnet50(weights=None).state_dict()
        (root / path).parent.mkdir(exist_ok=True)
        torch.save(state, root / path) if path.endswith(".pth") else save_file(state, root / path)
    return root


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_training_row_has_the_network_of_its_own(imagenet: Path, tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path / "cache")
    wanted = ["training", "imagenet-sets", "chi_square"]
    done = reproduce(wanted, [imagenet], out=tmp_path / "out", settings=settings)
    training, sets, chi_square = done.outcomes
    ours = {(cell.row, cell.column, cell.metric): cell.ours for cell in training.entries}
    plain = {(cell.row, cell.column, cell.metric): cell.ours for cell in sets.entries}
    assert ours["TorchVision Model", "near", "auroc"] == plain["SCALE", "near", "auroc"] is not None
    assert ours["ISH", "near", "auroc"] is not None
    assert (tmp_path / "out" / "imagenet-ish" / "results.json").is_file()
    # Rows whose network is not there have no number, though another row used the same method.
    for row in ("RegMixup", "AugMix", "TorchVision Model Extended", "LogitNorm"):
        assert ours[row, "near", "auroc"] is None
    lacking = " ".join(gap.name for gap in training.missing)
    assert "weights of AugMix" in lacking
    assert "weights of ISH" not in lacking
    assert [cell.column for cell in chi_square.measured] == list(paper.load("chi_square").values)
    heard = Phases()
    again = reproduce(wanted, [imagenet], out=tmp_path / "out", settings=settings, listener=heard)
    assert again.to_json() == done.to_json()
    assert heard.names == []


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_papers_network_on_some_of_its_images(shared_data: Path, tmp_path: Path) -> None:
    """Images to table on the first 200 of each set; the activations of the same images give the expected numbers."""
    archive = Path(__file__).parents[2] / ".data" / "cifar10.npz"
    if not archive.is_file():
        pytest.skip("no .data/cifar10.npz; tools/fetch.py brings it")
    count = 200
    with np.load(archive) as arrays:
        images, labels = arrays["test_images"][:count], arrays["test_labels"][:count]
    np.savez(tmp_path / "cifar10.npz", test_images=images, test_labels=labels)
    np.savez(tmp_path / "isun.npz", images=np.load(shared_data / "isun.npz")["images"][:count])
    settings = Settings(cache=tmp_path / "cache", weights=shared_data / "densenet101_cifar10.pth.tar")
    [outcome] = reproduce(["cifar10"], [tmp_path], out=tmp_path / "out", settings=settings).outcomes
    ours = {(cell.row, cell.metric): cell.ours for cell in outcome.measured if cell.column == "iSUN"}
    head = Head(**load_file(shared_data / "activations" / "head.safetensors"))
    parts = [load_file(shared_data / "activations" / f"{name}.safetensors") for name in ("cifar10_test", "isun")]
    inside, outside = (Activations(part["features"][:count], part["logits"][:count]) for part in parts)
    for row, spec in (("EBO", build("ebo")), ("SCALE", build("scale", percentile=95)), ("MSP", build("msp"))):
        detector = spec.fit(head)
        good, bad = detector.score(inside), detector.score(outside)
        assert ours[row, "auroc"] == pytest.approx(100 * auroc(good, bad), abs=0.02)
        assert ours[row, "fpr"] == pytest.approx(100 * fpr_at_id_recall(good, bad), abs=0.51)
