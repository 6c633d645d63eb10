"""``liftpy service skip``: what an operator tells services that run."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from liftpy.client import Client
from liftpy.errors import ConfigError, LiftError, NotFoundError, OutcomeUnknownError, ProtocolError, UnavailableError
from liftpy.ids import check_name
from liftpy.service.decisions import DecisionWriter
from liftpy.service.poison import Decision, Unit
from liftpy.service.snapshot import Identity
from liftpy.wire.batch import Record
from sidecar.cli.options import connection_options
from sidecar.cli.session import with_client
from sidecar.settings import Target

_BY_AN_OPERATOR = "passed over by an operator"


@click.command()
@click.argument("name")
@click.option("--stream", required=True, help="The stream that the service reads.")
@click.option("--partition", default=0, show_default=True, help="Which partition of it.")
@click.option("--offset", required=True, type=click.IntRange(0), help="Of the record that the service can't apply.")
@click.option("--timer", default="", help="The timer that fails at that offset, where it is one.")
@click.option("--dead-letter", default="", metavar="STREAM", help="Keep the record there.")
@click.option("--force", is_flag=True, help="Also where a service does not answer, or has applied the record already.")
@connection_options
def skip(
    name: str, stream: str, partition: int, offset: int, timer: str, dead_letter: str, force: bool, target: Target
) -> None:
    """Have the service NAME pass over a record, on all nodes: that is a record of the stream itself.

    Services that stand at the record go on by themselves; one that has stopped does when it is started again.
    """
    check_name(name, "service")
    unit = Unit(offset, timer)

    async def work(client: Client) -> int:
        return await pass_over(client, name, stream, partition, unit, dead_letter=dead_letter, force=force)

    decided_at = with_client(target, work)
    click.echo(f"{name} passes over {unit} of {stream}/{partition}: decided by the record at offset {decided_at}")


async def pass_over(
    client: Client, name: str, stream: str, partition: int, unit: Unit, *, dead_letter: str = "", force: bool = False
) -> int:
    """Append the decision; return its offset. Raises ConfigError where a service has applied the record, or can't be asked."""
    image = await client.stream(stream)
    if partition >= len(image.partitions):
        raise NotFoundError(f"{stream} has {len(image.partitions)} partitions, no {partition}")
    bounds = await client.bounds(stream, partition)
    if not bounds.log_start_offset <= unit.offset < bounds.end_offset:
        raise ConfigError(f"{stream}/{partition} holds {bounds.log_start_offset} to {bounds.end_offset - 1}, not {unit.offset}")
    if not force:
        replicas = image.partitions[partition].replicas
        found = await asyncio.gather(*(_position(client, node, image.uid, partition, name) for node in replicas))
        for node, position in zip(replicas, found, strict=True):
            if position is not None and position > unit.offset:
                raise ConfigError(
                    f"{name} on {node} is at {position}: it has applied {unit}, and its outputs may be written (--force all the same)"
                )
    record = await _record(client, stream, partition, unit.offset, image.uid)
    writer = DecisionWriter(client, dead_letter)
    return await writer.pass_over(Identity(name, stream, image.uid, partition), Decision(name, unit), record, _BY_AN_OPERATOR)


async def _position(client: Client, node: str, uid: str, partition: int, name: str) -> int | None:
    """Where the service beside ``node`` stands; None: there is none, or nobody answers."""
    try:
        status: dict[str, Any] = await client.node_status(node)
    except (UnavailableError, OutcomeUnknownError, ProtocolError):
        return None
    for found in status.get("partitions", []):
        if (found.get("uid"), found.get("partition")) == (uid, partition):
            for service in found.get("services", []):
                if service.get("service") == name:
                    return int(service["position"])
    return None


async def _record(client: Client, stream: str, partition: int, offset: int, uid: str) -> Record:
    async for piece in client.read_range(stream, partition, offset, offset + 1, uid=uid):
        for record in piece.records():
            return record
    raise LiftError(f"{stream}/{partition} holds no record at {offset}")
