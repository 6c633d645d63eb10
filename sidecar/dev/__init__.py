"""A whole cluster on one machine: embedded nats-server, processes, demo."""
