"""``liftpy sidecar``: run one node."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from liftpy.errors import LiftError
from sidecar.cli.help import ConnectionOption, HelpCommand
from sidecar.cli.options import add_credential_options, jetstream_option
from sidecar.cli.output import discard_stdout, limit_waits_for_readers
from sidecar.runtime.logs import LEVELS, LOGS
from sidecar.runtime.restarts import EXIT_NO_RESTART, EXIT_TO_REPAIR, count_restart, pause_s, prevents_restart
from sidecar.runtime.settings import SettingsLoader, restarted_environment, restarts_in_a_row, unknown_variables
from sidecar.runtime.tasks import run_loop

logger = logging.getLogger("liftpy.node")


@click.command(
    cls=HelpCommand, example="liftpy sidecar --node-id n1 --data /var/lib/liftpy --nats nats://nats:4222 --controllers n1,n2,n3"
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with settings. Options and LIFTPY_* variables override it.",
)
@click.option("--node-id", help="Id of this node: letters, digits, _ and -. Never reuse the id of another node.")
@click.option("--data", help="Directory for the logs and the metadata. Each process needs its own directory.")
@click.option("--nats", cls=ConnectionOption, metavar="URL", help="NATS server, or several servers separated by commas.")
@click.option("--namespace", cls=ConnectionOption, metavar="NS", help="Namespace of the cluster.")
@click.option("--controllers", metavar="IDS", help="Ids of the controllers (nodes of the metadata group), separated by commas.")
@click.option(
    "--bootstrap-majority",
    is_flag=True,
    default=None,
    help=(
        "Start a new cluster with a majority of its controllers, if the others cannot start. Warning: if a "
        "missing controller was a member before, the metadata of the group is LOST."
    ),
)
@click.option("--rack", help="Rack of this node, for placement.")
@click.option("--weight", type=float, help="Relative share of partitions of this node, for weighted placement.")
@click.option(
    "--status-port",
    type=int,
    help="Port of the status page and the metrics on the loopback interface. 0 means any free port, -1 disables it.",
)
@click.option(
    "--probe-listen",
    metavar="HOST:PORT",
    help="Another address for /livez, /readyz and /metrics, such as the address of a pod. '' means none.  [default: none]",
)
@click.option(
    "--workers",
    type=int,
    metavar="N",
    help="Worker processes of this node. They share its partitions. Use about one for each core.  [default: 1]",
)
@jetstream_option
@add_credential_options
@click.option("--log-level", type=click.Choice(LEVELS), help="Minimum level of log lines.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Format of log lines.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON to the standard output when the node is ready.")
def sidecar(config: Path | None, as_json: bool, **flags: Any) -> int:
    """Run one node. SIGTERM stops it cleanly.

    Every option is also a setting in the TOML file and an environment variable: LIFTPY_NODE_ID, LIFTPY_DATA, LIFTPY_NATS,
    LIFTPY_CONTROLLERS and so on. Timeouts and limits are LIFTPY_REPLICATION_<NAME>.

    \b
    Exit codes:
      0    clean stop, also during the start
      1    failure. A restart may help.
      2    wrong usage or setting
      3    no answer from NATS or the cluster
      75   restart requested, to repair a log.
      78   do not restart, an operator must act. The data directory belongs to
           another node, user or version, or a controller lost data. This
           version does not support the feature level of the cluster. Or an
           operator has removed the node.
    """
    limit_waits_for_readers()
    received = _record_stop_signals()
    try:
        return _run(SettingsLoader(config, flags), received, as_json=as_json)
    except KeyboardInterrupt as error:  # SIGINT or SIGTERM before a restart, or SIGHUP before the node has its own handler
        if signal.SIGHUP in error.args:
            raise
        return 0


def _record_stop_signals() -> list[int]:
    """Record SIGTERM and SIGINT until the node has its own handlers. Return the list of the received signals.

    The handlers raise nothing, because Python ignores an exception of a handler in some places, such as callbacks of an import. A shell
    starts background jobs with an ignored SIGINT. The node stops after it nevertheless, during its start and later.
    """
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(ValueError):  # only the main thread gets signals
            signal.signal(number, lambda number, _: received.append(number))
    return received


def _run(sources: SettingsLoader, received: list[int], *, as_json: bool) -> int:
    """Run the node with the settings of ``sources``. Return the exit code. ``received``: signals that have arrived."""
    settings = sources.load()
    LOGS.configure(settings.log_level, settings.log_format, settings.node_id)
    for name, nearest in unknown_variables().items():
        logger.warning("unknown environment variable, ignoring variable=%s nearest=%s", name, nearest or "none")
    from sidecar.node.node import run_node  # late: brings nats-py and PySyncObj
    from sidecar.runtime.restarts import cancel_exit

    if received:
        return 0
    began = time.monotonic()

    def print_ready(facts: dict[str, Any]) -> None:
        if not as_json:
            return
        try:
            print(json.dumps({"event": "ready", **facts}), flush=True)
        except OSError as error:
            discard_stdout()
            logger.warning("ready line not written error=%s: continuing", error)

    try:
        code = run_loop(run_node(settings, print_ready, sources, received))
    except LiftError as error:
        if not prevents_restart(error):
            raise
        click.echo(f"Error: {error}", err=True)
        return EXIT_NO_RESTART
    if code == EXIT_TO_REPAIR:
        cancel_exit()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the next node reloads after it. It reads the settings anyway
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        in_a_row = count_restart(restarts_in_a_row(), time.monotonic() - began)
        logger.warning("node stopped restarts=%d: starting again in %g s", in_a_row, pause_s(in_a_row))
        time.sleep(pause_s(in_a_row))
        arguments = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, arguments, restarted_environment(in_a_row))  # the same process for its supervisor
    return code
