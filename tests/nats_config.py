"""Change the configuration of a running nats-server."""

from __future__ import annotations

import os
import signal

from sidecar.dev.nats_server import NatsServer


def change_config(server: NatsServer, config: str) -> None:
    """Change it as an administrator does: the file, then the signal."""
    folder = server._folder
    assert folder is not None
    (folder / "nats.conf").write_text(config)
    os.kill(server.pid, signal.SIGHUP)
