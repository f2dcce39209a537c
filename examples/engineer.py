"""An engineer's day: put a guard behind a classifier, look at what it says, and hand it to production.

    python examples/engineer.py [FOLDER]

Everything here ships with idness: the network, the images it knows, and images that it does not. With a network and
images of your own, the first two lines change and nothing else does.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image

from idness.data import embedded
from idness.guard import Guard


def main(folder: Path) -> None:
    """Calibrate, judge, save, load and export."""
    # 1. Calibrate on images that the network knows but was not trained on. A recall of 0.95 means: of such images, at
    #    most 5 in 100 are flagged. The second set only helps to choose a method.
    notes: list[str] = []
    guard = Guard.for_images("cifar6:base", "embedded:id_val", [0.95, 0.9], ood="embedded:horse", notes=notes)
    print(*notes, sep="\n")
    print(guard.promise())

    # 2. Judge pictures: paths, bytes or PIL images. The class is the plain network's; the guard says whether to believe it.
    for name in ("id_test", "cat", "mnist"):
        pictures = [Image.fromarray(pixels) for pixels in embedded.load(name).images[:200:10]]
        verdict = guard.judge(*pictures)
        first = verdict.records()[0]
        print(
            f"{name:<8} flagged {int(verdict.is_ood.sum()):>2} of {len(verdict)}; the first: {first['class']}, p = {first['p_value']:.3f}"
        )

    # 3. Save it, and load it where it is needed: a folder of safetensors and JSON, no pickle. A wrong network, a damaged
    #    file or a newer format is refused.
    guard.save(folder / "guard")
    again = Guard.load(folder / "guard")
    assert again.judge(*pictures).is_ood.tolist() == guard.judge(*pictures).is_ood.tolist()

    # 4. Or put network, detector and threshold into one ONNX graph, which runs without torch and without idness.
    print("wrote", again.to_onnx(folder / "guard.onnx"))
    print(f"next: idness serve {folder / 'guard'}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
