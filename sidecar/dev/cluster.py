"""A cluster on this machine as real processes: one nats-server and N sidecars, which start and stop together.

`liftpy dev`, the demo and the integration tests use this class. Every child process ends with this process, even if it is
killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from liftpy.errors import ConfigError, UnavailableError
from sidecar.dev.nats_server import NatsServer, end_reason, spawn
from sidecar.runtime.settings import DEFAULT_NAMESPACE, child_environment, quiet_environment, settings_environment

MAX_NODES = 16
MAX_CONTROLLERS = 3
_READY_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 15.0
_POLL_S = 0.02
_LOG_LINES = 400

LineSink = Callable[[str, str], None]
"""Called with (node id, one line of its log)."""


def node_command(node_id: str, flags: Mapping[str, object]) -> list[str]:
    """Return the command line of a node of this version of liftpy. ``flags``: options of ``liftpy sidecar`` without dashes."""
    command = [sys.executable, "-m", "sidecar", "--json", "--node-id", node_id]
    for flag, value in flags.items():
        command += [f"--{flag}", str(value)]
    return command


def node_environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a node process: ``own``, and that of this process without settings of nodes."""
    inherited = child_environment()
    checkout = str(Path(__file__).resolve().parents[2])  # so that the import works from any working directory
    import_path = os.pathsep.join([checkout, *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep))])
    return {**inherited, "PYTHONPATH": import_path, "PYTHONUNBUFFERED": "1", **own}


class DevNode:
    """One node of a local cluster: a sidecar process.

    ``log``: last lines of its log. ``ready``: the values of its ready line. None: the node is not ready.
    """

    def __init__(self, node_id: str, command: list[str], environment: Mapping[str, str], on_line: LineSink | None) -> None:
        self.node_id = node_id
        self.log: deque[str] = deque(maxlen=_LOG_LINES)
        self.ready: dict[str, Any] | None = None
        self._command = command
        self._environment = dict(environment)
        self._on_line = on_line
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []

    @property
    def running(self) -> bool:
        """True if the process exists, also while it is paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Id of the running process, or of the last one. 0: it was never started."""
        return self._process.pid if self._process is not None else 0

    @property
    def end_reason(self) -> str:
        """How the process ended, as text, for example "was killed by SIGKILL". '': it is running."""
        return end_reason(self._process)

    @property
    def status_url(self) -> str:
        """URL of the status page of the node. '': the node is not ready, or has no status page."""
        return str((self.ready or {}).get("status", ""))

    def start(self) -> None:
        if self.running:
            raise ConfigError(f"Node {self.node_id} is already running. Stop it first.")
        self.ready = None
        self._process = spawn(
            self._command,
            signal.SIGTERM,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=self._environment,
            start_new_session=True,  # Ctrl-C goes to the parent, which stops its nodes in order
        )
        streams = ((self._process.stdout, self._process_stdout), (self._process.stderr, self._process_stderr))
        self._readers = [threading.Thread(target=_read_lines, args=pair, daemon=True) for pair in streams]
        for reader in self._readers:
            reader.start()

    def wait_ready(
        self, timeout_s: float = _READY_TIMEOUT_S, is_stopping: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """Wait until the node has registered, and return its ready line. ``is_stopping``: returns True to end the wait.

        Raises UnavailableError with its last log lines if it does not register.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.ready is not None:
                return self.ready
            if not self.running or is_stopping():
                break
            time.sleep(_POLL_S)
        state = "does not get ready" if self.running else "has ended"
        raise UnavailableError(
            f"Node {self.node_id} {state}. Its last log lines: " + (" | ".join(list(self.log)[-8:]) or "none")
        )

    def terminate(self) -> int:
        """Send SIGTERM and wait: the node transfers its leaderships and stops. Return the exit code.

        A node that hangs is killed, and the exit code is -9.
        """
        return self._end(signal.SIGTERM)

    def interrupt(self) -> int:
        """Send SIGINT and wait: the node stops cleanly without transfers. Return the exit code."""
        return self._end(signal.SIGINT)

    def kill(self) -> int:
        return self._end(signal.SIGKILL)

    def send(self, with_signal: int) -> None:
        """Send the signal ``with_signal`` to the node. The call does not wait for its effect.

        SIGSTOP and SIGCONT go to all processes of the node, other signals only to the first one.
        """
        if self._process is None:
            return
        self._process.send_signal(with_signal)
        for worker in self.workers if with_signal in (signal.SIGSTOP, signal.SIGCONT) else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, with_signal)

    @property
    def workers(self) -> list[int]:
        """Process ids of its worker processes. Empty if the system does not show them."""
        process_ids: list[int] = []
        for task in Path(f"/proc/{self.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                process_ids += map(int, task.read_text().split())
        return process_ids

    def _end(self, with_signal: int) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(with_signal)
        try:
            code = self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait(_STOP_TIMEOUT_S)
        for reader in self._readers:
            reader.join(_STOP_TIMEOUT_S)
        self.ready = None
        return code

    def _process_stdout(self, line: str) -> None:
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and event.get("event") == "ready":
                self.ready = event
                return
        self._process_stderr(line)

    def _process_stderr(self, line: str) -> None:
        self.log.append(line)
        if self._on_line is not None:
            self._on_line(self.node_id, line)


class DevCluster:
    """A local cluster of sidecars n1, n2... The first three (or the only one) form the metadata group.

    Args:
        data: Directory for the data, which remains after the stop. None: a temporary directory.
        port: Port of nats-server. 0: any free port.
        nats_url: URL of an existing NATS server. '': start nats-server.
        settings: Environment variables with settings for all nodes.
        on_line: Called with (node id, line) for each output line of a node.
        node_nats_urls: NATS URL of single nodes, by node id.
        max_payload_bytes: Maximum size of a NATS message. 0: that of nats-server.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        data: Path | None = None,
        port: int = 0,
        nats_url: str = "",
        namespace: str = DEFAULT_NAMESPACE,
        settings: Mapping[str, str] | None = None,
        on_line: LineSink | None = None,
        node_nats_urls: Mapping[str, str] | None = None,
        max_payload_bytes: int = 0,
    ) -> None:
        if not 1 <= nodes <= MAX_NODES:
            raise ConfigError(f"nodes = {nodes} (--nodes) is outside 1..{MAX_NODES}. Choose a value in this range.")
        self.namespace = namespace
        self.nats: NatsServer | None = None if nats_url else NatsServer(port, max_payload_bytes=max_payload_bytes)
        self._nats_url = nats_url
        self._node_nats_urls = dict(node_nats_urls or {})
        self._data = data
        self._own_data: Path | None = None
        self._settings = dict(settings or {})
        self._on_line = on_line
        self._count = nodes
        self.nodes: dict[str, DevNode] = {}

    @property
    def nats_url(self) -> str:
        return self._nats_url or (self.nats.url if self.nats is not None else "")

    @property
    def data(self) -> Path:
        """Directory that contains the data directory of each node."""
        folder = self._data or self._own_data
        if folder is None:
            raise UnavailableError("The cluster is not running. Start it first.")
        return folder

    def start(self, timeout_s: float = _READY_TIMEOUT_S, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Start all processes and wait until every node is registered. After a failure, all processes are stopped.

        ``is_stopping``: returns True to give up the start. Raises UnavailableError then, and if a node does not register.
        """
        try:
            self._prepare()
            for node in self.nodes.values():
                node.start()
            deadline = time.monotonic() + timeout_s
            for node in self.nodes.values():
                node.wait_ready(max(0.1, deadline - time.monotonic()), is_stopping)
        except BaseException:
            self.stop()
            raise

    def _prepare(self) -> None:
        if self._data is None:
            self._own_data = Path(tempfile.mkdtemp(prefix="liftpy-dev-"))
        if self.nats is not None:
            self.nats.start()
        names = [f"n{number + 1}" for number in range(self._count)]
        controllers = names[:MAX_CONTROLLERS] if self._count >= MAX_CONTROLLERS else names[:1]
        for name in names:
            self.nodes[name] = DevNode(
                name, self._command(name, controllers), self._environment(name, name == names[0]), self._on_line
            )

    def _command(self, name: str, controllers: list[str]) -> list[str]:
        flags = {"data": self.data / name, "namespace": self.namespace, "controllers": ",".join(controllers), "status-port": 0}
        return node_command(name, flags)

    def _environment(self, name: str, says_if_open: bool) -> dict[str, str]:
        """Return the environment of a node. ``says_if_open``: whether it warns about a NATS server without authorization."""
        nats = settings_environment(nats=self._node_nats_urls.get(name, self.nats_url))
        return node_environment({**self._settings, **nats, **({} if says_if_open else quiet_environment())})

    def stop(self) -> None:
        """Stop all nodes cleanly and at the same time, then nats-server, and remove the temporary directory.

        A second call has no effect. The nodes get SIGINT instead of SIGTERM, because no node remains that could become leader.
        """
        for node in self.nodes.values():
            if node.running:
                node.send(signal.SIGCONT)
                node.send(signal.SIGINT)
        for node in self.nodes.values():
            node.interrupt()
        self.nodes = {}
        if self.nats is not None:
            self.nats.stop()
        if self._own_data is not None:
            shutil.rmtree(self._own_data, ignore_errors=True)
            self._own_data = None

    def ended_nodes(self) -> list[str]:
        return [name for name, node in self.nodes.items() if not node.running]

    def __enter__(self) -> DevCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _read_lines(stream: Any, take: Callable[[str], None]) -> None:
    with stream:
        for line in stream:
            take(line.rstrip("\n"))
