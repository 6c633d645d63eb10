"""``liftpy sidecar``: one node, what a deployment runs."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from liftpy.errors import LiftError
from sidecar.runtime.logs import LOGS
from sidecar.runtime.restarts import EXIT_NEVER_AGAIN, EXIT_TO_REPAIR, count_restart, never_again, pause_s
from sidecar.runtime.settings import GivenSettings, restarted_environment, restarts_in_a_row
from sidecar.runtime.tasks import run_loop

logger = logging.getLogger("liftpy.node")


@click.command()
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="TOML file; flags and LIFTPY_* win over it.")
@click.option("--node-id", default=None, help="This node's id: one token of A-Z a-z 0-9 _ -, never given to another node.")
@click.option("--data", default=None, help="Folder for the logs and the metadata; one process per folder.")
@click.option("--nats", default=None, metavar="URL", help="NATS server, or several, comma separated.")
@click.option("--namespace", default=None, metavar="NS", help="The cluster's namespace.")
@click.option("--controllers", default=None, metavar="IDS", help="Ids of the nodes of the metadata group, comma separated.")
@click.option(
    "--bootstrap-majority",
    is_flag=True,
    default=None,
    help="For the first start of a cluster whose other controllers can't come: begin with a majority. NEVER when one of the missing "
    "has been a member: what the group knew would be lost.",
)
@click.option("--rack", default=None, help="Where this node stands, for placement.")
@click.option("--weight", default=None, type=float, help="This node's share of partitions, for weighted placement.")
@click.option("--status-port", default=None, type=int, help="Loopback status page and metrics; 0: any free port, -1: off.")
@click.option(
    "--workers",
    default=None,
    type=int,
    metavar="N",
    help="Processes that this node's partitions are shared out among, about one for each core.  [default: 1]",
)
@click.option(
    "--jetstream-api",
    is_flag=False,
    flag_value="liftpy",
    default=None,
    metavar="[DOMAIN]",
    help="Answer JetStream's stateless read API too, in the domain liftpy or this one (docs/jetstream.md).",
)
@click.option("--creds", "creds_file", default=None, metavar="FILE", help="File with a NATS JWT and its nkey seed.")
@click.option("--nkey", "nkey_seed_file", default=None, metavar="FILE", help="File with a NATS nkey seed.")
@click.option("--user", default=None, help="NATS user; the password comes from LIFTPY_PASSWORD.")
@click.option("--tls-ca", "tls_ca_file", default=None, metavar="FILE", help="Certificates to trust (PEM).")
@click.option("--tls-cert", "tls_cert_file", default=None, metavar="FILE", help="Own certificate (PEM).")
@click.option("--tls-key", "tls_key_file", default=None, metavar="FILE", help="Key of the own certificate (PEM).")
@click.option("--log-level", default=None, type=click.Choice(["debug", "info", "warning", "error"]), help="What is logged.")
@click.option("--log-format", default=None, type=click.Choice(["text", "json"]), help="How it is logged.")
@click.option("--json", "as_json", is_flag=True, help="Say on the standard output when the node is ready, as one line of JSON.")
def sidecar(config: Path | None, as_json: bool, **flags: Any) -> int:
    """Run one node. SIGTERM stops it cleanly; a node that was killed comes back, registers anew and catches up.

    Every option is also a setting in the file and an environment variable: LIFTPY_NODE_ID, LIFTPY_DATA, LIFTPY_NATS,
    LIFTPY_CONTROLLERS... and LIFTPY_REPLICATION_<NAME> for time-outs and bounds.

    Exit codes: 0 stopped cleanly; 1 failed, a restart may help; 2 wrong usage or setting; 3 nobody answered; 75 restart me, to repair;
    78 never restart without a person: the folder is another node's, of another version, or has lost what a controller needs,
    or the cluster is at a feature level that this version does not speak; 130 interrupted before it had started.
    """
    given = GivenSettings(config, flags)
    settings = given.load()
    LOGS.configure(settings.log_level, settings.log_format, settings.node_id)
    from sidecar.node.run import run_node  # late: brings nats-py and PySyncObj
    from sidecar.runtime.restarts import stay_in_the_process

    began = time.monotonic()

    def say_ready(facts: dict[str, Any]) -> None:
        if as_json:
            print(json.dumps({"event": "ready", **facts}), flush=True)

    try:
        code = run_loop(run_node(settings, say_ready, given))
    except LiftError as error:
        if not never_again(error):
            raise
        click.echo(f"Error: {error}", err=True)
        return EXIT_NEVER_AGAIN
    if code == EXIT_TO_REPAIR:
        stay_in_the_process()
        in_a_row = count_restart(restarts_in_a_row(), time.monotonic() - began)
        logger.warning("starting again in %g s", pause_s(in_a_row))
        time.sleep(pause_s(in_a_row))
        arguments = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, arguments, restarted_environment(in_a_row))  # the same process for its supervisor
    return code
