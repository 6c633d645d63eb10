"""Spark reads a stream while leaders die, partitions are added and move, retention deletes, and a stream is made again."""
