"""``liftpy log-level``: have a node log more, or less, for a time; then it falls back by itself."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from liftpy.client import Client
from liftpy.core.base.ids import check_name
from liftpy.errors import ConfigError
from sidecar.cli.completion import NODE
from sidecar.cli.help import HelpCommand
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.runtime.logs import LEVELS
from sidecar.runtime.settings import Target

_MOST_S = 86_400.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str, option: str) -> float:
    """Read a duration: ``90s``, ``5m``, ``1h``. Raises click.BadParameter that names ``option``."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smh])", text, re.ASCII)
    if found is None:
        raise click.BadParameter(f"{text!r}. Use a duration such as 90s, 5m or 1h.", param_hint=option)
    return float(found[1]) * _UNITS[found[2]]


@click.command(name="log-level", cls=HelpCommand, example="liftpy log-level n1 debug --for 10m")
@click.argument("node_id", metavar="NODE", type=NODE)
@click.argument("level", type=click.Choice(LEVELS))
@click.option("--for", "how_long", default="5m", show_default=True, metavar="TIME", help="Duration, at most 24h.")
@json_option
@connection_options
def log_level(node_id: str, level: str, how_long: str, as_json: bool, target: Target) -> None:
    """Set the log level of NODE for a limited time. Needs operator permissions."""
    check_name(node_id, "node")
    for_s = seconds(how_long, "--for")
    if not 0 < for_s <= _MOST_S:
        raise click.BadParameter(f"{how_long!r} is not more than 0s and at most 24h.", param_hint="--for")

    async def work(client: Client) -> dict[str, Any]:
        return await client.admin.node_log_level(node_id, level, for_s)

    said = with_client(target, work, needs_majority=False)
    if "error" in said:
        raise ConfigError(str(said["error"]))
    click.echo(json.dumps({"node": node_id, **said}) if as_json else f"{node_id} logs from {level} on for {how_long}")
