"""``liftpy log-level``: set the log level of a node for a limited time."""

from __future__ import annotations

import json
from typing import Any

import click

from liftpy.client import Client
from liftpy.core.base.ids import check_name
from liftpy.errors import ConfigError
from sidecar.cli.completion import NODE
from sidecar.cli.help import HelpCommand
from sidecar.cli.options import Duration, connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.runtime.logs import LEVELS
from sidecar.runtime.settings import Target

_MOST_S = 86_400.0


@click.command(name="log-level", cls=HelpCommand, example="liftpy log-level n1 debug --duration 10m")
@click.argument("node_id", metavar="NODE", type=NODE)
@click.argument("level", type=click.Choice(LEVELS))
@click.option(
    "--duration",
    "duration_s",
    type=Duration(0.001, _MOST_S),
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="Time until the level returns to the setting, 1ms to 1d.",
)
@json_option
@connection_options
def log_level(node_id: str, level: str, duration_s: float, as_json: bool, target: Target) -> None:
    """Set the log level of NODE for a limited time. Needs operator permissions."""
    check_name(node_id, "node")

    async def work(client: Client) -> dict[str, Any]:
        return await client.admin.node_log_level(node_id, level, duration_s)

    said = with_client(target, work, needs_majority=False)
    if "error" in said:
        raise ConfigError(str(said["error"]))
    click.echo(
        json.dumps({"node": node_id, **said}) if as_json else f"{node_id} logs from {level} on for {Duration.text(duration_s)}"
    )
