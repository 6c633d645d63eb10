"""``liftpy node``: membership. A node joins by registering itself when it starts; that it is gone for good is an operator's to say."""

from __future__ import annotations

import asyncio
import json
import time

import click

from liftpy.client import Client, ClusterState
from liftpy.cluster.decisions.nodes import why_it_stays
from liftpy.errors import ConfigError, NotFoundError
from liftpy.ids import check_name
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.settings import Target

_POLL_S = 0.1


@click.group()
def node() -> None:
    """Remove a node that is gone for good."""


@node.command()
@click.argument("node_id", metavar="NODE")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, 3600),
    default=5.0,
    show_default=True,
    help="Seconds for it to have stopped.",
)
@json_option
@connection_options
def remove(node_id: str, dry_run: bool, timeout_s: float, as_json: bool, target: Target) -> None:
    """Forget NODE, which has stopped and holds no replica. Its data folder is left alone; started again, it registers again."""
    check_name(node_id, "node")

    async def work(client: Client) -> ClusterState:
        return await _removed(client, node_id, dry_run, timeout_s)

    state = with_client(target, work)
    controller = any(node_id == member.node_id for member in state.controllers)
    if as_json:
        click.echo(json.dumps({"node": node_id, "removed": not dry_run, "dry_run": dry_run, "controller": controller}))
        return
    click.echo(f"{node_id} would be removed" if dry_run else f"{node_id} is removed")
    if controller:
        click.echo(f"{node_id} stays one of the controllers, as long as their settings name it", err=True)


async def _removed(client: Client, node_id: str, dry_run: bool, timeout_s: float) -> ClusterState:
    """The cluster before the node was removed. What runs, or did a moment ago, is waited for until the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        state = await client.describe_cluster()
        wrong = why_it_stays(state.image, node_id)
        known = state.image.nodes.get(node_id)
        if known is None:
            raise NotFoundError(wrong)
        if wrong and (known.fenced or time.monotonic() >= deadline):
            raise ConfigError(wrong)
        if not wrong and dry_run:
            return state
        if not wrong:
            try:
                await client.remove_node(node_id)
            except ConfigError:
                if time.monotonic() >= deadline:
                    raise
            else:
                return state
        await asyncio.sleep(_POLL_S)
