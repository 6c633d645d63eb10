"""``liftpy stream``: create, list, show, enlarge and delete streams.

``liftpy stream alter``: another replication factor, other settings for a stream that is there.

``liftpy stream pause`` and ``resume``: partitions that take no publishes for a while.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.console import Console

from liftpy.client import Client, ReadOptions
from liftpy.client.admin import DEFAULT_REPLICAS, check_min_isr
from liftpy.client.placement_plans import PlacementOptions, PlacementPlan
from liftpy.config import NO_QUOTA, DefaultQuota, StreamConfig
from liftpy.core.base.partition import PartitionState, Purge
from liftpy.core.base.purge import waits_for
from liftpy.core.metadata.controller.unplaced_streams import why_it_waits
from liftpy.core.metadata.image import INSUFFICIENT_NODES, StreamImage
from liftpy.core.metadata.placement import DEFAULT_POLICY
from liftpy.core.metadata.reassignment_progress import movements
from liftpy.core.wire.subjects import data_subject
from liftpy.errors import LiftError
from sidecar.cli.delete_records import delete_records, purge
from sidecar.cli.help import HelpCommand, HelpGroup
from sidecar.cli.options import connection_options, internal_option, json_option
from sidecar.cli.output import table
from sidecar.cli.placement import placement_options, show_plan
from sidecar.cli.reassignment import follow, move_timeout_option, wait_option
from sidecar.cli.session import with_client
from sidecar.cli.stream_settings import SETTINGS, alterable_options, changed, naming_options, setting_options, shown
from sidecar.runtime.settings import Target


@click.command(cls=HelpCommand, example="liftpy stream alter orders --retention-age 7d --dry-run")
@click.argument("name")
@click.option("--replicas", "factor", type=click.IntRange(1, 32), help="Number of replicas of each partition.")
@alterable_options
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@wait_option
@move_timeout_option
@json_option
@connection_options
@internal_option
def alter(
    name: str,
    factor: int | None,
    settings: dict[str, Any],
    dry_run: bool,
    wait: bool,
    timeout_s: float,
    as_json: bool,
    target: Target,
) -> None:
    """Change the settings of stream NAME, or the number of its replicas.

    Settings that you omit keep their values. The leader never moves. The cluster continues a move of replicas if you stop this
    command or if a node fails.
    """
    if factor is None and not settings:
        raise click.UsageError("Nothing to change. Give --replicas or at least one setting.")

    async def work(client: Client) -> tuple[StreamImage, StreamImage, StreamImage]:
        before = await client.stream(name)
        if factor is not None:
            check_min_isr(before.config, factor)
        decided = await client.alter_stream(name, factor or 0, dry_run=dry_run, **settings)
        if not as_json:
            _show(before, decided, factor, settings, dry_run)
        if dry_run or not wait or factor is None:
            return before, decided, decided
        uid = decided.uid
        await follow(
            client,
            lambda movement: movement.uid == uid,
            lambda image: not any(movement.uid == uid for movement in movements(image)),
            timeout_s,
            quiet=as_json,
        )
        return before, decided, await client.stream(name)

    with naming_options():
        before, decided, now = with_client(target, work)
    if as_json:
        partitions = [
            {"partition": p.partition, "replicas": list(p.replicas), "target": list(p.target or p.replicas)}
            for p in (decided if dry_run else now).partitions
        ]
        facts = {"stream": name, "replication_factor": decided.replica_count, "dry_run": dry_run, "partitions": partitions}
        changes = {key: {"before": old, "after": new} for key, old, new in _changes(before, decided)}
        click.echo(json.dumps(facts | {"settings": shown(decided.config, decided.replica_count), "changes": changes}))
    elif wait and not dry_run and factor is not None:
        click.echo(f"every partition of {name} has {factor} replicas")


def _changes(before: StreamImage, after: StreamImage) -> list[tuple[str, Any, Any]]:
    """Return (setting, before, after) for all changes."""
    old, new = shown(before.config, before.replica_count), shown(after.config, after.replica_count)
    return [(setting.key, old[setting.key], new[setting.key]) for setting in SETTINGS if old[setting.key] != new[setting.key]]


def _show(before: StreamImage, stream: StreamImage, factor: int | None, settings: dict[str, Any], dry_run: bool) -> None:
    console = Console()
    if settings:
        changes = _changes(before, stream)
        for key, old, new in changes:
            console.print(f"{key}: {old} -> {new}", highlight=False)
        would = "would be at" if dry_run else "is at"
        same = "" if changes else "nothing changes: that is how it is; "
        console.print(f"{same}{stream.name} {would} version {stream.config_version} of its settings", highlight=False)
    if factor is None:
        return
    rows = [(str(p.partition), " ".join(p.replicas), " ".join(p.target)) for p in stream.partitions if p.target]
    if rows:
        console.print(table(("partition", "replicas", "then"), rows, folds=("replicas", "then"), title=stream.name))
    end = "nothing was done: this is a dry run" if dry_run else f"replication factor {factor}"
    console.print(f"{len(rows)} partitions change; {end}", highlight=False)


_PARTITIONS = click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Change only this partition. May be repeated.  [default: all]",
)


@click.command(cls=HelpCommand, example="liftpy stream pause orders --resume-on-publish")
@click.argument("name")
@_PARTITIONS
@click.option("--resume-on-publish", is_flag=True, help="Resume a partition at the next publish to it. That publish is stored.")
@click.option(
    "--resume-all",
    is_flag=True,
    help=("Resume all partitions paused with this option at the next publish to one of them. That publish is stored."),
)
@json_option
@connection_options
@internal_option
def pause(
    name: str, partitions: tuple[int, ...], resume_on_publish: bool, resume_all: bool, as_json: bool, target: Target
) -> None:
    """Pause stream NAME: reject new publishes until the stream is resumed.

    Publishes with a reply subject are rejected with PAUSED. Publishes without one are dropped and counted. Earlier publishes are
    still committed and acknowledged. Consumers can still read.
    """

    async def work(client: Client) -> StreamImage:
        return await client.pause(
            name, partitions or None, resume_on_publish=resume_on_publish or resume_all, resume_all=resume_all
        )

    _pause_show(with_client(target, work), partitions, as_json)


@click.command(cls=HelpCommand, example="liftpy stream resume orders")
@click.argument("name")
@_PARTITIONS
@json_option
@connection_options
@internal_option
def resume(name: str, partitions: tuple[int, ...], as_json: bool, target: Target) -> None:
    """Resume stream NAME: accept publishes again."""
    _pause_show(with_client(target, lambda client: client.resume(name, partitions or None)), partitions, as_json)


def _pause_show(image: StreamImage, partitions: tuple[int, ...], as_json: bool) -> None:
    about = [p for p in image.partitions if not partitions or p.partition in partitions]
    if as_json:
        found = [{"partition": p.partition, "paused": p.pause.words} for p in about]
        click.echo(json.dumps({"stream": image.name, "uid": image.uid, "partitions": found}))
        return
    for p in about:
        state = f"is paused {p.pause.words}" if p.pause.takes_nothing else "takes publishes"
        click.echo(f"{image.name}/{p.partition} {state}")


_PATIENCE_S = 2.0
"""So long a leader is waited for that says how many records there are."""


@click.group(cls=HelpGroup, example="liftpy stream create orders --subject 'shop.orders.*' --replicas 3")
def stream() -> None:
    """Create, list, show, change, pause and delete streams."""


stream.add_command(alter)
stream.add_command(pause)
stream.add_command(resume)
stream.add_command(delete_records)
stream.add_command(purge)


@stream.command(example="liftpy stream create orders --subject 'shop.orders.*' --replicas 3 --retention-age 7d")
@click.argument("name")
@click.option("--subject", required=True, help="NATS subject to store. Applications continue to publish on it.")
@click.option(
    "--partitions",
    type=click.IntRange(1, 10_000),
    default=None,
    help="Number of partitions. With several, partition N stores SUBJECT.N.  [default: 1]",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 32),
    default=None,
    help="Number of replicas of each partition.  [default: 3, or fewer if the cluster has fewer nodes]",
)
@setting_options
@placement_options
@json_option
@connection_options
@internal_option
def create(
    name: str,
    subject: str,
    partitions: int | None,
    replicas: int | None,
    as_json: bool,
    target: Target,
    config: StreamConfig,
    placement: PlacementOptions,
    dry_run: bool,
) -> None:
    """Create stream NAME for a NATS subject. If the cluster has too few nodes, the stream waits for more."""
    if placement.assignment and partitions not in (None, len(placement.assignment)):
        raise click.UsageError(
            f"--partitions is {partitions}, but the --assignment has {len(placement.assignment)} partitions. Make them equal."
        )
    wanted = _Wanted(subject, partitions or 1, replicas or 0, config, placement)
    if dry_run:
        show_plan(with_client(target, lambda client: wanted.plan(client, name)), name, as_json)
        return
    made, why = with_client(target, lambda client: wanted.create(client, name))
    if as_json:
        click.echo(json.dumps(stream_json(made)))
        return
    count = made.replica_count
    click.echo(
        f"stream {made.name} on {made.subject}: {_count(made.partition_count, 'partition')}, {_count(count, 'replica')} each"
    )
    if made.waiting:
        click.echo(f"it waits, {INSUFFICIENT_NODES}: {why}. It is placed when they come")
    elif replicas is None and not placement.assignment and count < DEFAULT_REPLICAS:
        click.echo(
            f"note: only {_count(count, 'node')} in the cluster, so {_count(count, 'replica')} instead of {DEFAULT_REPLICAS}"
        )
    if config.min_isr > count:
        click.echo(f"note: --min-isr {config.min_isr} counts as {count}: a partition has {_count(count, 'replica')}")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Arguments of ``stream create``."""

    subject: str
    partitions: int
    replicas: int
    config: StreamConfig
    placement: PlacementOptions

    async def plan(self, client: Client, name: str) -> PlacementPlan:
        """Return where the stream would be placed."""
        return await client.plan_stream(name, **self._words())

    async def create(self, client: Client, name: str) -> tuple[StreamImage, str]:
        """Create the stream and wait for its leaders. Return the stream, and why it waits for nodes ('' if it does not)."""
        made = await client.create_stream(name, **self._words(), ready_s=0)
        if made.waiting:
            return made, why_it_waits((await client.describe_cluster()).image, made)
        return await client.until_ready(made), ""

    def _words(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "partitions": self.partitions,
            "replicas": self.replicas,
            "config": self.config,
            "placement": self.placement,
        }


@stream.command(name="add-partitions", example="liftpy stream add-partitions orders --partitions 6")
@click.argument("name")
@click.option("--partitions", "total", type=click.IntRange(2, 10_000), default=None, help="New number of partitions.")
@placement_options
@json_option
@connection_options
@internal_option
def add_partitions(
    name: str, total: int | None, as_json: bool, target: Target, placement: PlacementOptions, dry_run: bool
) -> None:
    """Add partitions to stream NAME. Existing partitions and their records do not move, so keys can change their partition."""
    if total is None and not placement.assignment:
        raise click.UsageError("Missing option: --partitions COUNT, or an --assignment of the new partitions.")
    if dry_run:
        show_plan(
            with_client(target, lambda client: client.plan_partitions(name, total or 0, placement=placement)), name, as_json
        )
        return
    made = with_client(target, lambda client: client.add_partitions(name, total or 0, placement=placement))
    click.echo(json.dumps(stream_json(made)) if as_json else f"stream {name} has {_count(len(made.partitions), 'partition')}")


@stream.command(name="list", example="liftpy stream list")
@json_option
@connection_options
@internal_option
def list_streams(as_json: bool, target: Target) -> None:
    """List all streams. Internal streams need --internal."""
    streams = with_client(target, lambda client: client.list_streams(internal=target.internal))
    if as_json:
        click.echo(json.dumps([stream_json(s) for s in streams]))
        return
    rows = [(s.name, s.subject, _partitions(s), str(s.replica_count), s.config.ack_policy.value, s.uid) for s in streams]
    columns = ("stream", "subject", "partitions", "replicas", "ack", "uid")
    Console().print(
        table(columns, rows, folds=("uid",)) if streams else "no streams yet: liftpy stream create NAME --subject SUBJECT"
    )


@stream.command(example="liftpy stream show orders")
@click.argument("name")
@json_option
@connection_options
def show(name: str, as_json: bool, target: Target) -> None:
    """Show the settings, partitions, leaders and in-sync replicas of stream NAME."""

    async def work(client: Client) -> tuple[StreamImage, str, DefaultQuota]:
        found, quota = await client.stream(name), await client.default_quota()
        return found, why_it_waits((await client.describe_cluster()).image, found) if found.waiting else "", quota

    found, why, quota = with_client(target, work)
    by_default = quota if found.config_under(quota) is not found.config else NO_QUOTA
    if as_json:
        by_cluster = {"default_quota": asdict(by_default)}
        click.echo(json.dumps(stream_json(found) | by_cluster | ({"waits": why} if found.waiting else {})))
        return
    described = stream_json(found)
    settings = ", ".join(f"{key} {value}" for key, value in changed(found.config, found.replica_count).items())
    rows = []
    for p in described["partitions"]:
        cells = (p["partition"], p["subject"], p["status"], p["leader"] or "none", p["leader_epoch"], p["epoch"])
        rows.append((*map(str, cells), " ".join(p["replicas"]), " ".join(p["isr"])))
    console = Console()
    console.print(f"stream {found.name} (uid {found.uid}) on {found.subject}", f"{settings}", sep="\n", highlight=False)
    if by_default.has_rates:
        console.print(f"by the cluster's default quota: {by_default.words}", highlight=False)
    if found.waiting:
        console.print(
            f"{_count(found.waiting, 'partition')} of {_count(found.replica_count, 'replica')}: {INSUFFICIENT_NODES}: {why}"
        )
        return
    columns = ("partition", "subject", "status", "leader", "leader epoch", "epoch", "replicas", "ISR")
    console.print(table(columns, rows, folds=("leader epoch", "replicas", "ISR")))
    for p in described["partitions"]:
        for wish in p["purges"]:
            what = ", ".join([f"subject {s}" for s in wish["subjects"]] + [f"key {k}" for k in wish["keys"]])
            where = f"{found.name}/{p['partition']}: purge of {what} below {wish['end_offset']}"
            console.print(f"{where} waits for {', '.join(wish['waits_for'])}", highlight=False)
    for until in sorted({p.pause.words for p in found.partitions} - {""}):
        numbers = " ".join(str(p.partition) for p in found.partitions if p.pause.words == until)
        console.print(f"paused, {until}: {numbers}", highlight=False)


@stream.command(example="liftpy stream delete orders --dry-run")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation. The records are deleted permanently.")
@json_option
@connection_options
@internal_option
def delete(name: str, dry_run: bool, yes: bool, as_json: bool, target: Target) -> None:
    """Permanently delete stream NAME and all its records."""

    async def look(client: Client) -> tuple[StreamImage, int | None]:
        found = await client.stream(name)
        return found, await _records_of(client, found)

    async def carry_out(client: Client, uid: str) -> None:
        await client.delete_stream(name, uid)  # the stream that was confirmed, not one made since under its name

    found, records = with_client(target, look)
    what = (
        f"{'all' if records is None else f'its {records} of {records}'} records in {_count(len(found.partitions), 'partition')}"
    )
    if not dry_run:
        if not yes:
            click.confirm(f"delete stream {name} and {what} for good?", abort=True, err=True)
        with_client(target, lambda client: carry_out(client, found.uid))
    if as_json:
        click.echo(json.dumps({"deleted": name, "uid": found.uid, "records": records, "dry_run": dry_run}))
    else:
        click.echo(f"stream {name} and {what} would be deleted" if dry_run else f"stream {name} deleted, with {what}")


async def _records_of(client: Client, image: StreamImage) -> int | None:
    """Return the number of offsets in the stream, None if a partition has no leader."""
    options = ReadOptions(patience_s=_PATIENCE_S)
    try:
        bounds = await asyncio.gather(*(client.bounds(image.name, p.partition, options=options) for p in image.partitions))
    except LiftError:
        return None
    return sum(one.end_offset - one.log_start_offset for one in bounds)


def stream_json(image: StreamImage) -> dict[str, Any]:
    """A stream as the commands print it."""
    return {
        "name": image.name,
        "uid": image.uid,
        "subject": image.subject,
        "created_time_ns": image.created_time_ns,
        "config": shown(image.config, image.replica_count),
        "placement": image.placement or DEFAULT_POLICY,
        "replicas": image.replica_count,
        "status": INSUFFICIENT_NODES if image.waiting else "placed",
        "waiting": image.waiting,
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
                "purges": [_purge_json(p, wish) for wish in p.purges],
                "paused": p.pause.words,
            }
            for p in image.partitions
        ],
    }


def _purge_json(partition: PartitionState, wish: Purge) -> dict[str, Any]:
    keys = [key.decode("utf-8", "backslashreplace") for key in wish.keys]
    waits = list(waits_for(partition, wish))
    return {"subjects": list(wish.subjects), "keys": keys, "end_offset": wish.end_offset, "waits_for": waits}


def _partitions(image: StreamImage) -> str:
    return f"{image.waiting} ({INSUFFICIENT_NODES})" if image.waiting else str(len(image.partitions))


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
