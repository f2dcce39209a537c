"""What runs a network: torch itself or another program, whichever makes the same features sooner."""
