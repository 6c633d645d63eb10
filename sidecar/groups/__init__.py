"""The coordinators of consumer groups and work queues that this node runs."""
