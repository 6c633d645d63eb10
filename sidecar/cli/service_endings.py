"""How ``liftpy service run`` ends: exit codes that tell a supervisor whether a new start can help.

As of every command 0, 1, 2, 3 and 130 (``sidecar.cli.main``), as of a node 75 (``sidecar.restarting``); the others are those of
sysexits.h that come nearest. What no start can heal is in ``DO_NOT_RESTART``.
"""

from __future__ import annotations

import shlex

from liftpy.errors import (
    ConfigError,
    CorruptionError,
    DataLossError,
    FencedError,
    FolderLockedError,
    LiftError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    UnknownFormatError,
)
from liftpy.service.base import DivergedError, ServiceFailedError
from liftpy.service.outbox import OutputConflictError
from sidecar.restarting import EXIT_TO_REPAIR, momentary

EXIT_FAILED = 1
"""Of ``liftpy service``: failed otherwise. A restart may help."""
EXIT_CONFIG = 2
"""Of ``liftpy service``: wrong usage, setting or class. No restart."""
EXIT_UNAVAILABLE = 3
"""Of ``liftpy service``: nobody answers. Restart."""
EXIT_DATA = 65
"""EX_DATAERR: a service can't apply a record, or its output stream is not its own. No restart."""
EXIT_PLACE_TAKEN = 69
"""EX_UNAVAILABLE: another process of the service has its place. No restart."""
EXIT_DIVERGED = 70
"""EX_SOFTWARE: a service's state is not that of the other nodes. No restart."""
EXIT_NOT_ALLOWED = 77
"""EX_NOPERM: NATS does not give a service its rights. No restart."""

_CODES: tuple[tuple[tuple[type[LiftError], ...], int], ...] = (
    ((ConfigError,), EXIT_CONFIG),
    ((DivergedError,), EXIT_DIVERGED),
    ((FencedError, FolderLockedError), EXIT_PLACE_TAKEN),
    ((ServiceFailedError, OutputConflictError, DataLossError, CorruptionError, UnknownFormatError), EXIT_DATA),
    ((NotAllowedError,), EXIT_NOT_ALLOWED),
    ((UnavailableError,), EXIT_UNAVAILABLE),
    ((NotFoundError,), EXIT_TO_REPAIR),
)
DO_NOT_RESTART = (EXIT_CONFIG, EXIT_DATA, EXIT_PLACE_TAKEN, EXIT_DIVERGED, EXIT_NOT_ALLOWED)
TABLE = (
    (0, "no", "told to stop (SIGTERM, SIGINT)"),
    (EXIT_FAILED, "yes", "failed otherwise: a bug, a disk that does not work"),
    (EXIT_CONFIG, "no", "wrong usage, setting or class; parameters that are not those of the other nodes"),
    (EXIT_UNAVAILABLE, "yes", "nobody answers"),
    (
        EXIT_DATA,
        "no",
        "a record that it can't apply (liftpy service skip), a foreign record in its output stream, a log that begins too late",
    ),
    (EXIT_PLACE_TAKEN, "no", "another process of the service has its place beside the node, or its folder"),
    (EXIT_DIVERGED, "no", "its state is not that of the other nodes"),
    (EXIT_TO_REPAIR, "yes", "a disk that was full, a stream that was made again: begins anew"),
    (EXIT_NOT_ALLOWED, "no", "NATS does not give it the rights (liftpy rights --role service)"),
)
"""(code, whether a new start can help, when)."""


def exit_code(error: LiftError) -> int:
    """The exit code of a service that ends with ``error``."""
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return EXIT_TO_REPAIR if momentary(error) else EXIT_FAILED


def restart_helps(error: LiftError) -> bool:
    """Whether the same service may go on after a new start."""
    return exit_code(error) not in DO_NOT_RESTART


def table() -> str:
    """For ``--help``: one line for each code, and what systemd needs."""
    lines = [f"{code:>4}  {'restart' if again == 'yes' else 'do not restart':<14}  {when}" for code, again, when in TABLE]
    numbers = shlex.join(map(str, DO_NOT_RESTART))
    return "\b\nExit codes:\n" + "\n".join(lines) + f"\n\nsystemd: Restart=on-failure, RestartPreventExitStatus={numbers}"
