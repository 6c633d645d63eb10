"""Three Liftbridge servers on loopback, beside one nats-server or three; their binary is on the PATH.

What Liftbridge's servers ask each other over NATS is asked here too: to make a stream and to find its leader takes no gRPC then.
Nothing is flushed before an ack. Its readers speak gRPC, so that only publishers, idle servers and fail-overs are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import nats
import nats.errors
from nats.aio.client import Client

from liftpy.errors import ConfigError, UnavailableError
from sidecar.bench.dialects import LIFTBRIDGE, enveloped, field, number_field
from sidecar.bench.servers import NatsCluster
from sidecar.dev.nats_server import spawn
from sidecar.dev.ports import free_ports
from sidecar.runtime.settings import search_path

BINARY = "liftbridge"
_SPACE = "liftbridge-bench"
_CONTROL = f"{_SPACE}.raft.metadata"
_PROPAGATED, _STATUS = 8, 12
_READY_S, _ASK_S, _AGAIN_S, _STOP_S = 60.0, 2.0, 0.1, 5.0
_IS_LEADER = number_field(2, 1)


def find_liftbridge() -> Path:
    """Return the path of the binary. Raise ConfigError without one."""
    found = shutil.which(BINARY, path=search_path())
    if found is None:
        raise ConfigError(f"`{BINARY}` is not on the PATH. Build Liftbridge (`go build`), or leave it out (--system).")
    return Path(found)


class LiftbridgeCluster:
    """Liftbridge servers, started by ``with LiftbridgeCluster(nats_servers)``."""

    def __init__(self, nats_servers: int = 1, *, servers: int = 3) -> None:
        self._nats = NatsCluster(nats_servers)
        self._names = [f"l{number + 1}" for number in range(servers)]
        self._processes: dict[str, subprocess.Popen[Any]] = {}
        self._stack = ExitStack()

    @property
    def ports(self) -> list[int]:
        """Ports of the nats-servers, because publishers use NATS."""
        return self._nats.ports

    @property
    def pids(self) -> list[int]:
        """nats-servers and Liftbridge's that still run."""
        return [*self._nats.pids, *(one.pid for one in self._processes.values() if one.poll() is None)]

    def __enter__(self) -> Self:
        binary = find_liftbridge()
        with ExitStack() as stack:
            urls = [server.url for server in stack.enter_context(self._nats).servers]
            folder = Path(tempfile.mkdtemp(prefix="liftpy-liftbridge-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.callback(self._stop)
            for number, (name, port) in enumerate(zip(self._names, free_ports(len(self._names)), strict=True)):
                config = folder / f"{name}.yaml"
                config.write_text(_settings(name, port, urls[number % len(urls)], folder / name, self._names))
                with (folder / f"{name}.log").open("wb") as log:
                    self._processes[name] = spawn(
                        [str(binary), "--config", str(config)], signal.SIGKILL, stdout=log, stderr=log
                    )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def _stop(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(_STOP_S)
        self._processes.clear()

    async def create(self, name: str, subject: str) -> None:
        """Create a stream with one partition on all servers, and wait for an ack. Raise UnavailableError without one."""
        partition = field(1, subject.encode()) + field(2, name.encode()) + number_field(5, len(self._names))
        stream = field(1, name.encode()) + field(2, subject.encode()) + field(3, partition) + field(4, b"")
        request, said = enveloped(_PROPAGATED, field(2, field(1, stream))), b""
        connection = await nats.connect(self._nats.servers[0].url)
        try:
            async with asyncio.timeout(_READY_S):
                made = False
                while not (made and await self.acked(connection, subject, b"ready?", _ASK_S)):
                    with contextlib.suppress(nats.errors.Error):
                        said = (await connection.request(f"{_CONTROL}.propagate", request, timeout=_ASK_S)).data
                        made = b"\x12" not in said or b"exists" in said
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            raise UnavailableError(f"Liftbridge did not create the stream within {_READY_S:.0f} s: {said!r}") from None
        finally:
            await connection.close()

    async def acked(self, connection: Client, subject: str, value: bytes, timeout_s: float) -> bool:
        """Publish one message. Return whether it was acknowledged in time."""
        inbox = connection.new_inbox()
        subscription = await connection.subscribe(inbox, max_msgs=1)
        await connection.publish(subject, LIFTBRIDGE.message(value, inbox.encode()))
        try:
            return not LIFTBRIDGE.refused((await subscription.next_msg(timeout_s)).data + b"\r\n")
        except nats.errors.TimeoutError:
            await subscription.unsubscribe()
            return False

    async def leader(self, name: str) -> str:
        """Return the leader of the stream's partition. Raise UnavailableError if it is unknown."""
        connection = await nats.connect(self._nats.servers[0].url)
        try:
            for server in self._names:
                with contextlib.suppress(nats.errors.Error):
                    request = enveloped(_STATUS, field(1, name.encode()))
                    answer = await connection.request(f"{_CONTROL}.status.{server}", request, timeout=_ASK_S)
                    if answer.data.endswith(_IS_LEADER):
                        return server
        finally:
            await connection.close()
        raise UnavailableError("The Liftbridge stream has no leader. Run the benchmark again.")

    def kill(self, name: str) -> None:
        """Kill a server with SIGKILL."""
        self._processes[name].kill()
        self._processes[name].wait(_STOP_S)


def _settings(name: str, port: int, url: str, folder: Path, everybody: list[str]) -> str:
    return f"""
listen: 127.0.0.1:{port}
host: 127.0.0.1
data.dir: {folder}
nats.servers: ["{url}"]
clustering:
  server.id: {name}
  namespace: {_SPACE}
  raft.bootstrap.peers: [{", ".join(everybody)}]
"""
