"""Script that makes a process get a signal when its parent ends, and then runs another program in it.

    python -I -S dies_with_parent.py SIGNAL PARENT_PID PROGRAM ARGUMENT...

The child arranges this itself. With a ``preexec_fn``, Python would run the fork hooks of ``logging`` and others in the
parent. A signal that arrives then can leave their locks held forever. This script imports only the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # Linux only. The setting stays after exec


def main(arguments: list[str]) -> None:
    """Replace this process by the program. ``arguments``: signal, process id of the parent, program and its arguments.

    Exit with 1 if the parent has ended. Exit with the text of the OSError if the program does not exist.
    """
    with_signal, parent, *command = arguments
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, int(with_signal))
    if os.getppid() != int(parent):
        sys.exit(1)  # the parent ended before the setting was made
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals. The program decides for itself
        signal.signal(ignored, signal.SIG_DFL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
