"""Guards on the Hugging Face Hub, whose requests go to a local folder here."""

from __future__ import annotations

import fnmatch
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from idness import Guard, load_model
from idness.core.errors import NotFittedError
from idness.data import Preprocessing, embedded

hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def repositories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that takes the place of the hub: a folder in it for each repository."""
    root = tmp_path / "hub"

    def upload(repo_id: str, folder_path: str, delete_patterns: list[str], **_: Any) -> str:
        for old in list((root / repo_id).iterdir()):
            if any(fnmatch.fnmatch(old.name, pattern) for pattern in delete_patterns):
                old.unlink()
        shutil.copytree(folder_path, root / repo_id, dirs_exist_ok=True)
        return f"https://hub/{repo_id}"

    monkeypatch.setattr(hub, "create_repo", lambda repo_id, **_: (root / repo_id).mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(hub, "upload_folder", upload)
    monkeypatch.setattr(hub, "snapshot_download", lambda repo_id, **_: str(root / repo_id))
    return root


def made(method: str = "mls") -> Guard:
    mean, std = embedded.normalisation()
    guard = Guard(
        load_model("cifar6:base"),
        method,
        preprocessing=Preprocessing(resize=(32, 32), mean=mean, std=std),
        spec="cifar6:base",
    )
    return guard.calibrate([torch.randn(60, 3, 32, 32, generator=torch.Generator().manual_seed(0))], recall=0.9)


def test_a_guard_returns_from_the_hub_and_from_a_folder(repositories: Path) -> None:
    guard, images = made(), torch.randn(5, 3, 32, 32)
    assert guard.push_to_hub("me/first") == "https://hub/me/first"
    for place in ("me/first", repositories / "me" / "first"):
        again = Guard.from_pretrained(place)
        torch.testing.assert_close(again(images).score, guard(images).score)
        assert again.recalls == (0.9,)
    card = (repositories / "me" / "first" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: idness\n")
    for part in (guard.promise(), "method: `mls`", "network: `cifar6:base`, 320 features", "## Limits"):
        assert part in card
    made("msp").push_to_hub("me/first")  # replaces the files of the first
    assert Guard.from_pretrained("me/first").detector.name == "msp"
    names = sorted(path.name.partition("-")[0] for path in (repositories / "me" / "first").iterdir())
    assert names == ["README.md", "guard.json", "tensors", "weights"]
    again.spec = None  # a network of the user's own
    assert again.push_to_hub("me/module") == "https://hub/me/module"
    with pytest.raises(NotFittedError, match="is not calibrated"):
        Guard(guard.split, "mls").push_to_hub("me/first")
