"""Handles a closed standard output, such as ``| head``."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
from typing import TextIO

_LOOK_S = 0.2


async def reader_gone(output: TextIO) -> None:
    """Raise BrokenPipeError when the reader of a pipe has closed it. Otherwise run forever."""
    import asyncio  # not with this module: a probe has no time for it

    watched = select.poll()
    with contextlib.suppress(OSError):  # no descriptor: not ours to watch
        kind = os.fstat(output.fileno()).st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
            watched.register(output.fileno(), 0)
    while not any(event & (select.POLLERR | select.POLLHUP) for _, event in watched.poll(0)):
        await asyncio.sleep(_LOOK_S)
    raise BrokenPipeError


def nobody_reads() -> None:
    """Replace the standard output, so that the flush at exit does not fail on a closed pipe."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
