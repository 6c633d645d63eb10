"""``liftpy health``: check a node or the whole cluster over NATS, or the node on this machine over its status port.

A supervisor may start the command every few seconds. So ``--status-port`` loads no NATS.
"""

from __future__ import annotations

import socket
import time
from typing import Any

import click

from liftpy.core.base.ids import PROBE_STREAM as PROBE
from sidecar.cli.help import HelpCommand, options_before
from sidecar.cli.options import add_shared_options, json_option, selected_target
from sidecar.cli.output import print_json

EXIT_UNHEALTHY = 1
"""A check of ``liftpy health`` has failed."""
EXIT_SILENT = 3
"""No node has answered ``liftpy health``."""
_TIMEOUT_S = 3.0
_MAX_BYTES = 1 << 16
_PATHS = {"live": "/livez?verbose", "ready": "/readyz?verbose", "synced": "/readyz?synced&verbose"}


@click.command(cls=HelpCommand, example="liftpy health --cluster\nliftpy health --status-port 8222 --live")
@click.option(
    "--live",
    "level",
    flag_value="live",
    help="Check that the process works. It does not need to be restarted. Problems of other nodes do not count.",
)
@click.option("--ready", "level", flag_value="ready", help="Check that the node takes part in the cluster. (default)")
@click.option(
    "--synced",
    "level",
    flag_value="synced",
    help="Check that the node is ready, and that all its replicas have been in sync since its start.",
)
@click.option(
    "--status-port",
    "port",
    type=click.IntRange(1, 65_535),
    help="Query the node on this machine with this status port, without NATS.",
)
@click.option("--node", "node_id", metavar="NODE", help="Check this node, over NATS.")
@click.option("--cluster", is_flag=True, help="Check each node, and check that the metadata group can commit. (default)")
@click.option(
    "--probe", is_flag=True, help=f"Publish a record to stream {PROBE}, read it back, and print the time of each step."
)
@json_option
@add_shared_options
@click.pass_context
def health(
    ctx: click.Context,
    /,
    level: str | None,
    port: int | None,
    node_id: str | None,
    cluster: bool,
    probe: bool,
    as_json: bool,
    **connection: str | None,
) -> int:
    """Check the health of a node or of the cluster. Exit code 0: healthy, 1: not healthy, 3: no answer.

    A cluster is healthy if all of these are true:

    \b
    - The metadata group commits.
    - Each node passes its own check.
    - The verdict of the cluster names no problem that an operator must solve. A line with [!] is a problem that ends by itself.

    After a network partition, the side with the majority reports 1 (the other nodes are fenced). The other side reports 3.
    """
    if node_id is not None and cluster:
        raise click.UsageError("--node and --cluster cannot be combined. Remove one of them.")
    if port is not None:
        if node_id is not None or cluster or probe or any(connection.values()) or options_before(ctx):
            raise click.UsageError("--status-port queries the node without NATS. Remove the options for NATS.")
        result = by_port(port, level or "ready")
    else:
        from sidecar.cli.node_reports import check_health

        with selected_target(connection) as target:
            result = check_health(target, level or "ready", node_id, probe)
    print_json(result) if as_json else click.echo("\n".join(result["checks"]))
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
    if not answer.startswith(b"HTTP/1.") or len(answer.partition(b"\r\n")[0].split()) < 2:
        raise ValueError("the answer is not HTTP. Check that the port is the status port of the node")
    return answer
