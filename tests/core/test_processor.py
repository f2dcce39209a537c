import os
import subprocess
import sys

import numpy as np
import pytest

from idness.core import processor
from idness.core.processor import SETTING, WIDE, sort_fast

ZEN4 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nflags\t\t: fpu avx2 avx512f\n\nprocessor\t: 1\n"


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Say what was set on a processor, before NumPy is imported."""
    monkeypatch.delitem(sys.modules, "numpy")
    # To be undone afterwards, whatever is set meanwhile.
    monkeypatch.setenv(SETTING, "")
    monkeypatch.delenv(SETTING)

    def tell(text, release=(2, 4)):
        monkeypatch.setattr(processor, "numpy_release", lambda: release)
        (tmp_path / "cpuinfo").write_text(text)
        sort_fast(tmp_path / "cpuinfo")
        return os.environ.get(SETTING)

    return tell


@pytest.mark.parametrize(("release", "first"), [((2, 4), "X86_V4"), ((3, 0), "X86_V4"), ((2, 3), "AVX512F")])
def test_numpy_sorts_by_narrower_instructions_on_zen_4(told, release, first):
    assert told(ZEN4, release).split()[0] == first


@pytest.mark.parametrize(
    "text",
    [
        ZEN4.replace("AuthenticAMD", "GenuineIntel"),
        ZEN4.replace("25", "26"),
        ZEN4.replace(" avx512f", ""),
        ZEN4.replace("avx512f\n\n", "\n\nflags : avx512f"),
        "no such lines",
    ],
)
def test_other_processors_are_left_alone(told, text):
    assert told(text) is None


def test_what_was_set_stays_and_a_numpy_that_is_there_is_too_late(told, monkeypatch, tmp_path):
    monkeypatch.setenv(SETTING, "AVX2")
    assert told(ZEN4) == "AVX2"
    monkeypatch.delenv(SETTING)
    monkeypatch.setitem(sys.modules, "numpy", object())
    assert told(ZEN4) is None
    monkeypatch.delitem(sys.modules, "numpy")
    sort_fast(tmp_path / "absent")
    assert SETTING not in os.environ


def test_numpys_release_is_known_before_it_is_imported():
    code = "import sys; from idness.core.processor import numpy_release as r; print(*r()); sys.exit('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == np.__version__.split(".")[:2]


def test_the_names_are_numpys_own():
    code = "import numpy; from numpy._core import _multiarray_umath as m; print(*m.__cpu_dispatch__)"
    known = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    names = WIDE[0][1].split()
    assert set(names) <= set(known) or not any(name.startswith(("X86", "AVX")) for name in known)


def test_the_command_asks_before_numpy_is_imported():
    code = "import sys; import idness.cli; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
