"""A whole cluster on one machine: nats-server, node processes and the demo."""
