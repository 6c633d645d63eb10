"""This node and the metadata group: as a member, or as a follower of the feed; sessions, control requests."""
