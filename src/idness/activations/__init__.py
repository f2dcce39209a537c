"""The activations of images: computed once, stored on disk, read shard by shard."""
