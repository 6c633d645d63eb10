"""A process that ends by itself leaves no task, timer, file, connection or thread open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import Any

from tests.simulation.world.machine.scheduler import Process
from tests.simulation.world.machine.threads import VirtualThread

_CHANNEL = "liftpy-channel"
"""Prefix of the names of threads that read and write the channel to the other process until their process ends."""


def leftovers(process: Process, main: asyncio.Task[Any] | None = None) -> list[str]:
    """Return what is still open in ``process``. ``main``: the task that ends it.

    After a disk error the process may leave files open, because its end closes them.
    """
    found = []
    for loop in process.loops:
        tasks = [one for one in asyncio.all_tasks(loop) if one is not main and not one.cancelling()]
        found += sorted(f"task {one.get_name()} ({getattr(one.get_coro(), '__qualname__', '')})" for one in tasks)
        found += [f"timer {handle!r}" for _, handle in loop.timers]
    has_disk_errors = process.disk is not None and (process.disk.failures > 0 or process.disk.was_full)
    for descriptor in sorted(process.descriptors) if not has_disk_errors else ():
        with contextlib.suppress(OSError):
            found.append(f"file {os.readlink(f'/proc/self/fd/{descriptor}').rpartition('/data/')[2]}")
    for connection in process.scheduler.network.connections:
        if connection.process is process and connection.transport is not None and not connection.transport.is_closing():
            found.append(f"connection {getattr(connection.peer, 'name', '')}")
    for thread in threading.enumerate():
        if not isinstance(thread, VirtualThread) or thread is threading.current_thread() or thread.name.startswith(_CHANNEL):
            continue
        if thread.runs_in(process):
            found.append(f"thread {thread.name}")
    return found


def check_end(process: Process, main: asyncio.Task[Any] | None = None) -> None:
    """Check that a process that ends by itself leaves nothing open."""
    if found := leftovers(process, main):
        process.scheduler.violated(f"{process.name} has ended and left open: {', '.join(found[:5])}")
