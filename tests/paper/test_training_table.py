"""Table 5 on a small folder laid out like ImageNet: what `reproduce` prints is run, and read back as rows."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torchvision.models import shufflenet_v2_x0_5

from idness import paper
from idness.benchmark.protocol import Settings
from idness.paper.compare import TableOutcome
from idness.paper.reproduce import MODELS, reproduce
from tests.cli.running import idness
from tests.training.small_imagenet import picture

MODEL = "torchvision:shufflenet_v2_x0_5"
FILE = "shufflenetv2_x0.5-f707e7126e.pth"
LABELS = (0, 1, 388, 700, 999)
SMALL = "--size 64 --workers 0 --batch-size 60 --epochs 1 --quiet"
"""One step of a small network, added to what is printed."""
OTHERS = [
    pytest.param(name, marks=pytest.mark.long)
    for name in ("LogitNorm", "RegMixup", "AugMix", "TorchVision Model Extended")
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OpenOOD's lists and folders: ImageNet of five classes, JPEG of mixed sizes, and a few images of each OOD set."""
    root = tmp_path_factory.mktemp("openood")
    lists, images = root / "benchmark_imglist" / "imagenet", root / "images_largescale"
    lists.mkdir(parents=True)

    def write(name: str, folder: str, count: int, first: int, labelled: bool) -> None:
        lines = []
        for label, number in enumerate(LABELS):
            for place in range(first, first + count):
                file = Path(folder) / f"n{number:08d}" / f"{place}.JPEG"
                (images / file).parent.mkdir(parents=True, exist_ok=True)
                picture(label, place).save(images / file)
                lines.append(f"{file} {number if labelled else -1}\n")
        (lists / f"{name}.txt").write_text("".join(lines))

    write("train_imagenet", "imagenet_1k/train", 12, 0, True)
    write("val_imagenet", "imagenet_1k/val", 1, 20, True)
    write("test_imagenet", "imagenet_1k/val", 3, 30, True)
    for number, name in enumerate(("ssb_hard", "ninco", "inaturalist", "textures", "openimage_o")):
        write(f"test_{name}", name, 1, 100 + number, False)
    return root


@pytest.fixture(autouse=True)
def weights(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts weights where torchvision keeps those it has fetched."""
    monkeypatch.setenv("TORCH_HOME", str(root / "torch"))
    monkeypatch.setitem(MODELS, "imagenet", MODEL)
    file = root / "torch" / "hub" / "checkpoints" / FILE
    if not file.exists():
        file.parent.mkdir(parents=True)
        torch.manual_seed(0)
        torch.save(shufflenet_v2_x0_5().state_dict(), file)


def outcome_of(root: Path, out: Path) -> TableOutcome:
    [outcome] = reproduce(["training"], [root], out=out).outcomes
    return outcome


@pytest.mark.parametrize("row", ["CIDER", "ISH", *OTHERS])
def test_a_printed_command_gives_a_row_that_is_read_back(row: str, root: Path, tmp_path: Path) -> None:
    before = outcome_of(root, tmp_path / "before")
    commands = {item.name: item.command for item in before.sets if not item.available}
    assert {f"weights of {r.name}" for r in paper.load("training").rows if not r.weights} <= set(commands)
    assert not before.measured
    words = shlex.split(commands[f"weights of {row}"])
    assert words[:2] == ["idness", "train"]
    made = idness(*words[1:], *shlex.split(SMALL), cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    after = outcome_of(root, tmp_path / "after")
    assert not after.failed
    measured = {entry.row for entry in after.measured if entry.metric == "auroc" and entry.column == "far"}
    assert measured == {row}  # no row has the numbers of another network with the same method
    assert f"weights of {row}" not in {item.name for item in after.sets}
    for folder in {r.training for r in paper.load("training").rows if r.name == row}:
        (root / folder / "weights.safetensors").unlink()


def test_one_row_that_cannot_be_run_does_not_blank_the_others(root: Path, tmp_path: Path) -> None:
    for name in ("augmix", "plain"):
        (root / name).mkdir(exist_ok=True)
    (root / "augmix" / "weights.safetensors").write_bytes(b"nothing")
    save_file(shufflenet_v2_x0_5().state_dict(), root / "plain" / "weights.safetensors")
    outcome = outcome_of(root, tmp_path)
    for name in ("augmix", "plain"):
        (root / name / "weights.safetensors").unlink()
    assert {entry.row for entry in outcome.measured} == {"TorchVision Model Extended"}
    assert "is not a readable weights file" in outcome.failed["AugMix"]


def test_the_terms_of_the_proposition_are_shown(root: Path, tmp_path: Path) -> None:
    settings = Settings(weights=root / "torch" / "hub" / "checkpoints" / FILE)
    [outcome] = reproduce(["chi_square"], [root], out=tmp_path, settings=settings).outcomes
    shown = "\n".join(outcome.notes)
    assert "by the proof's own condition: ssb-hard" in shown
    assert "D^Pruning is" in shown
    assert "I^Scaling is" in shown
    assert {entry.column for entry in outcome.measured} == set(paper.load("chi_square").values)
