"""The client's connections to NATS: the only modules that know nats-py's private parts."""
