"""A node of several processes: the first is the node, the others host shares of its partitions (``liftpy/shares.py``)."""
