"""``liftpy service skip|snapshot``: what an operator tells services that run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import click

from liftpy.client import Client
from liftpy.errors import ConfigError, LiftError, NotFoundError, OutcomeUnknownError, ProtocolError, UnavailableError
from liftpy.ids import check_name
from liftpy.service.decisions import DecisionWriter
from liftpy.service.poison import SkipDecision, Unit
from liftpy.service.snapshot import Identity
from liftpy.wire import frames
from liftpy.wire._pb import service_pb2
from liftpy.wire.batch import Record
from liftpy.wire.subjects import Subjects
from sidecar.cli.options import connection_options
from sidecar.cli.session import with_client
from sidecar.settings import Target

_POLL_S = 0.2
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


@click.command()
@click.argument("name")
@click.option("--stream", required=True, help="The stream that the service reads.")
@click.option("--partition", default=0, show_default=True, help="Which partition of it.")
@click.option("--node", "nodes", multiple=True, help="Beside this node; may be given several times.  [default: beside all]")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.1, 3600), default=30.0, show_default=True, help="Seconds to wait."
)
@connection_options
def snapshot(name: str, stream: str, partition: int, nodes: tuple[str, ...], timeout_s: float, target: Target) -> None:
    """Have the service NAME store its state now, and wait until it is durable."""
    check_name(name, "service")

    async def work(client: Client) -> dict[str, int]:
        return await store_now(client, name, stream, partition, nodes, timeout_s, target.namespace)

    for node, position in with_client(target, work).items():
        click.echo(f"{name} beside {node}: a snapshot at {position}")


async def store_now(
    client: Client, name: str, stream: str, partition: int, nodes: Sequence[str], timeout_s: float, namespace: str
) -> dict[str, int]:
    """Ask for a snapshot beside each node (none: all that have the service), wait for it; node -> its position. Raises NotFoundError,
    UnavailableError after ``timeout_s``."""
    image = await client.stream(stream)
    if partition >= len(image.partitions):
        raise NotFoundError(f"{stream} has {len(image.partitions)} partitions, no {partition}")
    asked = {}
    for node in nodes or image.partitions[partition].replicas:
        found = await _said(client, node, image.uid, partition, name)
        if found:
            asked[node] = int(found["position"])
        elif nodes:
            raise NotFoundError(f"{name} is not beside {node}")
    if not asked:
        raise NotFoundError(f"no node has a service {name} over {stream}/{partition}")
    request = frames.sealed(service_pb2.SnapshotRequest(service=name, stream=stream, partition=partition))
    for node in asked:
        await client.transport.publish(Subjects(namespace).service_session(node, stream, name), request)
    stored: dict[str, int] = {}
    give_up_s = time.monotonic() + timeout_s
    while asked.keys() - stored.keys():
        for node in asked.keys() - stored.keys():
            found = await _said(client, node, image.uid, partition, name)
            if found and int(found["snapshot"]) >= asked[node]:
                stored[node] = int(found["snapshot"])
        if time.monotonic() >= give_up_s:
            raise UnavailableError(
                f"no snapshot beside {', '.join(sorted(asked.keys() - stored.keys()))} after {timeout_s:g} s"
            )
        await asyncio.sleep(_POLL_S)
    return dict(sorted(stored.items()))


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
    return await writer.pass_over(
        Identity(name, stream, image.uid, partition), SkipDecision(name, unit), record, _BY_AN_OPERATOR
    )


async def _position(client: Client, node: str, uid: str, partition: int, name: str) -> int | None:
    """Where the service beside ``node`` stands; None: there is none, or nobody answers."""
    found = await _said(client, node, uid, partition, name)
    return int(found["position"]) if found else None


async def _said(client: Client, node: str, uid: str, partition: int, name: str) -> dict[str, Any]:
    """What ``node`` says of the service beside it; {}: there is none, or nobody answers."""
    try:
        status: dict[str, Any] = await client.node_status(node)
    except (UnavailableError, OutcomeUnknownError, ProtocolError):
        return {}
    for found in status.get("partitions", []):
        if (found.get("uid"), found.get("partition")) == (uid, partition):
            for service in found.get("services", []):
                if service.get("service") == name:
                    return dict(service)
    return {}


async def _record(client: Client, stream: str, partition: int, offset: int, uid: str) -> Record:
    async for piece in client.read_range(stream, partition, offset, offset + 1, uid=uid, exact=True):
        for record in piece.records():
            return record
    raise LiftError(f"{stream}/{partition} holds no record at {offset}")
