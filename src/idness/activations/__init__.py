"""What a network makes of images: extracted once, kept on disk, read shard by shard."""
