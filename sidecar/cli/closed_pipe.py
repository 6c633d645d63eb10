"""What is at the other end of the standard output: nobody any more, when it was ``| head``."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
from typing import TextIO

_LOOK_S = 0.2


async def reader_gone(output: TextIO) -> None:
    """Raise BrokenPipeError when the reader of a pipe has gone, also while there is nothing to write; else go on for ever."""
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
    """Nothing more is written: the interpreter, which flushes at its end, must not fail at a pipe that nobody reads."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
