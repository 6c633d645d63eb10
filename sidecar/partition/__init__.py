"""The parts of a node that run per partition: worker, log, replica, reads, services."""
