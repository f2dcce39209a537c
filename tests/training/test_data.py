"""Training images in memory and streamed: reading, order, augmentation, workers and processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from socket import socket
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.transforms import v2

from idness.core.errors import DataError, ModelError, UnknownNameError
from idness.data import Preprocessing, decode, folder_set, open_set
from idness.data.sets import FileSet
from idness.networks import architectures
from idness.training import StreamedSet, TrainingSet, finetune, open_training
from idness.training.data import MIXED, Plan, crop_flip, mix
from tests.training.runs import SCRIPT, NoNorm, streamed_run
from tests.training.small_imagenet import WNIDS, as_parquet, small_imagenet
from tests.training.test_loop import equal

HOW = Preprocessing(resize=40, crop=32)
QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.01, "milestones": (), "warmup": 0.0, "crops": "resized"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_imagenet(tmp_path_factory.mktemp("imagenet") / "train")


def streamed(root: Path, workers: int = 0) -> StreamedSet:
    return StreamedSet(folder_set(root), HOW, workers)


def start() -> nn.Module:
    torch.manual_seed(0)
    return architectures.build("tiny_resnet", 5)


def first_batches(images: StreamedSet, plan: Plan, **options: Any) -> list[Tensor]:
    return [batch for batch, _ in images.batches(plan, 0, 3, **options)]


def folder(root: Path, size: tuple[int, int] = (8, 8)) -> Path:
    for label, name in enumerate(("ant", "bee")):
        (root / name).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", size, (label * 100, i * 10, 5)).save(root / name / f"{i}.png")
    return root


def test_a_folder_is_read_into_memory(tmp_path: Path) -> None:
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    _, found, _ = open_training(str(folder(tmp_path)), "tiny_resnet")
    assert found.classes == ("ant", "bee")
    assert found.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.images.shape == (6, 8, 8, 3)
    assert found.images[4, 0, 0].tolist() == [100, 10, 5]
    Image.new("RGB", (20, 10)).save(tmp_path / "ant" / "wide.png")
    with pytest.raises(DataError, match=r"2 sizes \(8 x 8, 20 x 10\).*set size="):
        open_training(str(tmp_path), "tiny_resnet")
    assert open_training(str(tmp_path), "tiny_resnet", size=16)[1].images.shape == (7, 16, 16, 3)


def test_an_unreadable_image_stops_training_and_is_named(tmp_path: Path) -> None:
    good, broken = folder(tmp_path / "good"), folder(tmp_path / "broken")
    file = broken / "ant" / "2.png"
    file.write_bytes(file.read_bytes()[:40])
    message = r"ant/2.png: [^\n]*; repair or remove this image$"
    with pytest.raises(DataError, match=message):
        open_training(str(good), "tiny_resnet", val=str(broken))
    for workers in (0, 2):
        images = StreamedSet(folder_set(broken), Preprocessing(crop=8), workers)
        with pytest.raises(DataError, match=message) as caught:
            list(images.batches(Plan(6, 3), 0, 2))
        assert "\n" not in str(caught.value)
    (good / "cow").mkdir()
    with pytest.raises(DataError, match="no images in cow"):
        open_training(str(good), "tiny_resnet")
    with pytest.raises(DataError, match="does not exist|no such"):
        open_training(str(tmp_path / "nowhere"), "tiny_resnet")


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (torch.zeros(2, 4, 4, 3), torch.tensor([0, 1]), "uint8"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.tensor([0]), "one per image"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), torch.tensor([0, 2]), "labels must be whole numbers from 0 to 1"),
        (torch.zeros(0, 4, 4, 3, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64), "N at least 1"),
    ],
)
def test_wrong_arrays_are_refused(images: Tensor, labels: Tensor, words: str) -> None:
    with pytest.raises(DataError, match=words):
        TrainingSet(images, labels, ("a", "b"))


def test_small_images_of_an_npz_are_held_in_memory(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 12, 12, 3), np.uint8)
    np.savez_compressed(tmp_path / "images.npz", images=images, labels=np.arange(40, dtype=np.uint8) % 4)
    network, train, val = open_training(str(tmp_path / "images.npz"), "tiny_resnet", val=str(tmp_path / "images.npz"))
    assert isinstance(train, TrainingSet)
    assert torch.equal(train.images, torch.from_numpy(images))
    assert train.classes == ("0", "1", "2", "3")
    assert val is not None
    assert network.fc.out_features == 4
    assert isinstance(open_training(str(tmp_path / "images.npz"), "tiny_resnet", workers=0)[1], StreamedSet)


def test_cifar6_splits_follow_the_rule(tmp_path: Path) -> None:
    labels = np.tile(np.arange(10), 100)
    images = np.zeros((1000, 32, 32, 3), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(1000) // 10, labels
    path = tmp_path / "cifar10.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    _, train, val = open_training("cifar6", "tiny_resnet", archive=path)
    assert (len(train), len(val)) == (100, 500)
    assert train.classes == ("airplane", "automobile", "bird", "deer", "dog", "truck")
    original = torch.tensor([0, 1, 2, 4, 5, 9])
    for part in (train, val):
        assert torch.equal(part.images[:, 0, 0, 1].long(), original[part.labels])
    assert val.labels.bincount().tolist() == [84, 84, 83, 83, 83, 83]
    assert train.images[train.labels == 0][:, 0, 0, 0].tolist() == list(range(16))


def test_crop_flip_moves_whole_images() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.arange(2 * 12 * 12 * 3, dtype=torch.int64).reshape(2, 12, 12, 3).remainder(251).to(torch.uint8)
    seen = crop_flip(images.repeat(60, 1, 1, 1), generator, pad=2)
    assert seen.shape == (120, 12, 12, 3)
    padded = np.pad(images.numpy(), ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    views = {
        (i, flip, top, left): padded[i, top : top + 12, left : left + 12][:, :: -1 if flip else 1].tobytes()
        for i in range(2)
        for flip in (0, 1)
        for top in range(5)
        for left in range(5)
    }
    found = [{key for key, view in views.items() if view == image.numpy().tobytes()} for image in seen]
    assert all(keys and {key[0] for key in keys} == {n % 2} for n, keys in enumerate(found))
    assert len({key[1] for keys in found for key in keys}) == 2
    assert len({key[2:] for keys in found for key in keys}) == 25


def test_every_epoch_takes_all_images_in_an_order_of_its_own() -> None:
    plan = Plan(20, 5, seed=1)
    taken = [images for _, _, images in plan.steps(0, 8)]
    first, second = torch.cat(taken[:4]), torch.cat(taken[4:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(20))
    assert first.tolist() != second.tolist()
    assert [epoch for _, epoch, _ in plan.steps(3, 5)] == [0, 1]


def test_sets_in_blocks_are_shuffled_within_a_few_blocks() -> None:
    plan = Plan(400, 8, blocks=list(range(0, 404, 4)))
    order = plan.order(0)
    assert sorted(order.tolist()) == list(range(400))
    assert not torch.equal(order, plan.order(1))
    seen = [len({place // 4 for place in order[at : at + 4 * MIXED].tolist()}) for at in range(0, 400, 4 * MIXED)]
    assert max(seen) <= MIXED
    assert not torch.equal(order[:4] // 4, order[:1].repeat(4) // 4)


def test_processes_share_what_one_would_take() -> None:
    whole = Plan(50, 12).order(0)[:12]
    for world, accumulate in ((2, 1), (1, 2), (2, 3)):
        plans = [Plan(50, 12 // world // accumulate, accumulate, rank=rank, world=world) for rank in range(world)]
        parts = [chosen[share] for p in plans for _, _, chosen in p.steps(0, 1) for share in p.shares()]
        assert sorted(torch.cat(parts).tolist()) == sorted(whole.tolist())
        assert {len(part) for part in parts} == {12 // world // accumulate}


@pytest.mark.parametrize("crops", ["resized", "shift"])
def test_randomness_depends_on_seed_epoch_and_image_only(crops: str, root: Path) -> None:
    plan = Plan(40, 8, seed=3)
    alone = first_batches(streamed(root), plan, crops=crops)
    assert all(map(torch.equal, alone, first_batches(streamed(root, 2), plan, crops=crops)))
    torch.rand(5)  # whatever else was drawn
    later = [images for images, _ in streamed(root).batches(plan, 2, 3, crops=crops)]
    assert torch.equal(later[0], alone[2])
    assert not torch.equal(first_batches(streamed(root), Plan(40, 8, seed=4), crops=crops)[0], alone[0])
    same = torch.stack([images for images, _ in streamed(root).batches(Plan(40, 40), 0, 2, crops=crops)])
    orders = [Plan(40, 40).order(epoch) for epoch in (0, 1)]
    assert not torch.equal(same[0][orders[0] == 0], same[1][orders[1] == 0])  # one image, in two epochs
    assert alone[0].shape == (8, 3, 32, 32)
    assert alone[0].dtype == torch.uint8


def test_crops_are_those_of_torchvision(root: Path) -> None:
    images = streamed(root)
    batch, labels = next(images.batches(Plan(40, 8), 0, 1, crops="resized"))
    for place, image, label in zip(Plan(40, 8).order(0)[:8].tolist(), batch, labels, strict=True):
        torch.manual_seed(mix(0, "augment", 0, place))
        whole = v2.functional.pil_to_tensor(decode(images.images.root / images.images.items[place]))
        expected = v2.RandomHorizontalFlip()(v2.RandomResizedCrop(32, antialias=True)(whole))
        assert torch.equal(image, expected)
        assert int(label) == images.images.labels[place]


def test_validation_is_resize_and_centre_crop(root: Path) -> None:
    images = streamed(root)
    [(batch, labels)] = images.evaluated([7, 0])
    for place, image, label in zip([7, 0], batch, labels, strict=True):
        assert np.array_equal(image.permute(1, 2, 0), HOW.pixels(images.images.picture(place)))
        assert int(label) == images.images.labels[place]
    plain, _ = next(images.batches(Plan(40, 8), 0, 1, crops=""))
    assert torch.equal(plain, next(images.evaluated(Plan(40, 8).order(0)[:8].tolist()))[0])


def test_a_table_that_is_read_in_blocks_is_streamed(root: Path, tmp_path: Path) -> None:
    opened, files = open_set(str(as_parquet(root, tmp_path / "train.parquet"))), folder_set(root)
    images, labels = next(StreamedSet(opened, HOW, 2).batches(Plan(40, 40, blocks=opened.blocks()), 0, 1))
    assert sorted(labels.tolist()) == sorted(files.labels.tolist())
    wanted = next(StreamedSet(files, HOW).batches(Plan(40, 40, blocks=opened.blocks()), 0, 1))
    assert torch.equal(images, wanted[0])


@pytest.mark.parametrize("method", ["ish", "augmix"])
def test_stopped_with_workers_and_resumed_gives_the_same_bits(
    method: str, root: Path, tmp_path: Path, stopped_at: Any
) -> None:
    options = {**QUICK, "batch_size": 5, "epochs": 1, "checkpoint_every": 2}
    whole = finetune(start(), streamed(root), method, **options)
    with stopped_at(5):
        finetune(start(), streamed(root, 2), method, out=tmp_path, **options)
    resumed = finetune(start(), streamed(root, 1), method, out=tmp_path, **options)
    assert equal(whole.model, resumed.model)
    assert 0 <= resumed.log[-1].waited <= 1


def test_the_network_defines_how_its_images_are_normalised(root: Path) -> None:
    quick = {**QUICK, "epochs": 1}
    assert finetune(NoNorm(5), streamed(root), "plain", **quick).settings.mean == (0.0, 0.0, 0.0)
    assert finetune(start(), streamed(root), "plain", **quick).settings.mean == (0.4914, 0.4822, 0.4465)
    named = finetune(NoNorm(5), streamed(root), "plain", arch="torchvision:resnet18", **quick)
    assert (named.settings.mean, named.settings.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    own = NoNorm(5)
    own.preprocessing = Preprocessing(mean=(0.5,) * 3, std=(0.25,) * 3)
    assert finetune(own, streamed(root), "plain", **quick).settings.std == (0.25, 0.25, 0.25)


def test_large_images_are_streamed_and_small_ones_held_in_memory(root: Path) -> None:
    network, train, _ = open_training(str(root), "torchvision:resnet18", val=str(root))
    assert isinstance(train, StreamedSet)
    assert train.workers > 0
    how = train.how
    assert (how.resize, how.crop, how.interpolation) == (256, 224, "bilinear")
    assert network.fc.out_features == 5
    assert train.classes == WNIDS
    _, smaller, _ = open_training(str(root), "torchvision:resnet18", size=112)
    assert (smaller.how.resize, smaller.how.crop) == (128, (112, 112))
    assert isinstance(open_training(str(root), "tiny_resnet", size=32)[1], TrainingSet)
    assert isinstance(open_training(str(root), "tiny_resnet", size=32, workers=0)[1], StreamedSet)


def test_training_starts_from_exactly_the_named_weights(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.models import shufflenet_v2_x0_5

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.manual_seed(7)
    made = shufflenet_v2_x0_5()
    torch.save(made.state_dict(), tmp_path / "hub" / "checkpoints" / "shufflenetv2_x0.5-f707e7126e.pth")
    spec = "torchvision:shufflenet_v2_x0_5"
    network, _, _ = open_training(str(root), spec, init=f"{spec}:IMAGENET1K_V1")
    assert torch.equal(network.conv1[0].weight, made.conv1[0].weight)
    assert network.fc.out_features == 5
    with pytest.raises(UnknownNameError, match="'IMAGENET1K_V9'; known are DEFAULT, IMAGENET1K_V1"):
        open_training(str(root), spec, init=f"{spec}:IMAGENET1K_V9")
    with pytest.raises(ModelError, match="weights of another network than 'tiny_resnet'"):
        open_training(str(root), "tiny_resnet", init=f"{spec}:IMAGENET1K_V1")


def environment() -> dict[str, str]:
    """Let child processes import the code beside these tests, and no other that is installed."""
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), str(root / "src")])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONWARNINGS": "default"}


@pytest.mark.timeout(900)  # processes start slowly on a busy machine
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("one node", marks=pytest.mark.slow),
        pytest.param("two nodes", marks=pytest.mark.long),
        pytest.param("killed and restarted", marks=pytest.mark.long),
    ],
)
def test_two_processes_give_the_bits_of_one(kind: str, root: Path, tmp_path: Path, one_thread: None) -> None:
    """Of one process that accumulates two batches per step: the same sums in the same order."""
    streamed_run(root, tmp_path / "one", accumulate=2)
    launch = [sys.executable, "-m", "torch.distributed.run"]
    words = [str(SCRIPT), str(root), str(tmp_path / "two")]
    if kind == "two nodes":
        with socket() as free:
            free.bind(("127.0.0.1", 0))
            place = f"127.0.0.1:{free.getsockname()[1]}"
        launch += ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", place]
        launch += ["--rdzv-id", "two", "--local-addr", "127.0.0.1"]
    else:
        launch += ["--standalone", "--nproc-per-node", "2"]
    if kind == "killed and restarted":
        launch += ["--max-restarts", "2"]
        words += ["--die-at", "7"]
    # Without the variable, restarted processes may look for the addresses of those that died.
    apart = environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    nodes = [subprocess.Popen([*launch, *words], env=apart) for _ in range(2 if kind == "two nodes" else 1)]
    assert [node.wait(300) for node in nodes] == [0] * len(nodes)
    assert (tmp_path / "two" / "died").exists() == (kind == "killed and restarted")
    one, two = (load_file(tmp_path / name / "weights.safetensors") for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.fault(
    "a process that reads training images is killed (by the system, as memory runs out)",
    does="one line; the same command resumes from the last checkpoint to the same bits",
)
def test_a_killed_worker_is_one_line_and_the_run_is_resumed(
    root: Path, tmp_path: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = QUICK | {"checkpoint_every": 1}
    wanted = finetune(start(), streamed(root), "plain", **options)
    read, own, last = FileSet.picture, os.getpid(), len(folder_set(root)) - 1

    def deadly(self: FileSet, place: int) -> Any:
        if os.getpid() != own and place == last:
            time.sleep(0.3)  # after some steps
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, place)

    with monkeypatch.context() as patch:
        patch.setattr(FileSet, "picture", deadly)
        with pytest.raises(DataError, match="a worker process that reads images was killed.*fewer workers="):
            finetune(start(), streamed(root, 1), "plain", out=tmp_path, **options)
    resumed = finetune(start(), streamed(root, 1), "plain", out=tmp_path, **options)
    assert equal(resumed.model, wanted.model)
