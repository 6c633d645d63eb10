"""What this node runs for each of its partitions: worker, log, replica, reads, services."""
