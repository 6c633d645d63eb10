"""A cluster whose nodes have a NATS server each, with a relay on every route between two of them, and wall clocks that can be set."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Coroutine, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, Self

from liftpy.errors import UnavailableError
from sidecar.dev.cluster import DevCluster
from sidecar.dev.nats_server import NatsServer, free_ports
from tests.integration import wrong_clock
from tests.integration.conftest import QUICK, show
from tests.system.faults.relay import Relay

_TAKEN = "address already in use"
_TRIES = 4


class Relays:
    """One between any two of the servers, on an event loop of their own: pytest's last for one test."""

    def __init__(self, names: Iterable[str], ports: Mapping[str, int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._thread.start()
        self._of = {frozenset(pair): Relay(ports[pair[0]]) for pair in combinations(names, 2)}
        for relay in self._of.values():
            self._do(relay.start())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def url(self, one: str, other: str) -> str:
        return self._of[frozenset((one, other))].url

    def cut(self, some: Iterable[str], others: Iterable[str], *, silent: bool) -> None:
        """Nothing passes between ``some`` and ``others``; ``silent``: and nobody is told."""
        others = list(others)
        for one in some:
            for other in others:
                self._do(self._of[frozenset((one, other))].cut(silent=silent))

    def heal(self) -> None:
        for relay in self._of.values():
            self._do(relay.heal())

    def close(self) -> None:
        for relay in self._of.values():
            self._do(relay.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class _Clocked(DevCluster):
    """``clocks``: folder with a file for each node."""

    clocks: Path

    def _command(self, name: str, controllers: list[str]) -> list[str]:
        path = self.clocks / name
        wrong_clock.set_clock(path, 0)
        (
            python,
            *_,
        ) = super()._command(name, controllers)
        flags = super()._command(name, controllers)[3:]
        return [python, wrong_clock.__file__, str(path), *flags]


class Apart:
    """``with Apart(4) as ground``: nodes n1, n2...; the first three are controllers."""

    def __init__(self, count: int) -> None:
        self.names = [f"n{number + 1}" for number in range(count)]
        self._folder = tempfile.TemporaryDirectory(prefix="liftpy-apart-")
        self.servers: dict[str, NatsServer] = {}
        self.relays: Relays
        self.cluster: DevCluster

    def url(self, name: str) -> str:
        """Of a node's server."""
        return self.servers[name].url

    def set_clock(self, name: str, off_s: float) -> None:
        """The wall clock of a node is off by so much from now on."""
        wrong_clock.set_clock(Path(self._folder.name) / name, off_s)

    def __enter__(self) -> Self:
        for left in reversed(range(_TRIES)):
            try:
                self._serve()
                break
            except UnavailableError as error:
                self._stop_servers()
                if _TAKEN not in str(error) or not left:
                    raise
        try:
            urls = {name: server.url for name, server in self.servers.items()}
            cluster = _Clocked(len(self.names), nats_url=urls["n1"], node_nats_urls=urls, settings=QUICK, on_line=show)
            cluster.clocks = Path(self._folder.name)
            self.cluster = cluster
            cluster.start()
        except BaseException:
            self._stop_servers()
            raise
        return self

    def _serve(self) -> None:
        ports = dict(zip(self.names, free_ports(len(self.names)), strict=True))
        self.relays = Relays(self.names, ports)
        for number, (name, port) in enumerate(ports.items()):
            routes = ", ".join(f'"{self.relays.url(other, name)}"' for other in self.names[:number])
            # advertised is a port where nobody listens: servers tell each other of themselves, and would connect around the relays
            cluster = f'name: apart, listen: "127.0.0.1:{port}", advertise: "127.0.0.1:1", pool_size: -1, routes: [{routes}]'
            server = NatsServer(config=f"server_name: {name}\ncluster {{ {cluster.replace('nats://', 'nats-route://')} }}\n")
            server.start()
            self.servers[name] = server

    def _stop_servers(self) -> None:
        for server in self.servers.values():
            server.stop()
        self.servers = {}
        self.relays.close()

    def __exit__(self, *_: object) -> None:
        self.cluster.stop()
        self._stop_servers()
        self._folder.cleanup()
