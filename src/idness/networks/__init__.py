"""Torch classifiers as features and a head: loading, head search, engines, architectures."""
