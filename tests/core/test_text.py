from __future__ import annotations

from pathlib import Path

from idness.core.text import without_folder


def test_absolute_paths_are_shortened_to_their_last_part(tmp_path: Path) -> None:
    assert without_folder(str(tmp_path / "net.py")) == "net.py"
    assert without_folder(f"{tmp_path / 'net.py'}:make") == "net.py:make"
    assert without_folder("torchvision:resnet18") == "torchvision:resnet18"
    assert without_folder("models/net.py:make") == "models/net.py:make"
    assert without_folder(f"--data={tmp_path / 'my images'}") == "--data=my images"
    assert without_folder(f"{tmp_path}/net.py:make(file='{tmp_path}/a.txt', n=2)") == "net.py:make(file='a.txt', n=2)"
    assert without_folder(f"ebo,{tmp_path}/net.py:Mine") == "ebo,net.py:Mine"
    assert without_folder("name=../one/results,~/two") == "name=../one/results,~/two"
