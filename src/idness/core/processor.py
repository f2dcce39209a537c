"""What must be said of a processor before NumPy is imported."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

SETTING = "NPY_DISABLE_CPU_FEATURES"
"""Names the instructions that NumPy leaves alone."""
WIDE = ((2, 4), "X86_V4 AVX512_ICL AVX512_SPR"), ((0,), "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL")
"""What NumPy calls instructions of 512 bits, from which version on."""
ZEN4 = ("vendor_id", "AuthenticAMD"), ("cpu family", "25")
"""How such a processor calls itself; older ones of its family have no such instructions."""


def sort_fast(processor: Path = Path("/proc/cpuinfo")) -> None:
    """Let NumPy sort by instructions of 256 bits on AMD's Zen 4, where those of 512 bits take four times as long.

    They write only some values of a register to memory, which Zen 4 does in microcode. Whoever has set the same setting is left alone.
    """
    if "numpy" in sys.modules or SETTING in os.environ:
        return
    try:
        text = processor.read_text().partition("\n\n")[0]
    except OSError:  # not every system tells
        return
    says = dict(re.findall(r"^([^\t:]+)\s*: (.*)$", text, flags=re.MULTILINE))
    if all(says.get(name) == value for name, value in ZEN4) and "avx512f" in says.get("flags", "").split():
        release = numpy_release()
        os.environ[SETTING] = next(names for since, names in WIDE if release >= since)


def numpy_release() -> tuple[int, ...]:
    """Read which NumPy is installed, without importing it, or what could tell and takes long to import itself."""
    place = find_spec("numpy")
    text = "" if place is None or place.origin is None else Path(place.origin).with_name("version.py").read_text()
    found = re.search(r'^version = "(\d+)\.(\d+)', text, flags=re.MULTILINE)
    return tuple(map(int, found.groups())) if found else (0,)
