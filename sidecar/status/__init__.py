"""The status page and metrics, on loopback."""
