"""``liftpy partition``: move replicas, transfer leaderships, and elect a leader for an offline partition.

Each command waits until the change is complete. After ``--timeout`` it says what is missing.
"""

from __future__ import annotations

import asyncio
import time

import click

from liftpy.client import Client
from liftpy.client.stream_info import PartitionInfo
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.controller.election_triggers import partitions_off_preferred_leader
from liftpy.core.metadata.image import StreamImage
from liftpy.errors import ConfigError, NotFoundError, StaleRequestError, UnavailableError
from sidecar.cli.completion import NODE, STREAM
from sidecar.cli.help import HelpGroup
from sidecar.cli.options import ask_consent, connection_options, json_option, timeout_option
from sidecar.cli.output import count_of, print_json
from sidecar.cli.reassignment import follow, move_timeout_option, same_stream, wait_option
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target

_POLL_S = 0.05

number_argument = click.argument("number", type=click.IntRange(0), default=0, metavar="[PARTITION]")
leader_timeout_option = timeout_option("15s")


@click.group(cls=HelpGroup, example="liftpy partition transfer orders 0 --node n2")
def partition() -> None:
    """Move replicas and leaderships, and elect a leader for an offline partition."""


@partition.command(example="liftpy partition move orders 0 --node n2,n3,n4")
@click.argument("stream", type=STREAM)
@number_argument
@click.option(
    "--node",
    "nodes",
    type=NODE,
    multiple=True,
    metavar="NODE,NODE,...",
    help="New replicas, separated by commas, preferred leader first. May be repeated.",
)
@click.option("--cancel", is_flag=True, help="Cancel the move. A swap that has already copied its data is completed.")
@wait_option
@move_timeout_option
@json_option
@connection_options
def move(
    stream: str,
    number: int,
    nodes: tuple[str, ...],
    cancel: bool,
    wait: bool,
    timeout_s: float,
    as_json: bool,
    target: Target,
) -> None:
    """Move the replicas of PARTITION (default 0) of STREAM to other nodes, one swap at a time.

    The cluster continues the move if you stop this command or if a node fails.
    """
    wanted = tuple(node.strip() for node_list in nodes for node in node_list.split(",") if node.strip())
    if bool(wanted) == cancel:
        raise click.UsageError("Missing option: --node NODE,NODE,... or --cancel.")

    async def work(client: Client) -> PartitionInfo:
        image = await client.stream(stream)
        _find(image.image, number)
        decided = await client.admin.reassign(image, number, wanted)
        if not wait:
            return decided
        key = image.uid, number
        await follow(client, lambda movement: (movement.uid, movement.partition) == key, timeout_s, quiet=as_json)
        moved = await same_stream(client, image)
        now = moved.partitions[number]
        if not cancel and set(now.replicas) != set(wanted):
            raise StaleRequestError(
                f"{stream}/{number} is on {' '.join(now.replicas)} instead of {' '.join(wanted)}, because another request "
                "replaced or canceled this move. Check `liftpy status`."
            )
        return now

    now = with_client(target, work)
    if as_json:
        place = {"replicas": list(now.replicas), "target": list(now.target), "leader": now.leader}
        print_json({"stream": stream, "partition": number, **place})
        return
    click.echo(
        f"{stream}/{number} is on {' '.join(now.replicas)}" + (f", moving to {' '.join(now.target)}" if now.target else "")
    )


@partition.command(example="liftpy partition transfer orders 0 --node n2")
@click.argument("stream", type=STREAM)
@number_argument
@click.option(
    "--node",
    type=NODE,
    default="",
    metavar="NODE",
    help="New leader, a live member of the ISR.  [default: the preferred leader]",
)
@leader_timeout_option
@json_option
@connection_options
def transfer(stream: str, number: int, node: str, timeout_s: float, as_json: bool, target: Target) -> None:
    """Transfer the leadership of PARTITION (default 0) of STREAM to another replica. Acknowledged records are not lost."""

    async def work(client: Client) -> tuple[PartitionState, float]:
        image = (await client.stream(stream)).image
        if _find(image, number).status is not PartitionStatus.ONLINE:
            raise ConfigError(f"{stream}/{number} has no leader. To elect one: liftpy partition elect {stream} {number}")
        if node and node not in (replicas := _find(image, number).replicas):
            raise ConfigError(f"{node} has no replica of {stream}/{number}. Its replicas are on {', '.join(replicas)}.")
        preferred = _find(image, number).replicas[0]
        return await _move_and_wait(client, image, number, node or preferred, timeout_s=timeout_s)

    _print_result(stream, *with_client(target, work), as_json)


@partition.command(example="liftpy partition elect orders 0")
@click.argument("stream", type=STREAM)
@number_argument
@click.option("--node", type=NODE, default="", metavar="NODE", help="Replica to elect.  [default: the best one]")
@click.option(
    "--unclean",
    is_flag=True,
    help="Also allow a replica that may lack committed records. Warning: those records are LOST permanently.",
)
@click.option(
    "--confirm", default="", metavar="STREAM/PARTITION", help="Confirm --unclean with the partition, instead of an answer."
)
@leader_timeout_option
@json_option
@connection_options
def elect(
    stream: str, number: int, node: str, unclean: bool, confirm: str, timeout_s: float, as_json: bool, target: Target
) -> None:
    """Elect a leader for PARTITION (default 0) of STREAM. The partition must be offline.

    Without --unclean, only a replica that has all committed records can become leader. With --unclean, any replica can. Records that
    it lacks are LOST permanently, also if they were acknowledged.
    """
    if confirm and not unclean:
        raise click.UsageError("--confirm needs --unclean. A clean election loses no records.")
    if confirm and confirm != f"{stream}/{number}":
        raise click.UsageError(
            f"--confirm {confirm} does not name this partition. Nothing was changed. Use --confirm {stream}/{number}."
        )

    async def load_stream(client: Client) -> StreamImage:
        image = (await client.stream(stream)).image
        if _find(image, number).status is PartitionStatus.ONLINE:
            raise ConfigError(
                f"{stream}/{number} already has a leader ({_find(image, number).leader}). To move the leadership: "
                f"liftpy partition transfer {stream} {number} --node NODE"
            )
        return image

    async def work(client: Client) -> tuple[PartitionState, float]:
        return await _move_and_wait(
            client, confirmed or await load_stream(client), number, node, timeout_s=timeout_s, unclean=unclean
        )

    confirmed = None
    if unclean and not confirm:
        confirmed = with_client(target, load_stream)
        ask_consent(False, f"committed records of {stream}/{number} may be LOST permanently: continue?")

    _print_result(stream, *with_client(target, work), as_json)


@partition.command("elect-preferred", example="liftpy partition elect-preferred --stream orders")
@click.option("--stream", "only", type=STREAM, metavar="NAME", help="Elect leaders only in this stream.  [default: all]")
@leader_timeout_option
@json_option
@connection_options
def elect_preferred(only: str | None, timeout_s: float, as_json: bool, target: Target) -> int:
    """Transfer every leadership to the preferred leader, if that replica is in the ISR.

    The preferred leader is the first replica of the partition. Exit code 1: at least one leadership could not be transferred.
    """

    async def work(client: Client) -> tuple[list[tuple[str, PartitionState]], list[str]]:
        state = await client.admin.describe_cluster(linearizable=True)
        if only is not None:
            state.stream(only)
        moves = [(key, node) for key, node in partitions_off_preferred_leader(state.image) if only in (None, key.stream)]
        moved: list[tuple[str, PartitionState]] = []
        failed: list[str] = []
        for key, node in moves:
            image = state.stream(key.stream)
            try:
                partition_state, _ = await _move_and_wait(client, image, key.partition, node, timeout_s=timeout_s)
            except (StaleRequestError, NotFoundError, ConfigError) as error:  # it concerns this partition only
                failed.append(f"{key.stream}/{key.partition}: {error}")
            else:
                moved.append((key.stream, partition_state))
        return moved, failed

    moved, failed = with_client(target, work)
    exit_code = 1 if failed else 0
    if as_json:
        print_json({"moved": [_json(stream, image) for stream, image in moved], "failed": failed})
        return exit_code
    for stream, image in moved:
        click.echo(f"{stream}/{image.partition} is led by {image.leader}")
    for line in failed:
        click.echo(f"not moved: {line}", err=True)
    every = "every partition with a preferred leader in the ISR is led by it"
    click.echo(f"{count_of(len(moved), 'leadership')} moved" if moved or failed else every)
    return exit_code


def _find(image: StreamImage, number: int) -> PartitionState:
    if number >= len(image.partitions):
        raise NotFoundError(f"Stream {image.name} has no such partition. Its partitions are 0 to {len(image.partitions) - 1}.")
    return image.partitions[number]


async def _move_and_wait(
    client: Client, image: StreamImage, number: int, node: str, *, timeout_s: float, unclean: bool = False
) -> tuple[PartitionState, float]:
    """Request an election of ``node`` as leader, and wait until a leader is active. Return (partition, duration in seconds).

    ``number``: number of the partition. ``node``: '' for any. ``unclean``: True to allow the loss of committed records. Raises
    UnavailableError after ``timeout_s`` seconds, StaleRequestError if another node leads, and NotFoundError if the stream was deleted.
    """
    began = time.monotonic()
    decided = (await client.admin.elect_leader(image.name, number, node, unclean=unclean, uid=image.uid)).state
    while True:
        now = (await client.stream(image.name)).image
        if now.uid != image.uid:
            raise NotFoundError(f"Stream {image.name} was deleted and created again during the election, which has ended.")
        current = _find(now, number)
        took_s = time.monotonic() - began
        if current.status is PartitionStatus.ONLINE and current.epoch >= decided.epoch:
            if current.leader != (node or current.leader):
                raise StaleRequestError(
                    f"{image.name}/{number} is led by {current.leader} instead of {node}, because {node} did not complete the "
                    "election in time, or another request replaced this one. Check `liftpy status`, then run the command again."
                )
            return current, took_s
        if took_s > timeout_s:
            raise UnavailableError(
                f"{image.name}/{number} is still {current.status.name} after {took_s:.1f} s (--timeout). Check `liftpy status`."
            )
        await asyncio.sleep(_POLL_S)


def _json(stream: str, image: PartitionState) -> dict[str, object]:
    return {
        "stream": stream,
        "partition": image.partition,
        "leader": image.leader,
        "leader_epoch": image.leader_epoch,
        "isr": list(image.isr),
        "unclean_elected": image.unclean_elected,
    }


def _print_result(stream: str, image: PartitionState, took_s: float, as_json: bool) -> None:
    if as_json:
        print_json({**_json(stream, image), "took_s": round(took_s, 3)})
        return
    click.echo(f"{stream}/{image.partition} is led by {image.leader} in epoch {image.leader_epoch}, after {took_s:.2f} s")
