"""``liftpy node``: membership. A node joins by registering itself when it starts; that it is gone for good is an operator's to say."""

from __future__ import annotations

import asyncio
import json
import time

import click

from liftpy.client import Client, ClusterState
from liftpy.cluster.decisions.nodes import still_a_controller, why_it_stays
from liftpy.cluster.image import NodeImage
from liftpy.errors import ConfigError, NotFoundError
from liftpy.ids import check_name
from sidecar.cli.drain import drain, what_is_offline
from sidecar.cli.may_stop import may_stop
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.settings import Target

_POLL_S = 0.1
AUTO = "auto"


@click.group()
def node() -> None:
    """Drain a node, ask whether it may stop, remove one that is gone for good; say a node's weight and rack."""


node.add_command(drain)
node.add_command(may_stop)


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
    """Forget NODE, which has stopped, holds no replica, and is no controller. Its data folder is left alone; started again, it
    registers again."""
    check_name(node_id, "node")

    async def work(client: Client) -> ClusterState:
        return await _removed(client, node_id, dry_run, timeout_s)

    with_client(target, work)
    if as_json:
        click.echo(json.dumps({"node": node_id, "removed": not dry_run, "dry_run": dry_run, "controller": False}))
        return
    click.echo(f"{node_id} would be removed" if dry_run else f"{node_id} is removed")


@node.command(name="set-weight")
@click.argument("node_id", metavar="NODE")
@click.argument("weight", metavar="WEIGHT|auto")
@json_option
@connection_options
def set_weight(node_id: str, weight: str, as_json: bool, target: Target) -> None:
    """Say NODE's share of partitions, for the placements that weigh; auto: as the node's settings say, from its next start on."""
    value = None if weight == AUTO else _number(weight)

    async def work(client: Client) -> NodeImage:
        return await (client.reset_node(node_id, weight=True) if value is None else client.set_node(node_id, weight=value))

    _show_facts(with_client(target, work), as_json)


@node.command(name="set-rack")
@click.argument("node_id", metavar="NODE")
@click.argument("rack", metavar="RACK|auto")
@json_option
@connection_options
def set_rack(node_id: str, rack: str, as_json: bool, target: Target) -> None:
    """Say where NODE stands, for placement ('': nowhere); auto: as the node's settings say, from its next start on."""

    async def work(client: Client) -> NodeImage:
        return await (client.reset_node(node_id, rack=True) if rack == AUTO else client.set_node(node_id, rack=rack))

    _show_facts(with_client(target, work), as_json)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number, and not {AUTO}", param_hint="WEIGHT") from None


def _show_facts(node: NodeImage, as_json: bool) -> None:
    facts = {
        "node": node.node_id,
        "weight": node.weight,
        "weight_by_hand": node.weight_by_hand,
        "rack": node.rack,
        "rack_by_hand": node.rack_by_hand,
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    by_hand = {True: " (by hand)", False: ""}
    click.echo(
        f"{node.node_id}: weight {node.weight:g}{by_hand[node.weight_by_hand]}, rack {node.rack or 'none'}{by_hand[node.rack_by_hand]}"
    )


async def _removed(client: Client, node_id: str, dry_run: bool, timeout_s: float) -> ClusterState:
    """The cluster before the node was removed. What runs, or did a moment ago, is waited for until the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        state = await client.describe_cluster()
        if any(node_id == member.node_id for member in state.controllers):
            raise ConfigError(still_a_controller(node_id))
        wrong = why_it_stays(state.image, node_id)
        known = state.image.nodes.get(node_id)
        if known is None:
            raise NotFoundError(wrong)
        if wrong and (known.fenced or time.monotonic() >= deadline):
            raise ConfigError("; ".join((wrong, *what_is_offline(state.image, node_id))))
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
