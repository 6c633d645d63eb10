"""``liftpy service``: run a replicated service beside a node; one such process beside every node that holds the partitions."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import uvloop
from click.core import ParameterSource
from nats.aio.client import Client as NatsConnection

from liftpy.client import Client
from liftpy.client.ending import end_tasks
from liftpy.client.transport import Transport, open_connection
from liftpy.errors import ConfigError, LiftError, NotFoundError, UnavailableError
from liftpy.service.base import Service
from liftpy.service.host import ServiceHost
from liftpy.service.routing import Route
from liftpy.service.rules import check_class, check_outputs, check_parameters, parameter_in, parameters_digest
from liftpy.service.settings import ServiceSettings
from liftpy.wire.inboxes import DEFAULT_INBOX_PREFIXES
from liftpy.wire.subjects import Subjects
from sidecar.cli.main import stop_signals
from sidecar.cli.options import connection_options
from sidecar.cli.service_call import call
from sidecar.cli.service_endings import exit_code, restart_helps, table
from sidecar.cli.service_orders import skip, snapshot
from sidecar.cli.service_query import query
from sidecar.settings import Target
from sidecar.tasks import attended

logger = logging.getLogger("liftpy.service")

_CONNECT_AGAIN_S = 0.5
_MAX_DIGITS = 6


class _RunGroup(click.Group):
    """``liftpy service MODULE:CLASS ...`` runs one; the words below are about services that run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and not set(args[:1]) & {"-h", "--help"}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_RunGroup, context_settings={"help_option_names": ["-h", "--help"]})
def service() -> None:
    """Replicated services: ``liftpy service MODULE:CLASS ...`` runs one beside a node (see ``liftpy service run --help``)."""


service.add_command(skip)
service.add_command(snapshot)
service.add_command(query)
service.add_command(call)


@service.command(epilog=table())
@click.argument("service_class", metavar="MODULE:CLASS")
@click.option("--name", default=None, help="The service's name: the same on all nodes.  [default: the class's, in lower case]")
@click.option("--stream", required=True, help="The stream whose committed records it is fed.")
@click.option("--partition", default=0, show_default=True, help="Which partition of it.")
@click.option(
    "--partitions",
    default="",
    metavar="all|N,N,...",
    help="One instance for each of these partitions, in one process; all: of those that there are when it starts. The first that "
    "ends for good ends all.",
)
@click.option("--node", required=True, help="The sidecar beside which it runs.")
@click.option("--data", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder for its snapshots.")
@click.option("--output", default="", metavar="STREAM", help="Where its outputs go: a stream for them alone.")
@click.option(
    "--route",
    "routes",
    multiple=True,
    metavar="NAME=STREAM",
    help="Where outputs are copied that are emitted to NAME: a stream for them alone, by key where it has more partitions; may be "
    "given several times, the same on all nodes.",
)
@click.option(
    "--dead-letter", "dead_letter_stream", default="", metavar="STREAM", help="Where records go that are passed over."
)
@click.option("--snapshot-every", default=10_000, show_default=True, help="Offsets between snapshots: the same on all nodes.")
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="Given to the class's __init__ as a keyword; JSON or text. The same on all nodes.",
)
@click.option(
    "--settings",
    "settings_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.json",
    help="An object of such names and values; --set wins.",
)
@click.option(
    "--reply-prefix",
    "reply_prefixes",
    multiple=True,
    default=DEFAULT_INBOX_PREFIXES,
    show_default=True,
    help="Under which inboxes those who send commands are answered; may be given several times.",
)
@click.option(
    "--tick-s",
    type=click.FloatRange(0, 3600),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="How often at most an empty record is written while a timer is due and nothing arrives; 0: never.",
)
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"]), help="What is logged.")
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
    """Run MODULE:CLASS, a liftpy.service.Service, until SIGTERM. The module is looked for here and on PYTHONPATH."""
    logging.basicConfig(
        stream=sys.stderr,
        level=log_level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
    logging.getLogger("nats").setLevel(logging.WARNING)
    if partitions and context.get_parameter_source("partition") is not ParameterSource.DEFAULT:
        raise click.UsageError("--partition and --partitions say the same thing: give one of them")
    wanted = partitions_in(partitions) if partitions else (flags["partition"],)
    found = load_service(service_class)
    check_outputs(found, output)
    parameters = read_parameters(found, given, settings_file)
    settings = ServiceSettings(
        service=name or found.__name__.lower(),
        output_stream=output,
        routes=tuple(map(_route, routes)),
        parameters_digest=parameters_digest(found, parameters),
        **flags,
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(partial(found, **parameters), settings, wanted, target))
    except LiftError as error:
        again = "a new start may help" if restart_helps(error) else "a new start does not help"
        click.echo(f"Error: {error.code}: {error} ({again})", err=True)
        context.exit(exit_code(error))


def _route(text: str) -> Route:
    name, separator, stream = text.partition("=")
    if not separator:
        raise ConfigError(f"--route {text}: it is NAME=STREAM")
    return Route(name, stream)


def load_service(service_class: str) -> type[Service]:
    """The class that ``MODULE:CLASS`` names; raise ConfigError if there is none, or it is no Service."""
    module_name, _, class_name = service_class.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{service_class} can't be loaded: {error}") from None
    if not (inspect.isclass(found) and issubclass(found, Service)):
        raise ConfigError(f"{service_class} is not a class that extends liftpy.service.Service")
    check_class(found)
    return found


def read_parameters(service: type[Service], given: Sequence[str], file: Path | None) -> dict[str, Any]:
    """What ``--settings`` and ``--set`` give the class's ``__init__``; raise ConfigError unless it takes just that."""
    parameters: dict[str, Any] = {}
    if file is not None:
        try:
            found = json.loads(file.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{file} can't be read as JSON: {error}") from None
        if not isinstance(found, dict):
            raise ConfigError(f"{file} holds no object of names and values")
        parameters.update(found)
    parameters.update(parameter_in(service, text) for text in given)
    check_parameters(service, parameters)
    return parameters


def partitions_in(text: str) -> tuple[int, ...] | None:
    """What ``--partitions`` names, in order; None: all that there are. Raise ConfigError for anything else."""
    if text == "all":
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= _MAX_DIGITS for part in parts):
        raise ConfigError(f"--partitions {text} is neither all nor numbers of partitions with commas between them")
    return tuple(sorted({int(part) for part in parts}))


async def _run(
    factory: Callable[[], Service], settings: ServiceSettings, partitions: Sequence[int] | None, target: Target
) -> None:
    """One instance over each of ``partitions`` (None: those of the stream), until a signal; the first that ends for good ends all.

    Each has its own connection, lock, snapshots and role: none waits for another. Raises what has ended the first.
    """
    stopping, failure = asyncio.Event(), [""]
    for number in (signal.SIGINT, *stop_signals()):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    stopped = attended(stopping.wait())
    finding = attended(_all_partitions(settings, target) if partitions is None else _known(partitions))
    running: list[asyncio.Task[None]] = []
    try:
        await asyncio.wait((finding, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not finding.done():
            return
        running += [
            attended(_run_one(factory, replace(settings, partition=n), target, stopping, failure)) for n in finding.result()
        ]
        first, others = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if others and not stopping.is_set():
            numbers = ", ".join(map(str, sorted(finding.result()[running.index(task)] for task in first)))
            logger.error("%s: partition %s has ended, and so all end", settings.stream, numbers)
            failure[0] = f"partition {numbers} of the same process has ended"
        stopping.set()
        if others:
            await asyncio.wait(others)
        for task in (*first, *others):
            task.result()
    finally:
        await end_tasks((finding, stopped, *running))


async def _known(partitions: Sequence[int]) -> Sequence[int]:
    return partitions


async def _all_partitions(settings: ServiceSettings, target: Target) -> Sequence[int]:
    """Those of the stream, once it is there and the cluster says so."""
    connection = await _connect(settings, target)
    announced = False
    try:
        client = Client(Transport(connection), Subjects(target.namespace), owns_connection=False)
        while True:
            try:
                if count := len((await client.stream(settings.stream)).partitions):
                    return range(count)
                raise UnavailableError(f"no partition of {settings.stream} has a node yet")
            except (NotFoundError, UnavailableError) as error:
                if not announced:
                    logger.warning("which partitions there are is not known: %s; trying on", error)
                    announced = True
                await asyncio.sleep(_CONNECT_AGAIN_S)
    finally:
        with contextlib.suppress(Exception):
            await connection.close()


async def _run_one(
    factory: Callable[[], Service], settings: ServiceSettings, target: Target, stopping: asyncio.Event, failure: list[str]
) -> None:
    """One instance, until ``stopping``, for the ``failure`` in there or on request; raises what ends it otherwise."""
    connecting = attended(_connect(settings, target))
    stopped = attended(stopping.wait())
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
    """A connection, however long it takes: a service is started together with its node, and NATS may come later."""
    announced = False
    while True:
        try:
            return await open_connection(target.nats, credentials=target.credentials, name=f"liftpy-service-{settings.service}")
        except UnavailableError as error:
            if not announced:
                logger.warning("%s; trying on", error)
                announced = True
            await asyncio.sleep(_CONNECT_AGAIN_S)
