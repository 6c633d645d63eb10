"""``liftpy node drain``: what a node holds moves to others, its leaderships first; afterwards it can be stopped and removed."""

from __future__ import annotations

import json
from typing import Any

import click

from liftpy.client import Client
from liftpy.cluster.decisions.placing import facts_of
from liftpy.cluster.image import ClusterImage
from liftpy.cluster.movements import Movement, offline_on
from liftpy.ids import check_name
from sidecar.cli.movement import follow, timeout_option
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.settings import Target


@click.command()
@click.argument("node_id", metavar="NODE")
@click.option("--wait", is_flag=True, help="Show how far it is until NODE holds nothing.")
@click.option("--cancel", is_flag=True, help="NODE stays: what has not begun to move does not.")
@timeout_option
@json_option
@connection_options
def drain(node_id: str, wait: bool, cancel: bool, timeout_s: float, as_json: bool, target: Target) -> None:
    """Move everything away from NODE, one copy after the other: it is given nothing more, its leaderships go first. It goes on whatever
    is killed, this command as well. A node that is down is replaced at once, without waiting for replacement_grace_s."""
    check_name(node_id, "node")
    if cancel and wait:
        raise click.UsageError("--cancel and --wait exclude each other")

    async def work(client: Client) -> dict[str, Any]:
        await client.set_node(node_id, leaving=not cancel)
        image = (await client.describe_cluster()).image
        if not as_json and not cancel:
            click.echo(f"{node_id} is drained of {image.replica_counts.get(node_id, 0)} replicas")
            for line in [] if wait else _what_stays(image, node_id):
                click.echo(line, err=True)
        if wait:

            def concerns(movement: Movement) -> bool:
                return node_id in movement.replicas and node_id not in movement.target

            await follow(
                client,
                concerns,
                lambda now: not now.replica_counts.get(node_id),
                timeout_s,
                quiet=as_json,
                stays=lambda now: _what_stays(now, node_id),
            )
            image = (await client.describe_cluster()).image
        return {"node": node_id, "leaving": not cancel, "replicas": image.replica_counts.get(node_id, 0)}

    said = with_client(target, work)
    if as_json:
        click.echo(json.dumps(said))
    elif cancel:
        click.echo(f"{node_id} stays, and is given replicas again; it holds {said['replicas']}")
    elif wait:
        click.echo(f"{node_id} holds nothing: stop it, then liftpy node remove {node_id}")
    else:
        click.echo(f"liftpy status shows how far it is; liftpy node drain {node_id} --cancel takes it back")


def _what_stays(image: ClusterImage, node_id: str) -> list[str]:
    """What can't move, as it is now: for more replicas than there are nodes there is no other place, and what nobody leads is not
    copied."""
    others = sum(node.takes and node.weight > 0 for node in facts_of(image))
    names = sorted({stream.name for stream, p in image.partitions_of(node_id) if len(p.replicas) > others})
    found = []
    if names:
        found.append(
            f"{_some(names)}: more replicas than the {others} other nodes that may take them: they stay until there are more nodes"
        )
    return found + what_is_offline(image, node_id)


def what_is_offline(image: ClusterImage, node_id: str) -> list[str]:
    """Why some of what the node holds moves nowhere, however long one waits, and what an operator can do; [] where all can."""
    offline = [f"{stream.name}/{p.partition}" for stream, p in offline_on(image, node_id)]
    if not offline:
        return []
    return [
        f"{_some(offline)}: offline, and nobody who is there holds all that was committed: they stay until {node_id}, or another node "
        "that holds it, is started again; or elect who lacks records (liftpy partition elect --unclean), or delete the stream"
    ]


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
