"""A node with several processes: the first one is the node, and the workers host shares of its partitions.

``liftpy/core/base/worker_assignment.py`` decides which process hosts a partition.
"""
