"""``liftpy stream``: create, list, show, alter, pause, resume, purge and delete streams.

``liftpy stream alter`` changes settings and the number of replicas. A partition that ``liftpy stream pause`` has paused stores no
publishes until ``liftpy stream resume``, or until the next publish with ``--resume-on-publish``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, assert_never

import click

from liftpy.client import Client, ReadOptions
from liftpy.client.admin import DEFAULT_REPLICAS, check_min_isr
from liftpy.client.placement_plans import PlacementOptions
from liftpy.client.positions import FromEnd, Position, parse_start
from liftpy.client.stream_info import StreamInfo
from liftpy.config import NO_QUOTA, DefaultQuota, StreamConfig
from liftpy.core.base.partition import PartitionState, Purge
from liftpy.core.base.purge import waits_for
from liftpy.core.metadata.controller.streams import why_it_waits
from liftpy.core.metadata.image import INSUFFICIENT_NODES
from liftpy.core.metadata.placement import DEFAULT_POLICY
from liftpy.core.wire.subjects import data_subject
from liftpy.errors import ConfigError, LiftError, NotFoundError, StaleRequestError, UnavailableError
from sidecar.cli.completion import STREAM
from sidecar.cli.help import HelpGroup
from sidecar.cli.options import (
    BYTES,
    NOTHING_DONE,
    ask_consent,
    connection_and_internal_options,
    connection_options,
    dry_run_option,
    json_option,
    timeout_option,
    warn_of_unmatched,
)
from sidecar.cli.output import count_of, print_json, print_table
from sidecar.cli.reassignment import follow, move_timeout_option, same_stream, wait_option
from sidecar.cli.session import with_client
from sidecar.cli.stream_settings import (
    SETTINGS,
    alterable_options,
    naming_options,
    placement_options,
    setting_options,
    settings_as_json,
    settings_to_show,
    show_plan,
)
from sidecar.runtime.settings import Target

_CHECK_EVERY_S = 0.5
_COUNT_S = 10.0
"""Time to count the records that would be deleted, over all partitions, in seconds."""
_TO_DELETE_RECORDS = "--role operator --role reader"
"""Permissions of the commands that delete records. They ask the leaders for the bounds of the log, as readers do."""
F = TypeVar("F", bound=Callable[..., Any])
_yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation. The records are deleted permanently.")


def _delete_options(function: F) -> F:
    """Add the options --partition, --dry-run and --yes to a command that deletes records."""
    text = "Print how many records would be deleted, and change nothing."
    dry_run = click.option("--dry-run", is_flag=True, help=text)
    text = "Delete only from this partition. Required for an offset if the stream has several partitions."
    return click.option("--partition", type=click.IntRange(0), help=text)(dry_run(_yes_option(function)))


@click.group(cls=HelpGroup, example="liftpy stream create orders --subject 'shop.orders.*' --replicas 3")
def stream() -> None:
    """Create, list, show, change, pause and delete streams."""


@stream.command(example="liftpy stream purge orders --subject shop.orders.test --dry-run")
@click.argument("name", type=STREAM)
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    help="Delete records of this subject. The wildcards * and > are allowed. May be repeated.",
)
@click.option(
    "--key",
    "keys",
    type=BYTES,
    multiple=True,
    help="Delete records with this key. May be repeated. With --subject, a record must match both.",
)
@click.option(
    "--before",
    metavar="WHERE",
    help="Delete only records below this OFFSET, or before a time such as 2026-01-31T12:00:00 or -10m.",
)
@_delete_options
@click.option("--wait/--no-wait", default=False, show_default=True, help="Wait until every replica has deleted the records.")
@timeout_option("5m", "Maximum time for --wait.", low=0, high=math.inf)
@json_option
@connection_and_internal_options
def purge(
    name: str, subjects: tuple[str, ...], keys: tuple[bytes, ...], before: str | None, partition: int | None, dry_run: bool,
    yes: bool, wait: bool, timeout_s: float, as_json: bool, target: Target,
) -> None:  # fmt: skip
    """Permanently delete the committed records of stream NAME that match a subject or a key, on every replica.

    Each replica deletes the records within seconds. It keeps a record with a message id until the dedup window has passed. The
    offsets of other records do not change.
    """
    if not subjects and not keys:
        raise click.UsageError(
            "Missing option: --subject or --key. To delete all records before an offset, use liftpy stream delete-records."
        )
    where = _where(before)

    async def plan(client: Client) -> list[_Deletion]:
        image, numbers = await _deleted_from(client, name, partition, where)
        own = [data_subject(image.subject, number) for number in numbers]
        warn_of_unmatched(name, own, subjects, which="that are purged")
        until = time.monotonic() + _COUNT_S
        return [
            await _count_purged_records(client, name, image.uid, number, subjects, keys, where, until) for number in numbers
        ]

    async def carry_out(client: Client, counts: list[_Deletion]) -> None:
        for one in counts:  # the shown records only, not those published since
            with _naming_deleted(counts, one):
                await client.admin.purge(name, one.partition, subjects=subjects, keys=keys, before=one.end_offset, uid=one.uid)
        if wait:
            await _wait_for_purges(client, name, {one.partition for one in counts}, timeout_s, quiet=as_json)

    purged = with_client(target, plan, permissions=_TO_DELETE_RECORDS)
    if not dry_run:
        found = (f"{name}/{one.partition}: {one.words} below offset {one.end_offset} match" for one in purged)
        ask_consent(yes, f"delete these records of stream {name} permanently?", found)
        with_client(target, lambda client: carry_out(client, purged), permissions=_TO_DELETE_RECORDS)
    if as_json:
        counts = [one.as_object("end_offset", "at_least") for one in purged]
        print_json({"stream": name, "dry_run": dry_run, "waited": wait and not dry_run, "purged": counts})
        return
    how = "would be deleted" if dry_run else "are deleted on every replica" if wait else "will be deleted"
    for one in purged:
        click.echo(f"{name}/{one.partition}: {one.words} below offset {one.end_offset} match and {how}")


@dataclass(frozen=True, slots=True)
class _Deletion:
    """Number of records of one partition below ``end_offset`` that a command deletes.

    ``bound``: ``at least `` if counting took too long, ``at most `` if the log may have gaps, '' for an exact number.
    """

    uid: str
    partition: int
    end_offset: int
    records: int
    of_records: int
    bound: str

    @property
    def words(self) -> str:
        return f"{self.bound}{self.records} of {self.of_records} records"

    def as_object(self, place: str, bound: str) -> dict[str, int]:
        """Return the numbers as a JSON object. ``place``, ``bound``: keys of ``end_offset`` and of whether the number is a bound."""
        counts = {"records": self.records, "of_records": self.of_records}
        return {"partition": self.partition, place: self.end_offset, **counts, bound: bool(self.bound)}


@contextlib.contextmanager
def _naming_deleted(deletions: Sequence[_Deletion], current: _Deletion) -> Iterator[None]:
    """If the deletion ``current`` fails, name in its error the partitions before it in the list, whose records are deleted."""
    try:
        yield
    except LiftError as error:
        if done := [str(one.partition) for one in deletions[: deletions.index(current)]]:
            which = f"partition {done[0]}" if len(done) == 1 else f"partitions {', '.join(done)}"
            text = f"{str(error).removesuffix('.')}. The records of {which} are deleted. Run the command again for the others."
            error.args = (text, *error.args[1:])
        raise


async def _deleted_from(
    client: Client, name: str, partition: int | None, where: int | datetime | FromEnd | None
) -> tuple[StreamInfo, list[int]]:
    """Return the stream, and the numbers of the partitions from which a command deletes the records before ``where``."""
    image = await client.stream(name)
    numbers = [p.partition for p in image.partitions] if partition is None else [partition]
    if isinstance(where, int) and len(numbers) > 1:
        raise ConfigError(
            f"Stream {name} has {len(numbers)} partitions, and an offset belongs to one partition. Set --partition."
        )
    return image, numbers


async def _count_purged_records(
    client: Client, name: str, uid: str, number: int, subjects: tuple[str, ...], keys: tuple[bytes, ...],
    before: int | datetime | None, until: float,
) -> _Deletion:  # fmt: skip
    """Count the records of partition ``number`` that a purge would delete. Nothing is deleted.

    ``before``: offset or time below which records are deleted, None: all committed ones. ``until``: monotonic time at which the
    count ends early, in seconds.
    """
    end = await client.admin.purge(name, number, subjects=subjects, keys=keys, before=before, dry_run=True, uid=uid)
    bounds = await client.bounds(name, number)
    records, bound = 0, ""
    if end > bounds.log_start_offset:
        consumer = client.consume(name, number, until=end - 1, subjects=subjects, keys=keys)
        try:
            async with asyncio.timeout(max(until - time.monotonic(), 0.0)):
                async for piece in consumer.batches():
                    records += piece.record_count
        except TimeoutError:
            bound = "at least "
    return _Deletion(uid, number, end, records, bounds.end_offset - bounds.log_start_offset, bound)


def _where(before: str | None) -> int | datetime | None:
    where = None if before is None else parse_start(before, datetime.now(UTC), "--before")
    if where is not None and not isinstance(where, int | datetime):
        raise ConfigError(
            f"Invalid value for --before: {before}. Use an OFFSET, or a time such as 2026-01-31T12:00:00 or -10m."
        )
    return where


async def _wait_for_purges(client: Client, name: str, numbers: set[int], timeout_s: float, *, quiet: bool) -> None:
    """Wait until no purge of the partitions ``numbers`` is in progress, and print the nodes that it waits for."""
    until, printed = time.monotonic() + timeout_s, ""
    while True:
        partitions = [p for p in (await client.stream(name)).partitions if p.partition in numbers and p.state.purges]
        if not partitions:
            return
        who = ", ".join(sorted({node for p in partitions for purge in p.state.purges for node in waits_for(p.state, purge)}))
        if who and who != printed and not quiet:
            click.echo(f"{count_of(len(partitions), 'partition')} of {name} to purge, waiting for {who}", err=True)
            printed = who
        if time.monotonic() >= until:
            raise UnavailableError(
                f"The purge of stream {name} did not finish on {who} within {timeout_s:g} s (--timeout). It continues in the "
                f"background: `liftpy stream show {name}` shows the progress."
            )
        await asyncio.sleep(_CHECK_EVERY_S)


@stream.command(name="delete-records", example="liftpy stream delete-records orders --before -24h --dry-run")
@click.argument("name", type=STREAM)
@click.option(
    "--before",
    required=True,
    metavar="WHERE",
    help=(
        "Delete records before this position. OFFSET is the first one that remains. -1000 keeps the last "
        "1000 offsets. A time is 2026-01-31T12:00:00 or -10m. new deletes all committed records."
    ),
)
@_delete_options
@json_option
@connection_and_internal_options
def delete_records(
    name: str, before: str, partition: int | None, dry_run: bool, yes: bool, as_json: bool, target: Target
) -> None:
    """Permanently delete the records of stream NAME before an offset or a time, on every replica.

    Batches are not split, so up to one batch of older records can remain. Files are deleted by whole segments.
    """
    where = deletion_point_of(before)

    async def plan(client: Client) -> list[_Deletion]:
        image, numbers = await _deleted_from(client, name, partition, where)
        return [await _deletion(client, name, image.uid, number, where) for number in numbers]

    async def carry_out(client: Client, deletions: list[_Deletion]) -> None:
        for one in deletions:  # the shown records only, not those published since
            with _naming_deleted(deletions, one):
                await client.admin.truncate_before(name, one.partition, one.end_offset, uid=one.uid)

    def shown(one: _Deletion, begins: str, deleted: str) -> str:
        return f"{name}/{one.partition} {begins} with the batch of offset {one.end_offset}: {one.words} {deleted}"

    deletions = with_client(target, plan, permissions=_TO_DELETE_RECORDS)
    if not dry_run:
        found = (shown(one, "would begin", "would be deleted") for one in deletions)
        ask_consent(yes, f"delete {_sum(deletions)} of stream {name} permanently?", found)
        with_client(target, lambda client: carry_out(client, deletions), permissions=_TO_DELETE_RECORDS)
    if as_json:
        rows = [one.as_object("offset", "at_most") for one in deletions]
        print_json({"stream": name, "dry_run": dry_run, "begins": rows})
        return
    for one in deletions:
        click.echo(shown(one, "would begin", "would be deleted") if dry_run else shown(one, "begins", "are deleted"))


def deletion_point_of(text: str) -> int | datetime | FromEnd | None:
    """Parse the value of ``--before``: an offset, a time, or a number of offsets before the end.

    None: the end of the committed records. Raises ConfigError.
    """
    where = parse_start(text, datetime.now(UTC), "--before")
    if isinstance(where, int | datetime | FromEnd):
        return where
    if where == "new":
        return None
    point_text = "the text of a position" if isinstance(where, Position) else text
    raise ConfigError(
        f"Invalid value for --before: {point_text}. Use an OFFSET (the first one that remains), -1000, a time such "
        "as 2026-01-31T12:00:00 or -10m, or new."
    )


async def _deletion(client: Client, name: str, uid: str, number: int, where: int | datetime | FromEnd | None) -> _Deletion:
    """Return what a deletion of the records before ``where`` would remove from partition ``number``. Nothing is deleted."""
    bounds = await client.bounds(name, number)
    if bounds.uid != uid:
        raise NotFoundError(
            f"Stream {name} was deleted and created again during this command. Nothing was deleted. Run the command again."
        )
    match where:
        case None:
            wanted: int | datetime = bounds.end_offset
        case FromEnd(records):
            wanted = max(bounds.end_offset - records, bounds.log_start_offset)
        case int() | datetime():
            wanted = where
        case _:
            assert_never(where)
    first = await client.admin.truncate_before(name, number, wanted, dry_run=True, uid=uid)
    begin, end = bounds.log_start_offset, max(bounds.end_offset, first)
    bound = "at most " if bounds.compacted else ""
    return _Deletion(uid, number, first, max(first - begin, 0), end - begin, bound)


def _sum(deletions: list[_Deletion]) -> str:
    records, of_records = sum(one.records for one in deletions), sum(one.of_records for one in deletions)
    return _Deletion("", 0, 0, records, of_records, max((one.bound for one in deletions), default="")).words


@stream.command(example="liftpy stream alter orders --retention-age 7d --dry-run")
@click.argument("name", type=STREAM)
@click.option("--replicas", "factor", type=click.IntRange(1, 32), help="Number of replicas of each partition.")
@alterable_options
@dry_run_option
@wait_option
@move_timeout_option
@json_option
@connection_and_internal_options
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

    async def work(client: Client) -> tuple[StreamInfo, StreamInfo, StreamInfo]:
        before = await client.stream(name)
        if factor is not None:
            check_min_isr(before.config, factor)
        decided = await client.admin.alter_stream(name, factor or 0, dry_run=dry_run, **settings)
        if not as_json:
            _show(before, decided, factor, settings, dry_run)
        if dry_run or not wait or factor is None:
            return before, decided, decided
        await follow(client, lambda movement: movement.uid == decided.uid, timeout_s, quiet=as_json)
        now = await same_stream(client, decided)
        if now.replica_count != factor:
            raise StaleRequestError(
                f"Another request set the number of replicas of {name} to {now.replica_count} while this one moved them to "
                f"{factor}. Check `liftpy stream show {name}`."
            )
        others = [p for p in now.partitions if len(p.replicas) != factor]
        if others:
            more = f" (and {count_of(len(others) - 1, 'other partition')})" if len(others) > 1 else ""
            raise StaleRequestError(
                f"{name}/{others[0].partition} has {count_of(len(others[0].replicas), 'replica')} instead of {factor}{more}, because "
                f"another request replaced or canceled its move. Run the command again, or check `liftpy stream show {name}`."
            )
        return before, decided, now

    with naming_options():
        before, decided, now = with_client(target, work)
    if as_json:
        partitions = [
            {"partition": p.partition, "replicas": list(p.replicas), "target": list(p.target or p.replicas)}
            for p in (decided if dry_run else now).partitions
        ]
        facts = {"stream": name, "replication_factor": decided.replica_count, "dry_run": dry_run, "partitions": partitions}
        changes = {key: {"before": old, "after": new} for key, old, new in _changes(before, decided)}
        print_json(facts | {"settings": settings_as_json(decided.config, decided.replica_count), "changes": changes})
    elif wait and not dry_run and factor is not None:
        click.echo(f"every partition of {name} has {factor} replicas")


def _changes(before: StreamInfo, after: StreamInfo) -> list[tuple[str, Any, Any]]:
    """Return (setting, old value, new value) for each setting that differs between two descriptions of a stream."""
    old, new = settings_as_json(before.config, before.replica_count), settings_as_json(after.config, after.replica_count)
    return [(setting.key, old[setting.key], new[setting.key]) for setting in SETTINGS if old[setting.key] != new[setting.key]]


def _show(before: StreamInfo, stream: StreamInfo, factor: int | None, settings: dict[str, Any], dry_run: bool) -> None:
    if settings:
        changes = _changes(before, stream)
        for key, old, new in changes:
            click.echo(f"{key}: {old} -> {new}")
        would = "would be at" if dry_run else "is at"
        same = "" if changes else "nothing changes: the settings already have these values. "
        click.echo(f"{same}{stream.name} {would} version {stream.config_version} of its settings")
    if factor is None:
        return
    rows = [(str(p.partition), " ".join(p.replicas), " ".join(p.target)) for p in stream.partitions if p.target]
    if rows:
        print_table(("partition", "replicas", "then"), rows, folds=("replicas", "then"), title=stream.name)
    end = NOTHING_DONE if dry_run else f"the new number of replicas is {factor}"
    change = "partition changes" if len(rows) == 1 else "partitions change"
    click.echo(f"{len(rows)} {change}; {end}")


_PARTITIONS = click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Change only this partition. May be repeated.  [default: all]",
)


@stream.command(example="liftpy stream pause orders --resume-on-publish")
@click.argument("name", type=STREAM)
@_PARTITIONS
@click.option("--resume-on-publish", is_flag=True, help="Resume a partition at the next publish to it. That publish is stored.")
@click.option(
    "--resume-all",
    is_flag=True,
    help=("Resume all partitions paused with this option at the next publish to one of them. That publish is stored."),
)
@json_option
@connection_and_internal_options
def pause(
    name: str, partitions: tuple[int, ...], resume_on_publish: bool, resume_all: bool, as_json: bool, target: Target
) -> None:
    """Pause stream NAME: reject new publishes until the stream is resumed.

    Publishes with a reply subject are rejected with PAUSED. Publishes without one are dropped and counted. Earlier publishes are
    still committed and acknowledged. Consumers can still read.
    """
    resumes: dict[str, Any] = {"resume_on_publish": resume_on_publish or resume_all, "resume_all": resume_all}
    paused = with_client(target, lambda client: client.admin.pause(name, partitions or None, **resumes))
    _pause_show(paused, partitions, as_json)


@stream.command(example="liftpy stream resume orders")
@click.argument("name", type=STREAM)
@_PARTITIONS
@json_option
@connection_and_internal_options
def resume(name: str, partitions: tuple[int, ...], as_json: bool, target: Target) -> None:
    """Resume stream NAME: accept publishes again."""
    _pause_show(with_client(target, lambda client: client.admin.resume(name, partitions or None)), partitions, as_json)


def _pause_show(image: StreamInfo, partitions: tuple[int, ...], as_json: bool) -> None:
    about = [p for p in image.partitions if not partitions or p.partition in partitions]
    if as_json:
        pauses = [{"partition": p.partition, "paused": p.pause.words} for p in about]
        print_json({"stream": image.name, "uid": image.uid, "partitions": pauses})
        return
    for p in about:
        state = f"is paused {p.pause.words}" if p.pause.takes_nothing else "accepts publishes"
        click.echo(f"{image.name}/{p.partition} {state}")


_PATIENCE_S = 2.0
"""Time to wait for a leader's record count, in seconds."""


@stream.command(example="liftpy stream create orders --subject 'shop.orders.*' --replicas 3 --retention-age 7d")
@click.argument("name")
@click.option("--subject", required=True, help="NATS subject to store. Applications continue to publish on it.")
@click.option(
    "--partitions",
    type=click.IntRange(1, 10_000),
    help="Number of partitions. With several, partition N stores SUBJECT.N.  [default: 1]",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 32),
    help="Number of replicas of each partition.  [default: 3, or fewer if the cluster has fewer nodes]",
)
@setting_options
@placement_options
@json_option
@connection_and_internal_options
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
    wanted: dict[str, Any] = {
        "subject": subject, "partitions": partitions or 1, "replicas": replicas or 0, "config": config, "placement": placement,
    }  # fmt: skip
    if dry_run:
        show_plan(with_client(target, lambda client: client.admin.plan_stream(name, **wanted)), name, as_json)
        return

    async def work(client: Client) -> tuple[StreamInfo, str]:
        info = await client.create_stream(name, **wanted, ready_s=0)
        if info.waiting:
            return info, why_it_waits((await client.admin.describe_cluster()).image, info.image)
        return await client.admin.until_ready(info), ""

    info, why = with_client(target, work)
    if as_json:
        print_json(stream_json(info))
        return
    count = info.replica_count
    click.echo(
        f"stream {info.name} on {info.subject}: {count_of(info.partition_count, 'partition')}, {count_of(count, 'replica')} each"
    )
    if info.waiting:
        click.echo(f"stream {info.name} waits ({INSUFFICIENT_NODES}): {why}. The cluster places it when more nodes join")
    elif replicas is None and not placement.assignment and count < DEFAULT_REPLICAS:
        click.echo(
            f"note: only {count_of(count, 'node')} in the cluster, so {count_of(count, 'replica')} instead of {DEFAULT_REPLICAS}"
        )
    if config.min_isr > count:
        click.echo(f"note: --min-isr {config.min_isr} counts as {count}: a partition has {count_of(count, 'replica')}")


@stream.command(name="add-partitions", example="liftpy stream add-partitions orders --partitions 6")
@click.argument("name", type=STREAM)
@click.option("--partitions", "total", type=click.IntRange(2, 10_000), help="New number of partitions.")
@placement_options
@json_option
@connection_and_internal_options
def add_partitions(
    name: str, total: int | None, as_json: bool, target: Target, placement: PlacementOptions, dry_run: bool
) -> None:
    """Add partitions to stream NAME. Existing partitions and their records do not move, so keys can change their partition."""
    if total is None and not placement.assignment:
        raise click.UsageError("Missing option: --partitions COUNT, or an --assignment of the new partitions.")
    if dry_run:
        show_plan(
            with_client(target, lambda client: client.admin.plan_partitions(name, total or 0, placement=placement)),
            name,
            as_json,
        )
        return
    info = with_client(target, lambda client: client.admin.add_partitions(name, total or 0, placement=placement))
    print_json(stream_json(info)) if as_json else click.echo(f"stream {name} has {count_of(len(info.partitions), 'partition')}")


@stream.command(name="list", example="liftpy stream list")
@json_option
@connection_and_internal_options
def list_streams(as_json: bool, target: Target) -> None:
    """List all streams. Internal streams need --internal."""
    streams = with_client(target, lambda client: client.admin.list_streams(internal=target.internal))
    if as_json:
        print_json([stream_json(s) for s in streams])
        return
    rows = [(s.name, s.subject, _partitions(s), str(s.replica_count), s.config.ack_policy.value, s.uid) for s in streams]
    columns = ("stream", "subject", "partitions", "replicas", "ack", "uid")
    if streams:
        print_table(columns, rows, folds=("uid",))
    else:
        click.echo("no streams yet: liftpy stream create NAME --subject SUBJECT")


@stream.command(example="liftpy stream show orders")
@click.argument("name", type=STREAM)
@json_option
@connection_options
def show(name: str, as_json: bool, target: Target) -> None:
    """Show the settings, partitions, leaders and in-sync replicas of stream NAME."""

    async def work(client: Client) -> tuple[StreamInfo, str, DefaultQuota]:
        info, quota = await client.stream(name), await client.admin.default_quota()
        return info, why_it_waits((await client.admin.describe_cluster()).image, info.image) if info.waiting else "", quota

    info, why, quota = with_client(target, work)
    by_default = quota if info.image.config_under(quota) is not info.config else NO_QUOTA
    if as_json:
        by_cluster = {"default_quota": asdict(by_default)}
        print_json(stream_json(info) | by_cluster | ({"waits": why} if info.waiting else {}))
        return
    described = stream_json(info)
    settings = ", ".join(f"{key} {value}" for key, value in settings_to_show(info.config, info.replica_count).items())
    rows = []
    for p in described["partitions"]:
        cells = (p["partition"], p["subject"], p["status"], p["leader"] or "none", p["leader_epoch"], p["epoch"])
        rows.append((*map(str, cells), " ".join(p["replicas"]), " ".join(p["isr"])))
    click.echo(f"stream {info.name} (uid {info.uid}) on {info.subject}\n{settings}")
    if by_default.has_rates:
        click.echo(f"by the cluster's default quota: {by_default.words}")
    if info.waiting:
        click.echo(
            f"{count_of(info.waiting, 'partition')} of {count_of(info.replica_count, 'replica')}: {INSUFFICIENT_NODES}: {why}"
        )
        return
    columns = ("partition", "subject", "status", "leader", "leader epoch", "epoch", "replicas", "ISR")
    print_table(columns, rows, folds=("leader epoch", "replicas", "ISR"))
    for p in described["partitions"]:
        for pending_purge in p["purges"]:
            what = ", ".join([f"subject {s}" for s in pending_purge["subjects"]] + [f"key {k}" for k in pending_purge["keys"]])
            where = f"{info.name}/{p['partition']}: purge of {what} below {pending_purge['end_offset']}"
            click.echo(f"{where} waits for {', '.join(pending_purge['waits_for'])}")
    for until in sorted({p.pause.words for p in info.partitions} - {""}):
        numbers = " ".join(str(p.partition) for p in info.partitions if p.pause.words == until)
        click.echo(f"paused, {until}: {numbers}")


@stream.command(example="liftpy stream delete orders --dry-run")
@click.argument("name", type=STREAM)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and change nothing.")
@_yes_option
@json_option
@connection_and_internal_options
def delete(name: str, dry_run: bool, yes: bool, as_json: bool, target: Target) -> None:
    """Permanently delete stream NAME and all its records."""

    async def look(client: Client) -> tuple[StreamInfo, int | None]:
        info = await client.stream(name)
        return info, await _records_of(client, info)

    async def carry_out(client: Client, uid: str) -> None:
        await client.admin.delete_stream(name, uid)  # the confirmed stream, not a new one with its name

    info, records = with_client(target, look)
    what = f"{'all' if records is None else f'its {records}'} records in {count_of(len(info.partitions), 'partition')}"
    if not dry_run:
        ask_consent(yes, f"delete stream {name} and {what} permanently?")
        with_client(target, lambda client: carry_out(client, info.uid))
    if as_json:
        print_json({"deleted": name, "uid": info.uid, "records": records, "dry_run": dry_run})
    else:
        click.echo(f"stream {name} and {what} would be deleted" if dry_run else f"stream {name} deleted, with {what}")


async def _records_of(client: Client, image: StreamInfo) -> int | None:
    """Return the number of committed offsets in all partitions. None: a partition has no leader."""
    options = ReadOptions(patience_s=_PATIENCE_S)
    try:
        bounds = await asyncio.gather(*(client.bounds(image.name, p.partition, options=options) for p in image.partitions))
    except LiftError:
        return None
    return sum(one.end_offset - one.log_start_offset for one in bounds)


def stream_json(image: StreamInfo) -> dict[str, Any]:
    """Return a stream as the JSON object that the commands print."""
    return {
        "name": image.name,
        "uid": image.uid,
        "subject": image.subject,
        "created_time_ns": image.created_time_ns,
        "config": settings_as_json(image.config, image.replica_count),
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
                "purges": [_purge_json(p, pending_purge) for pending_purge in p.purges],
                "paused": p.pause.words,
            }
            for p in image.image.partitions
        ],
    }


def _purge_json(partition: PartitionState, pending_purge: Purge) -> dict[str, Any]:
    keys = [key.decode("utf-8", "backslashreplace") for key in pending_purge.keys]
    waits = list(waits_for(partition, pending_purge))
    return {"subjects": list(pending_purge.subjects), "keys": keys, "end_offset": pending_purge.end_offset, "waits_for": waits}


def _partitions(image: StreamInfo) -> str:
    return f"{image.waiting} ({INSUFFICIENT_NODES})" if image.waiting else str(len(image.partitions))
