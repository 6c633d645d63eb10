"""A node of several processes: the first is the node, the others host shares of its partitions
(``liftpy/core/base/worker_assignment.py``)."""
