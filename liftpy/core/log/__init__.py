"""One partition's log over a storage seam: segments, index, epoch cache, retention, compaction, Arrow. Pure."""
