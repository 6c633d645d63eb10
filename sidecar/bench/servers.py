"""Several nats-servers on loopback that are one cluster."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from liftpy.errors import UnavailableError
from sidecar.dev.nats_server import NatsServer
from sidecar.dev.ports import free_ports

_TAKEN = "address already in use"
"""A port of the routes is free when it is chosen, and may be taken before the server listens there."""
_TRIES = 4


class NatsCluster:
    """``with NatsCluster(3) as cluster``.

    ``storing``: lines of each one's ``jetstream`` block besides its folder, or None for no JetStream.
    """

    def __init__(self, count: int, *, storing: str | None = None) -> None:
        self._count = count
        self._storing = storing
        self._folder = Path()
        self.servers: list[NatsServer] = []

    @property
    def ports(self) -> list[int]:
        """Ports for clients."""
        return [server.port for server in self.servers]

    @property
    def pids(self) -> list[int]:
        """Process ids of the servers."""
        return [server.pid for server in self.servers]

    def __enter__(self) -> Self:
        for _ in range(_TRIES - 1):
            try:
                return self._start()
            except UnavailableError as error:
                if _TAKEN not in str(error):
                    raise
        return self._start()

    def _start(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="liftpy-nats-cluster-"))
        ports = free_ports(self._count)
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        try:
            for number, port in enumerate(ports):
                config = f"server_name: peer{number}\n"
                if self._storing is not None:
                    config += f'jetstream {{ store_dir: "{self._folder / str(number)}", {self._storing} }}\n'
                if self._count > 1:
                    config += f'cluster {{ name: peers, listen: "127.0.0.1:{port}", routes: [{routes}] }}\n'
                server = NatsServer(config=config)
                server.start()
                self.servers.append(server)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self.servers:
            self.servers.pop().stop()
        shutil.rmtree(self._folder, ignore_errors=True)
