"""Work on many machines: the spans of a set are done by a pool of Ray's actors, each with a network of its own."""
