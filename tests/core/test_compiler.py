from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torchvision")
START = """
import sys, torch
from idness.core.extras import needed
models = needed("torchvision.models", "a test", "models")
assert models.mobilenet_v2
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torchvision_comes_without_torchs_compiler() -> None:
    run("assert not [name for name in sys.modules if name.startswith('torch._dynamo')]")


def test_the_compiler_is_there_for_whoever_uses_it() -> None:
    said = run("""
double = torch.compile(lambda values: values * 2, backend="eager")
print(double(torch.ones(2)).tolist())
import torch._dynamo.utils
print(torch._dynamo.utils.counters["frames"]["ok"])
""")
    assert said.split("\n")[:2] == ["[2.0, 2.0]", "1"]


def test_what_torchvision_wants_of_it_is_answered_by_it() -> None:
    said = run("""
from torchvision.ops import roi_align
here = sys.modules["torchvision.ops.roi_align"]
print(roi_align(torch.rand(1, 3, 8, 8), torch.tensor([[0, 0, 0, 4.0, 4.0]]), 2).shape == (1, 3, 2, 2))
print(here.is_compile_supported("cpu"))
from torch._dynamo.utils import is_compile_supported
print(is_compile_supported("cpu") == here.is_compile_supported("cpu"))
""")
    assert said.split()[0] == said.split()[2] == "True"


def test_anything_else_of_it_that_is_asked_for_loads_it() -> None:
    said = run("""
from idness.core import compiler
assert "torch._dynamo" not in sys.modules
with compiler.compiler_later():
    from torch._dynamo import config
    import torch._dynamo
    print(config is torch._dynamo.config, type(torch._dynamo).__name__)
with compiler.compiler_later():  # which is loaded by now
    import torch._dynamo as again
print(again is torch._dynamo, type(sys.modules["torch._dynamo.utils"]).__name__)
""")
    assert said.split() == ["True", "module", "True", "module"]
