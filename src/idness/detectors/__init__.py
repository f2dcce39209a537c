"""The base class of detectors, shared computations, and the registry of methods."""
