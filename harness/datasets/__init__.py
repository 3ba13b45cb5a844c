"""Data sets: readers, downloads, cache, synthetic twins, shards."""
