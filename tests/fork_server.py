"""Nodes and services of the tests are forked from one process that has imported the code, instead of started as new interpreters.

A new interpreter imports the code for 0.7 s of processor time, and the suite starts hundreds. A forked node has its own data, signals
and exit code as any other process, and dies with the process of the tests. ``liftpy dev``, compose and the tests of the command line
start their nodes as users do.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from sidecar.dev import nats_server

_CLI = [sys.executable, "-c", "from sidecar.cli.main import main; main()"]
_NODE = [sys.executable, "-m", "sidecar"]
_IMPORTED = (
    "sidecar.cli.sidecar",
    "sidecar.node.node",
    "sidecar.runtime.restarts",
    "sidecar.cli.service",
    "sidecar.cli.stream",
    "sidecar.cli.status",
)
_OF_THE_START = ("PYTHON", "LD_", "MALLOC_")
"""Beginnings of variables that decide how an interpreter starts: where they differ, a new one is started."""
_OF_NO_START = frozenset({"PYTHONUNBUFFERED", "PYTHONPATH"})
"""Those that a forked process takes over."""
_LARGEST_REQUEST = 1 << 16
_PR_SET_PDEATHSIG = 1
_OPTIONS = frozenset({"stdin", "stdout", "stderr", "text", "errors", "env", "cwd", "start_new_session"})

spawn_interpreter = nats_server.spawn
"""Starts a new interpreter, as outside the tests."""


class ForkedProcess:
    """A process of the server, with what ``subprocess.Popen`` offers to tests."""

    def __init__(self, args: Sequence[str], ends: socket.socket, stdout: Any, stderr: Any) -> None:
        self.args = args
        self.stdin = None
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None
        self._ends = ends
        self._lock = threading.Lock()
        self.pid = int(_line(ends))

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        with self._lock:
            if self.returncode is None and select.select([self._ends], [], [], 0)[0]:
                self.returncode = int(_line(self._ends) or -signal.SIGKILL)
                self._ends.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raise TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
            with contextlib.suppress(ValueError):  # another thread has just seen its end
                select.select([self._ends], [], [], 0.2 if left is None else min(left, 0.2))
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and the server has not said so yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Starts the server with the first process that is wanted."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._environment: dict[str, str] = {}
        self._lock = threading.Lock()

    def spawn(self, command: Sequence[str], with_signal: int, **options: Any) -> Any:
        """As ``sidecar.dev.nats_server.spawn``, which starts what can't be forked."""
        arguments = _arguments(command, options)
        with self._lock:
            if arguments is None or not self._can_fork(options.get("env")):
                return spawn_interpreter(command, with_signal, **options)
            assert self._socket is not None
            return _request(self._socket, command, arguments, with_signal, options)

    def _can_fork(self, environment: Mapping[str, str] | None) -> bool:
        if self._server is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._environment = {name: value for name, value in os.environ.items() if not name.startswith("LIFTPY_")}
            command = [sys.executable, "-m", "tests.fork_server", str(theirs.fileno()), str(os.getpid())]
            root = str(Path(__file__).parents[1])
            path = os.pathsep.join([root, *filter(None, [self._environment.get("PYTHONPATH")])])
            self._server = spawn_interpreter(
                command,
                signal.SIGKILL,
                env={**self._environment, "PYTHONPATH": path},
                pass_fds=[theirs.fileno()],
                cwd=root,
                start_new_session=True,  # Ctrl-C is for the tests, which stop their nodes in good order
            )
            theirs.close()
            self._socket = ours
        wanted = dict(os.environ if environment is None else environment)
        names = {name for name in self._environment.keys() | wanted.keys() if name.startswith(_OF_THE_START)}
        return all(self._environment.get(name) == wanted.get(name) for name in names - _OF_NO_START)


FORKS = ForkServer()


def run(
    command: Sequence[str],
    *,
    input: str | bytes | None = None,
    text: bool = False,
    timeout: float | None = None,
    check: bool = False,
    env: Mapping[str, str] | None = None,
    cwd: Any = None,
    capture_output: bool = True,
) -> subprocess.CompletedProcess[Any]:
    """Run a command of ``liftpy`` as ``subprocess.run`` does, forked where that is possible."""
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(input.encode() if isinstance(input, str) else input or b"")
        given.seek(0)
        process = FORKS.spawn(command, signal.SIGKILL, stdin=given, stdout=out, stderr=err, env=env, cwd=cwd)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        said = []
        for stream in (out, err):
            stream.seek(0)
            said.append(stream.read().decode() if text else stream.read())
    if check and code:
        raise subprocess.CalledProcessError(code, list(command), *said)
    return subprocess.CompletedProcess(list(command), code, *said)


def _arguments(command: Sequence[str], options: Mapping[str, Any]) -> list[str] | None:
    """The words behind ``liftpy``; None: it is another program, or has other pipes."""
    words = list(command)
    outputs = {options.get("stdout"), options.get("stderr")}
    if options.keys() - _OPTIONS or outputs & {subprocess.DEVNULL, subprocess.STDOUT}:
        return None
    if words[:3] == _NODE:
        return ["sidecar", *words[3:]]
    return words[3:] if words[:3] == _CLI else None


def _line(stream: socket.socket) -> str:
    return stream.recv(64).decode()


def _request(
    server: socket.socket, command: Sequence[str], arguments: list[str], with_signal: int, options: Any
) -> ForkedProcess:
    environment = dict(os.environ if options.get("env") is None else options["env"])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pipes: list[Any] = []
    given, passed = [theirs.fileno()], []
    null = os.open(os.devnull, os.O_RDONLY)
    passed.append(null)
    given.append(null if options.get("stdin") in (None, subprocess.DEVNULL) else options["stdin"].fileno())
    for name in ("stdout", "stderr"):
        target = options.get(name)
        if target == subprocess.PIPE:
            read, write = os.pipe()
            is_text = options.get("text", False)
            how: dict[str, Any] = {"errors": options.get("errors")} if is_text else {}
            pipes.append(os.fdopen(read, "r" if is_text else "rb", **how))
            passed.append(write)
            given.append(write)
        else:
            pipes.append(None)
            given.append(target if isinstance(target, int) else target.fileno() if target is not None else len(given) - 1)
    request = {
        "words": arguments,
        "argv": list(command),
        "environment": environment,
        "cwd": str(options.get("cwd") or Path.cwd()),
        "signal": int(with_signal),
        "session": bool(options.get("start_new_session")),
    }
    data = json.dumps(request).encode()
    assert len(data) < _LARGEST_REQUEST
    server.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", given))])
    theirs.close()
    for descriptor in passed:
        os.close(descriptor)
    return ForkedProcess(command, ours, *pipes)


# ---- the server ------------------------------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> None:
    """Fork for each request until the tests have ended. Returns in each child, as what it is asked to be."""
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    wakes, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([requests, wakes], [], [])
        if wakes in ready:
            os.read(wakes, 4096)
        _reap(children)
        if requests not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 4)
        if not data:
            sys.exit(0)
        ends, *streams = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in children.values():
                other.detach()
            _become(json.loads(data), streams)
            return
        told = children[pid] = socket.socket(fileno=ends)
        told.send(b"%d" % pid)
        for stream in streams:
            os.close(stream)


def _reap(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        told = children.pop(pid)
        told.send(b"%d" % os.waitstatus_to_exitcode(status))
        told.close()


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Be the process that was asked for."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, request["signal"])
    if request["session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    # A new object, because the one of the server remembers whether its own output was a file.
    output, direct = io.FileIO(1, "w", closefd=False), bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(output), sys.stdout.encoding, line_buffering=True, write_through=direct)
    sys.path[:0] = ["", *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.orig_argv[:] = request["argv"]
    sys.argv[:] = ["liftpy", *request["words"]]


def main() -> None:
    """The server, then each of its children."""
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        _serve(requests)
        requests.detach()
    from sidecar.cli.main import main as liftpy

    liftpy()


if __name__ == "__main__":
    try:
        main()
    except Exception:
        traceback.print_exc()
        sys.exit(1)
