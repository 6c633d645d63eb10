"""``liftpy service``: run a replicated service, call it, query it, skip a bad record, or request a snapshot.

``liftpy service run`` runs next to each node that has a replica of the partition. Its exit code says whether a restart can help.
Codes 0, 1, 2, 3 and 130 are those of every command, and 75 is that of a node. The others are the closest ones of sysexits.h.
``DO_NOT_RESTART`` lists the codes after which a restart cannot help.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import logging
import shlex
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import uvloop
from nats.aio.client import Client as NatsConnection

from liftpy.client import Client
from liftpy.client.stream_info import StreamInfo
from liftpy.core.base.ids import check_name
from liftpy.core.base.strict_json import load_json
from liftpy.core.services.bad_records import SkipDecision, Unit
from liftpy.core.services.outbox import OutputConflictError, Route
from liftpy.core.services.rules import check_class, check_outputs, check_parameters, parameter_in, parameters_digest
from liftpy.core.services.service import DivergedError, Service, ServiceFailedError
from liftpy.core.services.snapshot import Identity
from liftpy.core.services.versions import FIRST, decided_version
from liftpy.core.wire import frames
from liftpy.core.wire._pb import service_pb2
from liftpy.core.wire.batch import Record
from liftpy.core.wire.subjects import DEFAULT_INBOX_PREFIXES, Subjects
from liftpy.errors import (
    ConfigError,
    CorruptionError,
    DataDirectoryLockedError,
    DataLossError,
    FencedError,
    LiftError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    UnknownFormatError,
)
from liftpy.nats.cancellation import end_tasks
from liftpy.nats.transport import Transport, open_connection
from liftpy.service.bad_record_writer import DecisionWriter
from liftpy.service.host import ServiceHost
from liftpy.service.settings import ServiceSettings
from sidecar.cli.completion import NODE, SERVICE, STREAM
from sidecar.cli.help import HelpGroup
from sidecar.cli.main import stop_signals
from sidecar.cli.node_reports import ask_nodes
from sidecar.cli.options import BYTES, Duration, connection_options, timeout_option
from sidecar.cli.output import limit_waits_for_readers
from sidecar.cli.session import with_client
from sidecar.runtime.logs import LEVELS, LogHandler
from sidecar.runtime.restarts import EXIT_TO_REPAIR, is_temporary
from sidecar.runtime.settings import Target
from sidecar.runtime.tasks import start_attended

logger = logging.getLogger("liftpy.service")

EXIT_FAILED = 1
"""``liftpy service``: failed otherwise. A restart may help."""
EXIT_CONFIG = 2
"""``liftpy service``: wrong usage, setting or class. No restart."""
EXIT_UNAVAILABLE = 3
"""``liftpy service``: no answer from NATS or the cluster. Restart."""
EXIT_DATA = 65
"""EX_DATAERR: a service can't apply a record, or its output stream is not its own. No restart."""
EXIT_IN_USE = 69
"""EX_UNAVAILABLE: another process of the service has its place. No restart."""
EXIT_DIVERGED = 70
"""EX_SOFTWARE: a service's state is not that of the other nodes. No restart."""
EXIT_NOT_ALLOWED = 77
"""EX_NOPERM: NATS does not give a service its rights. No restart."""
_POLL_S = 0.2
_BY_AN_OPERATOR = "passed over by an operator"
_CONNECT_AGAIN_S = 0.5
_MAX_DIGITS = 6


class _RunGroup(HelpGroup):
    """The command group ``liftpy service``. If the first word is ``MODULE:CLASS`` or an option, the subcommand is ``run``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "-h", "--help"} and (args[0].startswith("-") or ":" in args[0]):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_RunGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    example="liftpy service bank:Bank --stream bank-commands --node n1 --data /var/lib/bank",
)
def service() -> None:
    """Run a replicated service, call it, query it, or skip a bad record.

    ``liftpy service MODULE:CLASS ...`` is short for ``liftpy service run MODULE:CLASS ...``.
    """


@service.command(example="liftpy service call bank 'deposit alice 10' --stream bank-commands --key alice")
@click.argument("name", type=SERVICE)
@click.argument("text", required=False)
@click.option(
    "--stream", type=STREAM, required=True, help="Stream that the service reads. The command becomes a record of this stream."
)
@click.option(
    "--partition",
    type=click.IntRange(0),
    help=(
        "Partition to send the command to. A stream with several partitions needs --partition or --key.  [default: the only "
        "partition]"
    ),
)
@click.option("--key", type=BYTES, help="Key of the record.")
@click.option(
    "--message-id",
    default="",
    metavar="ID",
    help="Message id. A command that is sent twice with one id has one effect.  [default: a random id]",
)
@timeout_option("5s")
@click.option(
    "--show-offset", "shows_offset", is_flag=True, help="Print the offset of the record and the node that answered, on stderr."
)
@connection_options
def call(
    name: str,
    text: str | None,
    stream: str,
    partition: int | None,
    key: bytes | None,
    message_id: str,
    timeout_s: float,
    shows_offset: bool,
    target: Target,
) -> None:
    """Send the command TEXT to the service NAME, and print its reply. Without TEXT, send the standard input.

    If no answer arrives, the command is sent again with the same message id. A service that replies applies it once.
    """
    check_name(name, "service")
    body = _body(text)
    how: dict[str, Any] = {"partition": partition, "key": key, "message_id": message_id, "timeout_s": timeout_s}
    answer = with_client(target, lambda client: client.services.call(name, stream, body, **how), needs_majority=False)
    _print_line(answer.value)
    if shows_offset:
        click.echo(f"offset {answer.offset}, answered by {answer.node}", err=True)


def _body(text: str | None) -> bytes:
    return sys.stdin.buffer.read() if text is None else text.encode()


def _print_line(value: bytes) -> None:
    sys.stdout.buffer.write(value + (b"" if value.endswith(b"\n") else b"\n"))


TABLE: tuple[tuple[int, tuple[type[LiftError], ...], bool, str], ...] = (
    (0, (), False, "stopped by SIGTERM or SIGINT"),
    (EXIT_FAILED, (), True, "another failure, such as a bug or a disk error"),
    (
        EXIT_CONFIG,
        (ConfigError,),
        False,
        "wrong usage, setting or class, or parameters that differ from the other nodes",
    ),
    (EXIT_UNAVAILABLE, (UnavailableError,), True, "no answer from NATS or the cluster"),
    (
        EXIT_DATA,
        (ServiceFailedError, OutputConflictError, DataLossError, CorruptionError, UnknownFormatError),
        False,
        "a record that the service cannot apply (see liftpy service skip), a foreign record in its output stream, or a log that "
        "starts too late",
    ),
    (
        EXIT_IN_USE,
        (FencedError, DataDirectoryLockedError),
        False,
        "another process of this service uses this node or this directory",
    ),
    (EXIT_DIVERGED, (DivergedError,), False, "the state differs from the state on other nodes"),
    (EXIT_TO_REPAIR, (NotFoundError,), True, "the disk was full, or the stream was created again"),
    (EXIT_NOT_ALLOWED, (NotAllowedError,), False, "missing NATS permissions (see liftpy permissions --role service)"),
)
"""Rows of the table of exit codes: (code, errors, whether a restart can help, cause). The most specific class of an error counts."""
DO_NOT_RESTART = tuple(code for code, _, can_help, _ in TABLE if code and not can_help)
_CODES = {kind: code for code, kinds, _, _ in TABLE for kind in kinds}


def exit_code(error: LiftError) -> int:
    """Return the exit code of a service that ends with ``error``."""
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return EXIT_TO_REPAIR if is_temporary(error) else EXIT_FAILED


def restart_helps(error: LiftError) -> bool:
    """Return whether a restart may help after the service has ended with ``error``."""
    return exit_code(error) not in DO_NOT_RESTART


def table() -> str:
    """Return a table of the exit codes for ``--help``, one line each, and the setting for systemd."""
    lines = [f"{code:>4}  {'restart' if can_help else 'do not restart':<14}  {when}" for code, _, can_help, when in TABLE]
    numbers = shlex.join(map(str, DO_NOT_RESTART))
    return "\b\nExit codes:\n" + "\n".join(lines) + f"\n\nsystemd: Restart=on-failure, RestartPreventExitStatus={numbers}"


@service.command(example="liftpy service skip bank --stream bank-commands --offset 1234")
@click.argument("name", type=SERVICE)
@click.option("--stream", type=STREAM, required=True, help="Stream that the service reads.")
@click.option("--partition", type=click.IntRange(0), help="Partition of the record.  [default: the only partition]")
@click.option("--offset", required=True, type=click.IntRange(0), help="Offset of the record that the service cannot apply.")
@click.option("--timer", default="", help="Id of the timer that fails at this offset, if a timer fails.")
@click.option("--dead-letter-stream", "dead_letter", default="", metavar="STREAM", help="Stream that keeps the skipped record.")
@click.option("--force", is_flag=True, help="Skip also if a service has already applied the record.")
@click.option(
    "--no-side-effects",
    "has_no_side_effects",
    is_flag=True,
    help=(
        "Confirm, for --force, that the record caused no output, effect or offer, neither by itself nor by changing what later "
        "records did."
    ),
)
@connection_options
def skip(
    name: str,
    stream: str,
    partition: int | None,
    offset: int,
    timer: str,
    dead_letter: str,
    force: bool,
    has_no_side_effects: bool,
    target: Target,
) -> None:
    """Make the service NAME skip a record, on all nodes. The decision becomes a record of the stream.

    A service that is blocked at the record continues. A service that has stopped continues after its restart.

    The command fails if a running service has already applied the record. It cannot check services on nodes that do not answer.

    With --force, the services that have applied the record rebuild their states without it. The command fails if no instance has a
    snapshot for this, or if outputs were written or effects were requested since.
    """
    check_name(name, "service")
    unit = Unit(offset, timer)
    decided_at = with_client(
        target,
        lambda client: pass_over(
            client,
            name,
            stream,
            partition,
            unit,
            dead_letter=dead_letter,
            force=force,
            has_no_side_effects=has_no_side_effects,
        ),
    )
    click.echo(f"{name} skips {unit} of {stream}/{partition or 0}: decided by the record at offset {decided_at}")


@service.command(example="liftpy service snapshot bank --stream bank-commands")
@click.argument("name", type=SERVICE)
@click.option("--stream", type=STREAM, required=True, help="Stream that the service reads.")
@click.option("--partition", type=click.IntRange(0), help="Partition of the service instance.  [default: the only partition]")
@click.option(
    "--node", "nodes", type=NODE, multiple=True, help="Node of the service instance. May be repeated.  [default: all]"
)
@timeout_option("30s")
@connection_options
def snapshot(name: str, stream: str, partition: int | None, nodes: tuple[str, ...], timeout_s: float, target: Target) -> None:
    """Make the service NAME store a snapshot now, and wait until the snapshot is durable."""
    check_name(name, "service")
    stored = with_client(target, lambda client: store_now(client, name, stream, partition, nodes, timeout_s, target.namespace))
    for node, position in stored.items():
        click.echo(f"{name} on {node}: snapshot at {position}")


async def store_now(
    client: Client, name: str, stream: str, number: int | None, nodes: Sequence[str], timeout_s: float, namespace: str
) -> dict[str, int]:
    """Request a snapshot from the service on each of ``nodes`` and wait until it is stored.

    ``nodes`` empty: all nodes that run the service. ``number``: number of the partition, None if the stream has only one. Return
    the position of the snapshot for each node. Raises NotFoundError, ConfigError, and UnavailableError after ``timeout_s`` seconds.
    """
    image = await client.stream(stream)
    partition = _partition_in(stream, len(image.partitions), number)
    instances = await _instances(client, nodes or image.partitions[partition].replicas, image.uid, partition, name)
    positions = {node: int(status["position"]) for node, status in instances.items()}
    for node in nodes:
        if node not in positions:
            raise NotFoundError(f"Service {name} does not run next to node {node}. Check --node.")
    if not positions:
        raise NotFoundError(
            f"Service {name} does not run for {stream}/{partition} on any node. Check the name, --stream and --partition."
        )
    request = frames.seal(service_pb2.SnapshotRequest(service=name, stream=stream, partition=partition))
    for node in positions:
        await client.transport.publish(Subjects(namespace).service_session(node, stream, name), request)
    stored: dict[str, int] = {}
    give_up_s = time.monotonic() + timeout_s
    while True:
        instances = await _instances(client, sorted(positions.keys() - stored.keys()), image.uid, partition, name)
        stored |= {node: at for node, one in instances.items() if (at := int(one["snapshot"])) >= positions[node]}
        missing = sorted(positions.keys() - stored.keys())
        if not missing:
            return dict(sorted(stored.items()))
        if time.monotonic() >= give_up_s:
            raise UnavailableError(
                f"The service has stored no snapshot on {', '.join(missing)} within {timeout_s:g} s "
                "(--timeout). Check the log of the service."
            )
        await asyncio.sleep(_POLL_S)


async def pass_over(
    client: Client,
    name: str,
    stream: str,
    number: int | None,
    unit: Unit,
    *,
    dead_letter: str = "",
    force: bool = False,
    has_no_side_effects: bool = False,
) -> int:
    """Append a record that makes the service skip ``unit``, and return the offset of this record.

    Args:
        client: Connected client.
        name: Name of the service.
        stream: Name of its input stream.
        number: Number of the partition. None: the only one.
        unit: Record or timer to skip.
        dead_letter: Name of a stream that gets a copy of the skipped record. Default '': none.
        force: True to skip a record that the service may have applied. Default False.
        has_no_side_effects: True if the operator confirms that an applied record caused no outputs and effects. Default False.

    Raises:
        ConfigError: A service has applied the record, and the skip is not possible or not confirmed.
    """
    if dead_letter == stream:
        raise ConfigError(
            f"--dead-letter-stream {dead_letter} is the stream of the service itself, so the service would read the record again. "
            "Choose another stream."
        )
    image = await client.stream(stream)
    partition = _partition_in(stream, len(image.partitions), number)

    async def check() -> None:
        await _check_skip(client, name, stream, image, partition, unit, force=force, has_no_side_effects=has_no_side_effects)

    await check()
    record = await _record(client, stream, partition, unit.offset, image.uid)
    writer = DecisionWriter(client, dead_letter)
    identity = Identity(name, stream, image.uid, partition)
    # the log, the snapshots and the services may have changed since the first check
    return await writer.pass_over(identity, SkipDecision(name, unit), record, _BY_AN_OPERATOR, check)


async def _check_skip(
    client: Client,
    name: str,
    stream: str,
    image: StreamInfo,
    partition: int,
    unit: Unit,
    *,
    force: bool,
    has_no_side_effects: bool,
) -> None:
    """Check that all services ``name`` can skip ``unit``, a record of a partition of ``stream``, or a timer.

    ``image``: description of the stream. ``force``, ``has_no_side_effects``: as in ``pass_over``. Raises ConfigError.
    """
    bounds = await client.bounds(stream, partition)
    if not bounds.log_start_offset <= unit.offset < bounds.end_offset:
        raise ConfigError(
            f"{stream}/{partition} has the offsets {bounds.log_start_offset} to {bounds.end_offset - 1}, not "
            f"{unit.offset}. Check --offset."
        )
    instances = await _instances(client, image.partitions[partition].replicas, image.uid, partition, name)
    applied = {node: status for node, status in instances.items() if int(status["position"]) > unit.offset}
    for node, status in applied.items():
        if not force:
            raise ConfigError(
                f"Service {name} on {node} is at offset {status['position']}. It has already applied {unit}, and may have "
                "written its outputs. To skip the record anyway, use --force."
            )
    if len(applied) == len(instances) > 0:
        first_version = await _first_version(client, stream, partition, image.uid, name, bounds.log_start_offset)
        _check_replay(name, unit, f"{stream}/{partition}", applied.values(), bounds.log_start_offset, first_version)
    reached = [status for status in instances.values() if int(status["position"]) >= unit.offset]
    if reached and not has_no_side_effects:
        _check_side_effects(name, unit, instances.values(), is_applied=bool(applied))


async def _first_version(client: Client, stream: str, partition: int, uid: str, name: str, log_start_offset: int) -> int:
    """Return the version by which the service ``name`` applies the first record of the log. 0: this record is deleted."""
    if log_start_offset > 0:
        return 0
    return decided_version(await _record(client, stream, partition, 0, uid), name) or FIRST


def _check_replay(
    name: str, unit: Unit, place: str, instances: Iterable[dict[str, Any]], log_start_offset: int, first_version: int
) -> None:
    """Check that an instance of the service can rebuild its state without ``unit``, which all have applied.

    The other instances can then fetch its later snapshots. ``place``: stream and partition. ``first_version``: version of the first
    record, 0 if it is deleted. Raises ConfigError.
    """
    for status in instances:
        lowest = int(status.get("version", 0)) - 1
        points = [(int(point["position"]), int(point["version"])) for point in status.get("replay_points", [])]
        if first_version >= max(lowest, FIRST):
            return
        if any(log_start_offset <= position <= unit.offset and version >= lowest for position, version in points):
            return
    raise ConfigError(
        f"Service {name} has applied {unit}, and no instance can rebuild its state without it. {place} starts at offset "
        f"{log_start_offset}, and no instance has a snapshot from there to offset {unit.offset} that its code supports. "
        "Nothing was changed. Publish a record that corrects the state instead."
    )


def _check_side_effects(name: str, unit: Unit, instances: Collection[dict[str, Any]], *, is_applied: bool) -> None:
    """Check that the service has written no outputs and requested no effects since the newest known state before ``unit``.

    This state is a snapshot, or that of an instance that is blocked at the unit. ``is_applied``: True if an instance has applied the
    unit. Raises ConfigError.
    """
    points = [point for status in instances for point in status.get("replay_points", [])]
    points += [status for status in instances if "effect_count" in status]
    before = [point for point in points if int(point["position"]) <= unit.offset]
    base = max(before, key=lambda point: int(point["position"]), default={"position": 0, "output_count": 0, "effect_count": 0})
    outputs = max(int(status.get("emitted_end", 0)) for status in instances) - int(base["output_count"])
    effects = max(int(status.get("effect_count", 0)) for status in instances) - int(base["effect_count"])
    is_known = not is_applied or all("effect_count" in status for status in instances)
    if not is_applied and int(base["position"]) < unit.offset:
        return
    if outputs <= 0 and effects <= 0 and is_known:
        return
    raise ConfigError(
        f"Service {name} has applied {unit}. Since offset {base['position']}, it has written {max(0, outputs)} outputs and "
        f"requested {max(0, effects)} effects. If the record caused one of them, a skip stops all instances with "
        "SERVICE_DIVERGED, or ignores the results of calls that have happened. Publish a record that corrects the state "
        "instead. If the record caused none of them, use --no-side-effects."
    )


def _partition_in(stream: str, count: int, partition: int | None) -> int:
    """Return the number of the partition to use in a stream with ``count`` partitions.

    ``partition`` None: the only partition. Raises ConfigError if there are several, and NotFoundError.
    """
    if partition is None and count > 1:
        raise ConfigError(f"Stream {stream} has {count} partitions, and a service has its own state in each. Set --partition.")
    place = partition or 0
    if place >= count:
        raise NotFoundError(f"Stream {stream} has no partition {place}. It has {count} partitions, numbered from 0.")
    return place


async def _instances(client: Client, nodes: Sequence[str], uid: str, partition: int, name: str) -> dict[str, dict[str, Any]]:
    """Return the status of the service ``name`` by node. A node without an answer or without the service is absent."""
    reports = await ask_nodes(client, list(nodes))
    services = {node: report.get((uid, partition), {}).get("services", []) for node, report in reports.items()}
    return {node: dict(one) for node, found in services.items() for one in found if one.get("service") == name}


async def _record(client: Client, stream: str, partition: int, offset: int, uid: str) -> Record:
    async for piece in client.read_range(stream, partition, offset, offset + 1, uid=uid, exact=True):
        for record in piece.records():
            return record
    raise LiftError(f"{stream}/{partition} has no record at offset {offset}. Check --offset.")


@service.command(example="liftpy service query bank 'balance alice' --key alice")
@click.argument("name", type=SERVICE)
@click.argument("text", required=False)
@click.option(
    "--partition",
    type=click.IntRange(0),
    help=(
        "Query the instance of this partition. A service with several instances needs --partition or --key.  "
        "[default: the only instance]"
    ),
)
@click.option("--key", type=BYTES, metavar="TEXT", help="Query the instance that has the records of this key.")
@click.option(
    "--at-least",
    type=click.IntRange(0),
    metavar="OFFSET",
    help=(
        "Accept only a state that contains every record below OFFSET. 0 accepts any state.  [default: all "
        "records committed now]"
    ),
)
@click.option(
    "--show-offset", "shows_position", is_flag=True, help="Print the offset of the state and the node that answered, on stderr."
)
@connection_options
def query(
    name: str,
    text: str | None,
    partition: int | None,
    key: bytes | None,
    at_least: int | None,
    shows_position: bool,
    target: Target,
) -> None:
    """Send the query TEXT to the service NAME, and print the bytes of the answer. Without TEXT, send the standard input."""
    check_name(name, "service")
    if partition is not None and key is not None:
        raise ConfigError("--partition and --key cannot be combined. Remove one of them.")
    body = _body(text)
    how: dict[str, Any] = {"partition": partition, "key": key, "at_least": at_least}
    answer = with_client(target, lambda client: client.services.query(name, body, **how), needs_majority=False)
    _print_line(answer.value)
    if shows_position:
        click.echo(f"position {answer.position} on {answer.node}", err=True)


@service.command(epilog=table(), example="liftpy service run bank:Bank --stream bank-commands --node n1 --data /var/lib/bank")
@click.argument("service_class", metavar="MODULE:CLASS")
@click.option("--name", help="Name of the service. Must be equal on all nodes.  [default: the class name in lower case]")
@click.option("--stream", type=STREAM, required=True, help="Stream whose committed records the service reads.")
@click.option(
    "--partition",
    "partitions",
    default="0",
    show_default=True,
    metavar="N,N,...|all",
    help=(
        "Partitions that the service reads, separated by commas. 'all' means the partitions that exist at the start. One process runs "
        "one instance for each partition. If one instance fails permanently, the process ends."
    ),
)
@click.option("--node", type=NODE, required=True, help="Id of the node that the service runs next to.")
@click.option("--data", required=True, type=click.Path(file_okay=False, path_type=Path), help="Directory for snapshots.")
@click.option(
    "--output-stream",
    "output",
    default="",
    metavar="STREAM",
    help="Stream for the outputs of the service. Nothing else may publish there.",
)
@click.option(
    "--route",
    "routes",
    multiple=True,
    metavar="NAME=STREAM",
    help=(
        "Stream for outputs that the service emits to NAME. Nothing else may publish to it. Outputs with a "
        "key go to the partition of the key. May be repeated. Must be equal on all nodes."
    ),
)
@click.option("--dead-letter-stream", default="", metavar="STREAM", help="Stream for skipped records.")
@click.option(
    "--snapshot-interval-records",
    default=10_000,
    show_default=True,
    help="Number of offsets between two snapshots. Must be equal on all nodes.",
)
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="Keyword argument for __init__ of the class, as JSON or text. May be repeated. Must be equal on all nodes.",
)
@click.option(
    "--settings",
    "settings_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.json",
    help="JSON file with an object of keyword arguments. --set overrides it.",
)
@click.option(
    "--reply-prefix",
    "reply_prefixes",
    multiple=True,
    default=DEFAULT_INBOX_PREFIXES,
    show_default=True,
    help="Inbox prefix of clients that send commands. May be repeated.  [default: _INBOX*.]",
)
@click.option(
    "--tick-interval",
    "tick_interval_s",
    type=Duration(0, 3600),
    default="0",
    show_default=True,
    help=(
        "Shortest time between two empty records. The service writes an empty record if a timer "
        "is due and no other record arrives. 0 disables them."
    ),
)
@click.option("--log-level", default="info", type=click.Choice(LEVELS), help="Minimum level of log lines.")
@connection_options
@click.pass_context
def run(
    context: click.Context,
    /,
    service_class: str,
    name: str | None,
    log_level: str,
    target: Target,
    output: str,
    given: tuple[str, ...],
    settings_file: Path | None,
    partitions: str,
    routes: tuple[str, ...],
    **flags: Any,
) -> None:
    """Run MODULE:CLASS, a subclass of liftpy.service.Service, until SIGTERM.

    Python searches the module in the current directory and on PYTHONPATH.
    """
    limit_waits_for_readers()
    logging.basicConfig(
        handlers=[LogHandler(sys.stderr)],
        level=log_level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    logging.getLogger("nats").setLevel(logging.WARNING)
    wanted = partitions_in(partitions)
    service_type = load_service(service_class)
    check_outputs(service_type, output)
    parameters = read_parameters(service_type, given, settings_file)
    settings = ServiceSettings(
        service=name or service_type.__name__.lower(),
        output_stream=output,
        routes=tuple(map(_route, routes)),
        parameters_digest=parameters_digest(service_type, parameters),
        **flags,
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(partial(service_type, **parameters), settings, wanted, target))
    except LiftError as error:
        again = "a new start may help" if restart_helps(error) else "a new start does not help"
        click.echo(f"Error: {error.code}: {error} ({again})", err=True)
        context.exit(exit_code(error))


def _route(text: str) -> Route:
    name, separator, stream = text.partition("=")
    if not separator:
        raise ConfigError(f"Invalid value for --route: {text}. Use NAME=STREAM.")
    return Route(name, stream)


def load_service(service_class: str) -> type[Service]:
    """Return the service class that ``service_class`` ("MODULE:CLASS") names.

    Raise ConfigError if the class does not exist or is not a Service.
    """
    module_name, _, class_name = service_class.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        service_type = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"Cannot load {service_class}: {error}. Check MODULE:CLASS, the current directory and PYTHONPATH."
        ) from None
    if not (inspect.isclass(service_type) and issubclass(service_type, Service)):
        raise ConfigError(f"{service_class} is not a subclass of liftpy.service.Service. Check MODULE:CLASS.")
    check_class(service_type)
    return service_type


def read_parameters(service: type[Service], texts: Sequence[str], file: Path | None) -> dict[str, Any]:
    """Return the arguments for the constructor of a service, from the options ``--settings`` (``file``) and ``--set`` (``texts``).

    Raise ConfigError unless they match the parameters of ``__init__``.
    """
    parameters: dict[str, Any] = {}
    if file is not None:
        try:
            values = load_json(file.read_bytes(), unique=True)
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"Cannot read --settings {file} as JSON: {error}. Use a file with one JSON object.") from None
        if not isinstance(values, dict):
            raise ConfigError(f"--settings {file} is not a JSON object. Use names and values.")
        parameters.update(values)
    own: dict[str, Any] = {}
    for name, value in (parameter_in(service, text) for text in texts):
        if name in own:
            raise ConfigError(f"Invalid --set {name}: it is given twice. Give each name once.")
        own[name] = value
    parameters.update(own)
    check_parameters(service, parameters)
    return parameters


def partitions_in(text: str) -> tuple[int, ...] | None:
    """Return the partition numbers in the value of ``--partition``, in ascending order. None: all. Raises ConfigError."""
    if text == "all":
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= _MAX_DIGITS for part in parts):
        raise ConfigError(f"Invalid value for --partition: {text!r}. Use all, or partition numbers separated by commas.")
    return tuple(sorted({int(part) for part in parts}))


async def _run(
    factory: Callable[[], Service], settings: ServiceSettings, partitions: Sequence[int] | None, target: Target
) -> None:
    """Run one service instance for each of ``partitions`` (None: all of the stream) until a signal arrives.

    Each instance has its own connection, lock, snapshots and role. If one instance ends with an error, all others stop, and this
    error is raised.
    """
    stopping, failure = asyncio.Event(), [""]
    for number in (signal.SIGINT, *stop_signals()):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    stopped = start_attended(stopping.wait())
    finding = start_attended(_find_partitions(settings, partitions, target))
    running: list[asyncio.Task[None]] = []
    try:
        await asyncio.wait((finding, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not finding.done():
            return
        running += [
            start_attended(_run_one(factory, replace(settings, partition=n), target, stopping, failure))
            for n in finding.result()
        ]
        first, others = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if others and not stopping.is_set():
            numbers = ", ".join(map(str, sorted(finding.result()[running.index(task)] for task in first)))
            logger.error("service instance ended stream=%s partitions=%s: stopping all partitions", settings.stream, numbers)
            failure[0] = f"partition {numbers} of the same process has ended"
        stopping.set()
        if others:
            await asyncio.wait(others)
        for task in (*first, *others):
            task.result()
    finally:
        await end_tasks((finding, stopped, *running))


async def _find_partitions(settings: ServiceSettings, partitions: Sequence[int] | None, target: Target) -> Sequence[int]:
    """Return ``partitions``. None: wait until the stream exists, and return all its partitions."""
    if partitions is not None:
        return partitions
    connection = await _connect(settings, target)
    announced = False
    try:
        client = Client(Transport(connection), Subjects(target.namespace), owns_connection=False)
        while True:
            try:
                if count := len((await client.stream(settings.stream)).partitions):
                    return range(count)
                raise UnavailableError(
                    f"No partition of {settings.stream} is placed on a node yet. Start more nodes, or check `liftpy status`."
                )
            except (NotFoundError, UnavailableError) as error:
                if not announced:
                    logger.warning("partitions not listed error=%s: retrying", error)
                    announced = True
                await asyncio.sleep(_CONNECT_AGAIN_S)
    finally:
        with contextlib.suppress(Exception):
            await connection.close()


async def _run_one(
    factory: Callable[[], Service], settings: ServiceSettings, target: Target, stopping: asyncio.Event, failure: list[str]
) -> None:
    """Run one service instance until ``stopping`` is set. Raises the error that ends the instance.

    ``failure``: list whose first text is the reason to stop, '' for a signal.
    """
    connecting = start_attended(_connect(settings, target))
    stopped = start_attended(stopping.wait())
    try:
        await asyncio.wait((connecting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if connecting.done():
            host = ServiceHost(factory, settings, Transport(connecting.result()), target.namespace)
            stopped.add_done_callback(lambda _: host.stop(failure[0]))
            await host.run()
    finally:
        await end_tasks((connecting, stopped))
        if not connecting.cancelled() and connecting.exception() is None:
            with contextlib.suppress(Exception):
                await connecting.result().close()


async def _connect(settings: ServiceSettings, target: Target) -> NatsConnection:
    """Return a connection to NATS. It waits without limit, because a service may start before its node and before NATS."""
    announced = False
    while True:
        try:
            return await open_connection(target.nats, credentials=target.credentials, name=f"liftpy-service-{settings.service}")
        except UnavailableError as error:
            if not announced:
                logger.warning("NATS connection failed error=%s: retrying", error)
                announced = True
            await asyncio.sleep(_CONNECT_AGAIN_S)
