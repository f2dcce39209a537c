"""The images of the embedded benchmarks, under their public name."""

from idness.data.embedded import CIFAR6, EmbeddedSet, load, manifest, open_embedded, sets

__all__ = ["CIFAR6", "EmbeddedSet", "load", "manifest", "open_embedded", "sets"]
