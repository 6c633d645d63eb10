"""The status page and the metrics of a node, on loopback."""
