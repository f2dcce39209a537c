"""Torch classifiers seen as features and a head: loading, trust, precision, architectures."""
