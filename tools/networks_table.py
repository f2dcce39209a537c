"""Writes `docs/networks.md`: what becomes of networks of every kind. Run it after a network or a reason has changed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.networks.zoo import table, zoo

PLACE = Path(__file__).resolve().parents[1] / "docs" / "networks.md"
ABOVE = """# Which networks work

idness sees a network as features and a head: a linear layer that makes the logits of the features. It finds the head by running
a copy of the network once on noise, and what the network does behind it is undone where that can be done exactly: a softmax, a
sigmoid, a factor, constants, the sum of several heads. With every batch the network's own output must follow from features
and head to 1e-5, or an error says that it does not.

```python
from torch import nn
from idness import SplitModel

split = SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10), nn.Softmax(dim=1)), layer="1")
print(split.layer, split.head.weight.shape)
```

- **One output** is a yes or a no: it is shown as two classes, with the logits -z / 2 and z / 2.
- **Several labels.** Behind a sigmoid, or where the network's `config.problem_type` says so, an image may get several labels or
  none. `ebo` then adds up the energy of each label (Wang et al., NeurIPS 2021), `msp` takes the largest sigmoid, and methods that
  ask which one of the classes it is are refused. `--multi-label` and `multi_label=True` say it where the network does not.
- **Several outputs** (tuples, dictionaries): the one that a head explains is taken; of several heads, name one with `layer=`.
- **Threads** may share a network: each call sees its own images only.

What is refused says why, and what helps. These lines give any network that returns logits a head, the identity, so that all
methods run that need no more than logits:

```python
import torch
from torch import nn
from idness import SplitModel

model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10), nn.Tanh())
head = nn.Linear(10, 10, bias=False)
head.weight.data = torch.eye(10)
model = nn.Sequential(model, head)
print(SplitModel(model, example=torch.rand(2, 3, 32, 32)).layer)
```

"""
BELOW = "\nThe {count} networks are small, with random weights; `tests/networks/test_zoo.py` runs each of them.\n"


def page() -> str:
    """Write the page."""
    return ABOVE + "\n".join(table()) + "\n" + BELOW.format(count=len(zoo()))


if __name__ == "__main__":
    PLACE.write_text(page(), encoding="utf-8")
