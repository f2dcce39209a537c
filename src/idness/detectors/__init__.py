"""What a method is made of: the detector's contract, readouts, kernels, statistics, and the names of all methods."""
