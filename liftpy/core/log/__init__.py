"""The log of one partition over a storage interface: segments, index, epoch cache, retention, compaction, Arrow. Pure."""
