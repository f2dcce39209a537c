"""What the paper claims about activations, measured on any network: one file per analysis, pure functions and figures."""
