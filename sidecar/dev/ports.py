"""Free ports for benchmarks."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
