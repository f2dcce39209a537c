"""Choosing a method and its options: on validation data, or by what the network itself shows."""
