"""Simulated versions of Python's time, randomness, threads and files.

``install`` changes the standard library before anything of liftpy is imported; where no simulated process runs, everything is as it
was. That is the lowest port that a program has, and so what ships runs unchanged.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
import datetime
import gc
import importlib
import logging
import os
import pkgutil
import random
import signal
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable
from functools import partialmethod
from types import SimpleNamespace
from typing import Any

from tests.simulation.world.machine import disk, flush_thread, threads
from tests.simulation.world.machine import scheduler as scheduling
from tests.simulation.world.machine.scheduler import NS_PER_S, Process, ProcessEnd

_real_urandom = os.urandom
_real_getpid = os.getpid
_real_kill = os.kill
_real_gethostname = socket.gethostname
_real_datetime = datetime.datetime
real_exit = os._exit
_real_sleep = time.sleep
_BOOTTIME, _REALTIME = time.CLOCK_BOOTTIME, time.CLOCK_REALTIME
_NOT_OF_NODES = frozenset(("liftpy.spark", "liftpy.testing", "sidecar.__main__", "sidecar.bench", "sidecar.cli", "sidecar.dev"))
_fixed = random.Random("import")
"""Return a fixed value for draws at import time, so that every run is equal."""


def running() -> Process | None:
    """Return the simulated process that runs."""
    scheduler = scheduling.active
    return None if scheduler is None else scheduler.process


def _clock(name: str, read: Callable[[Process], int], *, seconds: bool) -> None:
    real = getattr(time, name)

    def virtual_ns() -> Any:
        scheduler = scheduling.active
        return real() if scheduler is None or scheduler.process is None else read(scheduler.process)

    def virtual_s() -> Any:
        scheduler = scheduling.active
        return real() if scheduler is None or scheduler.process is None else read(scheduler.process) / NS_PER_S

    setattr(time, name, virtual_s if seconds else virtual_ns)


def _sleep(seconds: float) -> None:
    process = running()
    if process is None:
        _real_sleep(seconds)
        return
    thread = threads.current_thread()
    if thread is None:
        process.scheduler.elapsed_ns += int(seconds * NS_PER_S)
    else:
        process.scheduler.after(int(seconds * NS_PER_S), thread.resume, owner=process)
        thread.stand()


def _install_time() -> None:
    for name, read in (
        ("monotonic", Process.read_monotonic_ns),
        ("perf_counter", Process.read_monotonic_ns),
        ("time", Process.wall_ns),
        ("thread_time", Process.read_monotonic_ns),
        ("process_time", Process.read_monotonic_ns),
    ):
        _clock(name, read, seconds=True)
        _clock(f"{name}_ns", read, seconds=False)
    real_gettime, real_gettime_ns = time.clock_gettime, time.clock_gettime_ns

    def clock_gettime_ns(number: int) -> int:
        scheduler = scheduling.active
        if scheduler is None or (process := scheduler.process) is None:
            return real_gettime_ns(number)
        if number == _BOOTTIME:
            return process.read_monotonic_ns() + process.suspended_ns
        return process.wall_ns() if number == _REALTIME else process.read_monotonic_ns()

    def clock_gettime(number: int) -> float:
        return real_gettime(number) if running() is None else clock_gettime_ns(number) / NS_PER_S

    time.clock_gettime, time.clock_gettime_ns = clock_gettime, clock_gettime_ns
    time.sleep = _sleep  # type: ignore[assignment]


def _urandom(size: int) -> bytes:
    scheduler = scheduling.active
    return _fixed.randbytes(size) if scheduler is None else scheduler.entropy.randbytes(size)


def _getpid() -> int:
    process = running()
    return _real_getpid() if process is None else process.pid


def _kill(pid: int, number: int) -> None:
    process = running()
    if process is None:
        _real_kill(pid, number)
        return
    other = process.scheduler.processes.get(pid)
    if other is None or not other.is_alive:
        raise ProcessLookupError(3, "No such process")
    assert number == 0, "nodes only ask whether a process is there"


def _gethostname() -> str:
    process = running()
    return _real_gethostname() if process is None else process.host


class _IsDatetime(type):
    """Type of ``_Datetime``: each datetime is one of its instances."""

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, _real_datetime)


class _Datetime(_real_datetime, metaclass=_IsDatetime):
    """A datetime whose clock is that of the simulated process."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return _real_datetime.fromtimestamp(time.time(), tz)


def _exit(code: int) -> None:
    if running() is None:
        real_exit(code)
    raise ProcessEnd(code)


def _pool(*args: Any, **options: Any) -> Any:
    return threads.RealPool(*args, **options) if running() is None else threads.VirtualPool(*args, **options)


def _timer(*args: Any, **options: Any) -> Any:
    return threads.RealTimer(*args, **options) if running() is None else threads.VirtualTimer(*args, **options)


def install() -> None:
    """Install the replacements. Call it before the first import of liftpy or sidecar."""
    assert not any(name.split(".")[0] in ("liftpy", "sidecar", "nats") for name in sys.modules), "install comes first"
    _install_time()
    os.urandom = _urandom
    random._urandom = _urandom  # type: ignore[attr-defined]
    os.getpid = _getpid
    os.kill = _kill
    socket.gethostname = _gethostname
    os._exit = _exit  # type: ignore[assignment]
    threading.Thread = threads.VirtualThread  # type: ignore[misc]
    threading.Timer = _timer  # type: ignore[misc, assignment]
    concurrent.futures.ThreadPoolExecutor = _pool  # type: ignore[misc, assignment]
    concurrent.futures.thread.ThreadPoolExecutor = _pool  # type: ignore[misc, assignment]
    disk.interpose(running)
    random.seed("import")
    gc.disable()


def adapt() -> None:
    """Import what a node may import later, and adapt modules that block their event loop on a thread."""
    import pysyncobj.node

    _import_all()

    import liftpy.client.closest_replica
    import sidecar.disk.files
    import sidecar.disk.flush_thread
    import sidecar.node.node
    import sidecar.runtime.memory
    import sidecar.runtime.restarts
    import sidecar.status.status_api
    from tests.simulation.world.machine import supervisor

    setattr(liftpy.client.closest_replica, "_BOOT_ID", SimpleNamespace(read_text=lambda **_: "boot"))  # noqa: B010
    _adapt_workers()
    _adapt_ingest()
    _adapt_tracing()
    supervisor.adapt(sidecar.runtime.restarts, sidecar.node.node)
    setattr(sidecar.status.status_api, "PAGE_PARTITIONS", 2)  # noqa: B010  # so that a status has several pages
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("liftpy", "sidecar") and getattr(module, "datetime", None) is _real_datetime:
            setattr(module, "datetime", _Datetime)  # noqa: B010
    flush_thread.adapt(sidecar.disk.flush_thread)
    sidecar.disk.files.open_count = lambda: 64
    setattr(sidecar.node.node, "retain_freed_memory", lambda *_: None)  # noqa: B010  # it is no export of that module
    setattr(sidecar.node.node, "make_collections_rare", lambda: None)  # noqa: B010
    # A collection after many opened partitions would examine the objects of all nodes, which share this Python process.
    sidecar.runtime.memory.OPENED = sidecar.runtime.memory.CLOSED = 1 << 30
    logging.raiseExceptions = False
    pysyncobj.node.Node.__hash__ = lambda node: zlib.crc32(str(node.id).encode())  # it keeps its peers in a set


def _import_all() -> None:
    """Import the modules of nodes and clients: each seed would import them again, and ``adapt`` must know them."""
    import liftpy
    import sidecar

    for package in (liftpy, sidecar):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if found.name not in _NOT_OF_NODES:
                _import_below(found.name)


def _import_below(name: str) -> None:
    module = importlib.import_module(name)
    for found in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}."):
        if not found.name.endswith("__main__"):
            _import_below(found.name)


def _adapt_workers() -> None:
    """Run worker processes in the world."""
    import sidecar.node.worker_node as worker
    from sidecar.runtime.logs import LOGS
    from sidecar.workers import workers
    from tests.simulation.world.machine import child_process

    LOGS.configure = lambda *_: None  # type: ignore[method-assign]
    pairs = SimpleNamespace(socketpair=child_process.socketpair, AF_UNIX=socket.AF_UNIX, SOCK_STREAM=socket.SOCK_STREAM)
    ignored = SimpleNamespace(**vars(signal) | {"signal": lambda *_: None})
    setattr(workers, "socket", pairs)  # noqa: B010
    setattr(workers, "spawn_process", child_process.spawn)  # noqa: B010
    setattr(worker, "socket", SimpleNamespace(socket=child_process.socket_of))  # noqa: B010
    setattr(worker, "signal", ignored)  # noqa: B010
    setattr(worker, "run_loop", child_process.run_loop)  # noqa: B010
    setattr(worker, "retain_freed_memory", lambda: None)  # noqa: B010
    setattr(worker, "make_collections_rare", lambda: None)  # noqa: B010
    setattr(worker, "queue", SimpleNamespace(SimpleQueue=child_process.ThreadQueue))  # noqa: B010
    worker.Channel.finish = partialmethod(child_process.finish_channel, worker.Channel.finish)  # type: ignore[assignment]


def _adapt_ingest() -> None:
    """Let the thread that reads a burst read a simulated connection."""
    from sidecar.transport import ingest_connection
    from tests.simulation.world.machine import ingest_thread

    ingest_thread.adapt(ingest_connection)


def _adapt_tracing() -> None:
    """Let OpenTelemetry describe a process without threads. It waits for them on the event loop, in real time."""
    import opentelemetry.sdk.resources as resources

    futures = SimpleNamespace(ThreadPoolExecutor=threads.InlinePool, TimeoutError=concurrent.futures.TimeoutError)
    setattr(resources, "concurrent", SimpleNamespace(futures=futures))  # noqa: B010
