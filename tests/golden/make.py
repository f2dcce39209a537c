"""Write the stored values again: `python -m tests.golden.make [bench commands guards train old_files interface]`.

Look at `git diff tests/golden/stored` before committing, and say in the commit why values changed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "samples"))

from tests.golden.collect import COLLECTORS
from tests.golden.values import write

if __name__ == "__main__":
    for name in sys.argv[1:] or COLLECTORS:
        with tempfile.TemporaryDirectory() as folder:
            os.environ |= {"XDG_STATE_HOME": f"{folder}/state", "XDG_CACHE_HOME": f"{folder}/caches"}
            (Path(folder) / name).mkdir()
            for document, value in COLLECTORS[name](Path(folder) / name).items():
                write(document, value)
                sys.stdout.write(f"wrote {document}.json\n")
