"""Choosing a method and its options, on validation data or from the network's own activations."""
