"""``liftpy health --status-port``: check the node on this machine over HTTP.

A supervisor may start this command every few seconds. So this module imports no NATS client. Exit codes: 0 healthy, 1 not healthy,
3 no answer. ``liftpy health`` without ``--status-port`` is in ``sidecar.cli.health``.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from sidecar.cli.help import HelpCommand

EXIT_UNHEALTHY = 1
"""A check of ``liftpy health`` has failed."""
EXIT_SILENT = 3
"""No node has answered ``liftpy health``."""
_TIMEOUT_S = 3.0
_MAX_BYTES = 1 << 16
_PATHS = {"live": "/livez?verbose", "ready": "/readyz?verbose", "synced": "/readyz?synced&verbose"}
F = TypeVar("F", bound=Callable[..., Any])


def levels(function: F) -> F:
    """Add the flags --synced, --ready and --live to a command. The command gets the name of the flag as ``level``."""
    for flag, text in (
        ("--synced", "Check that the node is ready, and that all its replicas have been in sync since its start."),
        ("--ready", "Check that the node takes part in the cluster. (default)"),
        ("--live", "Check that the process works. It does not need to be restarted. Problems of other nodes do not count."),
    ):
        name = flag.removeprefix("--")
        function = click.option(flag, "level", flag_value=name, help=text)(function)
    return function


status_port_option = click.option(
    "--status-port",
    "port",
    type=click.IntRange(1, 65_535),
    help="Query the node on this machine with this status port, without NATS.",
)


@click.command(cls=HelpCommand, example="liftpy health --status-port 8222 --ready")
@levels
@status_port_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def health(level: str | None, port: int, as_json: bool) -> int:
    """Check the health of the node with this status port. Exit code 0: healthy, 1: not healthy, 3: no answer."""
    return show(by_port(port, level or "ready"), as_json)


def show(result: dict[str, Any], as_json: bool) -> int:
    """Print the checks in ``result``, and return the exit code of the command."""
    click.echo(json.dumps(result) if as_json else "\n".join(result["checks"]))
    return 0 if result["healthy"] else EXIT_SILENT if result["silent"] else EXIT_UNHEALTHY


def by_port(port: int, level: str) -> dict[str, Any]:
    """Ask the node on this machine for its checks over HTTP.

    Return ``healthy``, ``silent`` (True without an answer) and ``checks``, one text line for each check.
    """
    try:
        answer = _ask_local_node(port, _PATHS[level])
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return {"healthy": False, "silent": True, "checks": [f"[-] no node answers on port {port}: {why}"]}
    head, _, body = answer.partition(b"\r\n\r\n")
    return {"healthy": head.split()[1] == b"200", "silent": False, "checks": body.decode("utf-8", "replace").splitlines()}


def _ask_local_node(port: int, path: str) -> bytes:
    """Send an HTTP request for ``path`` to ``port`` of this machine, and return the raw answer.

    Raise OSError, or ValueError if the answer is not HTTP. Python's HTTP client is not used, because its import takes 20 ms.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        answer = b""
        while len(answer) < _MAX_BYTES and (more := connection.recv(_MAX_BYTES)):
            answer += more
            connection.settimeout(max(0.001, deadline - time.monotonic()))
    if not answer.startswith(b"HTTP/1.") or len(answer.split(None, 2)) < 3:
        raise ValueError("the answer is not HTTP. Check that the port is the status port of the node")
    return answer
