"""What NATS's rights cost: acks of a cluster whose nodes have them, beside one whose nodes have all."""
