"""Workers of a work queue as processes, which are killed, and so are the nodes that coordinate them."""
