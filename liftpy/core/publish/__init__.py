"""Publishing: from messages to record batches, and from commits to acks. Pure."""
