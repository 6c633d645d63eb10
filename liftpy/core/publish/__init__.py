"""From published messages to record batches, and from commits to acks: what decides, for every shell. Pure."""
