"""The images of the embedded benchmark, under the name that users rely on."""

from idness.data.embedded import CIFAR6, EmbeddedSet, fingerprint, load, manifest, sets

__all__ = ["CIFAR6", "EmbeddedSet", "fingerprint", "load", "manifest", "sets"]
