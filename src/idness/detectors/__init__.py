"""The contract of a detector, what methods have in common, and the registry of methods."""
