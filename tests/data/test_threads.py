from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from idness.core.errors import OptionError
from idness.data import batches
from idness.data.batches import limit_threads


@pytest.mark.parametrize(("count", "network", "decoding"), [(1, 1, 1), (2, 1, 1), (4, 3, 1), (16, 12, 4)])
def test_threads_are_those_of_the_network_and_of_decoding(
    monkeypatch: pytest.MonkeyPatch, count: int, network: int, decoding: int
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(batches, "_LIMIT", {})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    try:
        limit_threads(count)
        assert (torch.get_num_threads(), batches._LIMIT["decoders"]) == (network, decoding)
    finally:
        torch.set_num_threads(before)
    with pytest.raises(OptionError, match="threads must be at least 1, got 0"):
        limit_threads(0)


def test_the_command_lets_threads_sleep_while_they_wait() -> None:
    code = (
        "import atexit, os, sys; sys.argv = ['idness', '--version']; from idness.cli import run\n"
        "atexit.register(lambda: print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)); run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("passive False\n")
