"""``liftpy partition move``: one partition to other nodes, by hand."""

from __future__ import annotations

import json

import click

from liftpy.client import Client
from liftpy.cluster.image import StreamImage
from liftpy.cluster.movements import movement_of
from liftpy.errors import NotFoundError
from liftpy.partition import PartitionState
from sidecar.cli.movement import follow, timeout_option, wait_option
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.settings import Target


@click.command()
@click.argument("stream")
@click.argument("number", type=click.IntRange(0), default=0, metavar="[PARTITION]")
@click.option(
    "--to", "nodes", default="", metavar="NODE,NODE,...", help="Where its replicas are to be, preferred leader first."
)
@click.option("--cancel", is_flag=True, help="They stay where they are; a swap that is beyond its copy is finished.")
@wait_option
@timeout_option
@json_option
@connection_options
def move(
    stream: str, number: int, nodes: str, cancel: bool, wait: bool, timeout_s: float, as_json: bool, target: Target
) -> None:
    """Move the replicas of STREAM's PARTITION (0), one swap at a time. It goes on whatever is killed, this command as well."""
    wanted = tuple(node.strip() for node in nodes.split(",") if node.strip())
    if bool(wanted) == cancel:
        raise click.UsageError("say where to, --to a,b,c, or --cancel")

    async def work(client: Client) -> PartitionState:
        image = await client.stream(stream)
        if number >= len(image.partitions):
            raise NotFoundError(f"{stream} has the partitions 0 to {len(image.partitions) - 1}")
        decided = await client.reassign(image, number, wanted)
        if not wait:
            return decided
        uid = image.uid
        await follow(
            client,
            lambda movement: (movement.uid, movement.partition) == (uid, number),
            lambda now: _rests(now.streams.get(stream), uid, number),
            timeout_s,
            quiet=as_json,
        )
        return (await client.stream(stream)).partitions[number]

    now = with_client(target, work)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "stream": stream,
                    "partition": number,
                    "replicas": list(now.replicas),
                    "target": list(now.target),
                    "leader": now.leader,
                }
            )
        )
        return
    click.echo(
        f"{stream}/{number} is on {' '.join(now.replicas)}" + (f", on its way to {' '.join(now.target)}" if now.target else "")
    )


def _rests(image: StreamImage | None, uid: str, number: int) -> bool:
    return image is None or image.uid != uid or movement_of(image, image.partitions[number]) is None
