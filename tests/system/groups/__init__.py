"""Members of a consumer group as processes, which come, go, stop and are killed, and so are the nodes that coordinate them."""
