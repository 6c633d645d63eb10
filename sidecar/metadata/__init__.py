"""The metadata group on this node: as a controller, or as a follower of the feed. Sessions and control requests."""
