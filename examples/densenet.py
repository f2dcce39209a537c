"""A network of one's own for `idness bench`: any function in any Python file that returns it.

idness bench mine.toml --model examples/densenet.py:densenet101 --weights densenet101_cifar10.pth.tar
"""

from __future__ import annotations

from idness.networks.densenet import DenseNet


def densenet101(classes: int = 10) -> DenseNet:
    """Build the DenseNet-BC that the DICE, ASH and SCALE papers call DenseNet-101: depth 100, growth 12, 342 features."""
    return DenseNet(classes)
