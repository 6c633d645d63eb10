"""Connections to NATS. Only this package and the node's transport use private parts of nats-py."""
