"""``liftpy stream``: create, list, show and delete streams."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from liftpy.client import Client
from liftpy.cluster.image import StreamImage
from liftpy.config import StreamConfig
from liftpy.wire.subjects import data_subject
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.session import with_client
from sidecar.cli.stream_settings import changed, setting_options, shown
from sidecar.cli.tables import table
from sidecar.settings import Target

DEFAULT_REPLICAS = 3


@click.group()
def stream() -> None:
    """Create, list, show and delete streams."""


@stream.command()
@click.argument("name")
@click.option("--subject", required=True, help="NATS subject to store; applications go on publishing there.")
@click.option(
    "--partitions", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Partition N listens on SUBJECT.N."
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 32),
    default=None,
    help="Copies of each partition.  [default: 3, or the nodes there are]",
)
@setting_options
@json_option
@connection_options
def create(
    name: str, subject: str, partitions: int, replicas: int | None, as_json: bool, target: Target, config: StreamConfig
) -> None:
    """Attach a new stream NAME to a NATS subject."""

    async def work(client: Client) -> StreamImage:
        return await client.create_stream(name, subject, partitions=partitions, replicas=replicas or 0, config=config)

    made = with_client(target, work)
    count = len(made.partitions[0].replicas)
    if as_json:
        click.echo(json.dumps(stream_json(made)))
        return
    click.echo(f"stream {made.name} on {made.subject}: {_count(partitions, 'partition')}, {_count(count, 'replica')} each")
    if replicas is None and count < DEFAULT_REPLICAS:
        click.echo(
            f"note: only {_count(count, 'node')} in the cluster, so {_count(count, 'replica')} instead of {DEFAULT_REPLICAS}"
        )


@stream.command(name="list")
@json_option
@connection_options
def list_streams(as_json: bool, target: Target) -> None:
    """List all streams."""
    streams = with_client(target, lambda client: client.list_streams())
    if as_json:
        click.echo(json.dumps([stream_json(s) for s in streams]))
        return
    rows = [
        (s.name, s.subject, str(len(s.partitions)), str(len(s.partitions[0].replicas)), s.config.ack_policy.value, s.uid)
        for s in streams
    ]
    columns = ("stream", "subject", "partitions", "replicas", "ack", "uid")
    Console().print(
        table(columns, rows, folds=("uid",)) if streams else "no streams yet: liftpy stream create NAME --subject SUBJECT"
    )


@stream.command()
@click.argument("name")
@json_option
@connection_options
def show(name: str, as_json: bool, target: Target) -> None:
    """Show one stream: settings, partitions, leaders, ISR."""
    found = with_client(target, lambda client: client.stream(name))
    if as_json:
        click.echo(json.dumps(stream_json(found)))
        return
    described = stream_json(found)
    settings = ", ".join(f"{key} {value}" for key, value in changed(found.config, len(found.partitions[0].replicas)).items())
    rows = []
    for p in described["partitions"]:
        cells = (p["partition"], p["subject"], p["status"], p["leader"] or "none", p["leader_epoch"], p["epoch"])
        rows.append((*map(str, cells), " ".join(p["replicas"]), " ".join(p["isr"])))
    console = Console()
    console.print(f"stream {found.name} (uid {found.uid}) on {found.subject}", f"{settings}", sep="\n", highlight=False)
    columns = ("partition", "subject", "status", "leader", "leader epoch", "epoch", "replicas", "ISR")
    console.print(table(columns, rows, folds=("leader epoch", "replicas", "ISR")))


@stream.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Don't ask: its records are deleted for good.")
@json_option
@connection_options
def delete(name: str, yes: bool, as_json: bool, target: Target) -> None:
    """Delete stream NAME and all its records, for good."""
    if not yes:
        click.confirm(f"delete stream {name} and all its records for good?", abort=True, err=True)

    async def work(client: Client) -> str:
        uid = (await client.stream(name)).uid  # the stream that was confirmed, not one made meanwhile under its name
        await client.delete_stream(name, uid)
        return uid

    uid = with_client(target, work)
    click.echo(json.dumps({"deleted": name, "uid": uid}) if as_json else f"stream {name} deleted")


def stream_json(image: StreamImage) -> dict[str, Any]:
    """A stream as the commands print it."""
    return {
        "name": image.name,
        "uid": image.uid,
        "subject": image.subject,
        "created_time_ns": image.created_time_ns,
        "config": shown(image.config, len(image.partitions[0].replicas)),
        "partitions": [
            {
                "partition": p.partition,
                "subject": data_subject(image.subject, p.partition),
                "status": p.status.name,
                "leader": p.leader,
                "leader_epoch": p.leader_epoch,
                "epoch": p.epoch,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
            }
            for p in image.partitions
        ],
    }


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
