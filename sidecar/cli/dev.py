"""``liftpy dev``: nats-server and N sidecars as real processes, in the foreground, until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import click

from liftpy.core.base.worker_assignment import MOST_WORKERS
from liftpy.errors import UnavailableError
from liftpy.nats.credentials import Credentials
from liftpy.nats.transport import open_connection
from liftpy.nats.urls import check_urls, without_secrets
from sidecar.cli.help import HelpCommand
from sidecar.cli.main import stop_signals
from sidecar.cli.options import Duration, Size, credential_options, jetstream_option, json_option
from sidecar.cli.output import limit_waits_for_readers, print_json
from sidecar.dev.cluster import MAX_NODES, DevCluster
from sidecar.runtime.settings import (
    DEFAULT_NAMESPACE,
    credentials_environment,
    dev_environment,
    settings_environment,
    unknown_variables,
)

_WATCH_S = 0.25
_SOON_S = 10.0
_MAX_EARLY_ENDS = 3
"""Number of consecutive ends within ``_SOON_S`` of a start after which ``liftpy dev`` stops with an error."""
_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")


@click.command(cls=HelpCommand, example="liftpy dev --nodes 3 --data /tmp/liftpy")
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(1, MAX_NODES), help="Number of sidecars.")
@click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(1, MOST_WORKERS),
    help="Worker processes of each sidecar. They share its partitions.",
)
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), help="Data directory.  [default: a temporary directory]"
)
@click.option(
    "--port",
    default=4222,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="Port of nats-server. 0 means any free port.",
)
@click.option("--nats", metavar="URL", help="Use this NATS server instead of starting one.")
@click.option("--namespace", default=DEFAULT_NAMESPACE, show_default=True, metavar="NS", help="Namespace of the cluster.")
@click.option(
    "--restart-delay",
    "restart_after",
    default="2s",
    show_default=True,
    type=Duration(),
    help="Delay before a killed or failed node is restarted.",
)
@jetstream_option
@click.option(
    "--max-payload",
    type=Size(1024, 64 * 1024 * 1024),
    help="Maximum message size of nats-server. Not allowed with --nats.  [default: 1 MiB]",
)
@json_option
@credential_options
def dev(
    nodes: int,
    workers: int,
    data: Path | None,
    port: int,
    nats: str | None,
    namespace: str,
    restart_after: float,
    jetstream_api: str | None,
    max_payload: int | None,
    as_json: bool,
    credentials: Credentials,
) -> None:
    """Run nats-server and a cluster of sidecars on this machine, in the foreground.

    If you kill a node, the others elect a leader, and the command restarts the node. It also restarts nats-server.

    The nodes also read LIFTPY_* variables, except settings that differ between nodes or that an option sets.

    Ctrl-C, SIGTERM or the end of the parent process stops everything. With --json, the first line of the standard output
    reports that the cluster is ready: {"event": "ready", "nats": URL, "namespace": NS, "nodes": {...}}.
    """
    limit_waits_for_readers()
    settings, unused = dev_environment()
    if unused:
        click.echo(f"liftpy dev ignores these variables, because it names and places its nodes: {', '.join(unused)}", err=True)
    for name, nearest in unknown_variables().items():
        hint = f"Did you mean {nearest}?" if nearest else "See `liftpy sidecar --help` for the settings."
        click.echo(f"Unknown environment variable {name} is ignored. {hint}", err=True)
    if nats and max_payload:
        raise click.UsageError(
            "--max-payload cannot be combined with --nats. Set max_payload in the configuration of that server."
        )
    if data is not None:
        data.mkdir(parents=True, exist_ok=True)  # an unusable directory gives an error at once
    if nats:
        check_urls(nats.split(","))
        asyncio.run(_check_connection(nats, credentials))
    stopping = threading.Event()
    for number in (signal.SIGINT, *stop_signals()):
        signal.signal(number, lambda *_: stopping.set())
    cluster = DevCluster(
        nodes,
        data=data,
        port=port,
        nats_url=nats or "",
        namespace=namespace,
        settings={
            **settings,
            **settings_environment(workers=workers if workers > 1 else 0, jetstream_api=jetstream_api),
            **(credentials_environment(credentials) if nats else {}),
        },
        max_payload_bytes=max_payload or 0,
        on_line=partial(_print_line, click.get_current_context().color),
    )
    try:
        cluster.start(is_stopping=stopping.is_set)
        _announce(cluster, as_json)
        supervisor = _Supervisor(cluster, restart_after)
        while not stopping.wait(_WATCH_S):
            supervisor.restart_ended(time.monotonic())
    except UnavailableError:
        if not stopping.is_set():  # otherwise the user has ended the start
            raise
    finally:
        if not as_json:
            click.echo("stopping", err=True)
        cluster.stop()


async def _check_connection(nats: str, credentials: Credentials) -> None:
    """Connect once to the NATS server at the URL ``nats``, so that the user sees an error at once.

    The nodes would retry forever if the server is missing or rejects the credentials.
    """
    connection = await open_connection(nats, credentials=credentials, name="liftpy-dev")
    await connection.close()


class _Supervisor:
    """Restarts processes that have ended, and gives up if a node ends again and again.

    ``after_s``: time between the end of a process and its restart, in seconds.
    """

    def __init__(self, cluster: DevCluster, after_s: float) -> None:
        self._cluster = cluster
        self._after_s = after_s
        self._started_s = dict.fromkeys(cluster.nodes, time.monotonic())
        self._ended_s: dict[str, float] = {}
        self._soon: Counter[str] = Counter()

    def restart_ended(self, now_s: float) -> None:
        """Restart nats-server and the nodes whose process has ended. Call it about once per second.

        ``now_s``: monotonic time, in seconds. Raises UnavailableError if a node ends again and again, or if nats-server does not start.
        """
        nats = self._cluster.nats
        if nats is not None and nats.end_reason:  # without it, no node can do anything
            click.echo(f"nats-server {nats.end_reason}; restart now", err=True)
            nats.resume()
        for name in self._cluster.ended_nodes():
            node = self._cluster.nodes[name]
            if name not in self._ended_s:
                self._ended_s[name] = now_s
                self._soon[name] = self._soon[name] + 1 if now_s - self._started_s[name] < _SOON_S else 1
                if self._soon[name] > _MAX_EARLY_ENDS:
                    raise UnavailableError(
                        f"Node {name} ends repeatedly ({node.end_reason}). Fix the cause in its log, then run `liftpy dev` "
                        f"again. Last log lines: {' | '.join(list(node.log)[-3:])}"
                    )
                click.echo(f"node {name} {node.end_reason}; restart in {self._after_s:g} s", err=True)
            elif now_s - self._ended_s[name] >= self._after_s:
                del self._ended_s[name]
                self._started_s[name] = now_s
                node.start()


def _announce(cluster: DevCluster, as_json: bool) -> None:
    nodes: dict[str, Any] = {
        name: {"pid": node.pid, "status": node.status_url, "data": str(cluster.data / name)}
        for name, node in cluster.nodes.items()
    }
    if as_json:
        event = {"event": "ready", "nats": without_secrets(cluster.nats_url), "namespace": cluster.namespace, "nodes": nodes}
        print_json(event)
        return
    click.echo(
        f"ready: {len(nodes)} nodes on {without_secrets(cluster.nats_url)}, data in {cluster.data}; Ctrl-C stops everything"
    )
    click.echo(f"  next: liftpy stream create events --subject 'events' --nats {without_secrets(cluster.nats_url)}")


def _print_line(has_color: bool | None, node_id: str, line: str) -> None:
    """Print a line of the log of a node. A thread calls it. ``has_color``: None: if the standard error is a terminal."""
    color = _COLOURS[sum(node_id.encode()) % len(_COLOURS)]
    click.echo(f"{click.style(f'{node_id:>4} |', fg=color)} {line}", err=True, color=has_color)
