"""Entry point of the console script ``liftpy``: find the command, and turn errors into a message and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage or setting, 3 unavailable (no answer: retry), 130 interrupted by Ctrl-C, 128 + number
after SIGTERM or SIGHUP. The module of a command is imported only when the command runs. So ``liftpy --help`` needs neither NATS
nor Spark.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from liftpy import __version__, renamed
from liftpy.core.base.ids import is_utf8
from liftpy.errors import (
    ConfigError,
    LiftError,
    NatsUnreachableError,
    NoClusterError,
    NoMajorityError,
    StorageError,
    UnavailableError,
)
from sidecar.cli.help import HelpGroup
from sidecar.cli.options import add_shared_options
from sidecar.cli.output import OutputStalledError, discard_stdout, drop_stalled_output, make_output_stoppable

NO_ANSWER = (
    "The standard input ended before the confirmation. Nothing was done. Run the command in a terminal, or confirm with its "
    "option (--yes or --confirm)."
)
EXIT_FAILED = 1
"""Every command: failed."""
EXIT_USAGE = 2
"""Every command: wrong usage or setting."""
EXIT_UNAVAILABLE = 3
"""Every command: no answer from NATS or the cluster. Retry."""
EXIT_INTERRUPTED = 130
"""Every command: interrupted by Ctrl-C."""
SIGNALED = 128
"""Exit code of a command that SIGTERM or SIGHUP ended, without the signal's number."""

_REPEAT_DELAY_S = 0.01
"""Time until a signal is sent again whose KeyboardInterrupt Python has ignored, in seconds."""
_GC_THRESHOLD = 10_000
"""Threshold of the garbage collector. Imported objects stay in memory, so frequent collections only slow the start."""

COMMANDS = {
    "dev": ("sidecar.cli.dev", "Run nats-server and a cluster of sidecars on this machine."),
    "demo": ("sidecar.cli.demo", "Run the end-to-end demo: publish, replicate, stop the leader, read back."),
    "stream": ("sidecar.cli.stream", "Create, list, show, change, pause and delete streams."),
    "publish": ("sidecar.cli.publish", "Publish the lines of a file or of the standard input."),
    "consume": ("sidecar.cli.consume", "Print the records of a stream."),
    "group": ("sidecar.cli.group", "List, show, reset and delete consumer groups."),
    "cursor": ("sidecar.cli.group", "List, show, set and delete cursors (positions outside of groups)."),
    "service": ("sidecar.cli.service", "Run, call and query a replicated service."),
    "status": ("sidecar.cli.status", "Show all nodes, the metadata leader and the partitions."),
    "health": ("sidecar.cli.health", "Check the health of a node or of the cluster."),
    "top": ("sidecar.cli.top", "Watch rates, ack latency, lag and nodes once per second."),
    "events": ("sidecar.cli.events", "Show elections, ISR changes, node starts and stops, and requests."),
    "dashboard": ("sidecar.cli.dashboard", "Serve the web page of the cluster and the metrics of all nodes."),
    "sidecar": ("sidecar.cli.sidecar", "Run one node."),
    "node": ("sidecar.cli.node", "Drain a node, check whether it may stop, remove it, or set its weight and rack."),
    "partition": ("sidecar.cli.partition", "Move replicas and leaderships, and elect a leader for an offline partition."),
    "rebalance": ("sidecar.cli.rebalance", "Move replicas or leaderships so that every node holds its share."),
    "controllers": ("sidecar.cli.controllers", "Show, add, remove and replace members of the metadata group."),
    "settings": ("sidecar.cli.settings", "Show a node's settings, or reload them without a restart."),
    "log-level": ("sidecar.cli.node", "Set the log level of a node for a limited time."),
    "permissions": ("sidecar.cli.permissions", "Print the NATS permissions that a user needs."),
    "context": ("sidecar.cli.context", "Add, select, list and remove contexts: named ways to reach a cluster."),
    "completion": ("sidecar.cli.completion", "Print the completion script of a shell, or the man page."),
    "upgrade": ("sidecar.cli.upgrade", "Check, finalize, revert and report a rolling upgrade."),
    "backup": ("sidecar.cli.backup", "Create, list, verify, prune, restore and test backups."),
    "log": ("sidecar.cli.log", "Inspect, verify and repair the directory of a partition."),
    "spark": ("sidecar.cli.spark", "Archive, replay, compact, audit and measure streams with Spark."),
    "bench": ("sidecar.cli.bench", "Measure liftpy, JetStream and other systems on this machine."),
}
"""Command -> module that holds a click command of the same name, and its line in ``liftpy --help``."""

SECTIONS = {
    "Start here": ("dev", "demo"),
    "Streams and records": ("stream", "publish", "consume"),
    "Consumers": ("group", "cursor", "service"),
    "Monitoring": ("status", "health", "top", "events", "dashboard"),
    "Nodes and partitions": ("sidecar", "node", "partition", "rebalance"),
    "Cluster": ("controllers", "settings", "log-level", "permissions", "upgrade"),
    "Backup, files and analysis": ("backup", "log", "spark", "bench"),
    "This command line": ("context", "completion"),
}
"""Title in ``liftpy --help`` -> commands. Each command is in one section."""

EXAMPLES = """
liftpy dev                                            # run a local cluster
liftpy stream create orders --subject 'shop.orders.*' # store a subject
liftpy consume orders --from -10m                     # print the last 10 min
"""


class TextType(click.types.StringParamType):
    """Type of a text that a user gives. Text that is not UTF-8 is rejected here, for all commands."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = super().convert(value, param, ctx)
        if isinstance(text, str) and not is_utf8(text):
            self.fail(f"{text!r} is not UTF-8 text. Use UTF-8 characters.", param, ctx)
        return text


TEXT = TextType()


def check_texts(command: click.Command) -> click.Command:
    """Use the type TEXT for all text options and arguments of ``command`` and its subcommands, and return the command."""
    for param in command.params:
        if type(param.type) is click.types.StringParamType:
            param.type = TEXT
    for one in command.commands.values() if isinstance(command, click.Group) else ():
        check_texts(one)
    return command


@contextmanager
def _end_at_closed_pipe() -> Iterator[None]:
    """End the command with exit code 0 if the reader of its output has closed the pipe (``| head``). click and rich exit with 1."""
    try:
        yield
    except (BrokenPipeError, SystemExit) as error:
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        discard_stdout()
        raise click.exceptions.Exit(0) from None


class LazyGroup(HelpGroup):
    """The command group ``liftpy``. It imports the module of a command only when the command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with _exit_at_signals():
            module = importlib.import_module(COMMANDS[cmd_name][0])
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return check_texts(command)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _end_at_closed_pipe():  # --help and --version print here
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> object:
        with _end_at_closed_pipe():
            code = super().invoke(ctx)
            sys.stdout.flush()
            return code

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{widest}}", COMMANDS[name][1]) for name in names])


@click.group(
    cls=LazyGroup,
    example=EXAMPLES,
    epilog="Run 'liftpy help COMMAND' for the options of a command and an example.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="liftpy", message="%(prog)s %(version)s")
@add_shared_options
@click.pass_context
def liftpy(ctx: click.Context, /, **connection: str | None) -> None:
    """Store what is published on plain NATS in durable, replicated, replayable streams."""
    ctx.obj = {name: value for name, value in connection.items() if value is not None}


check_texts(liftpy)


def exit_code(error: LiftError) -> int:
    """Return the exit code for an error: 2 for a wrong request, 3 for no answer (retry), 1 for all other errors."""
    if isinstance(error, ConfigError):
        return EXIT_USAGE
    return EXIT_UNAVAILABLE if isinstance(error, UnavailableError) else EXIT_FAILED


def stop_signals() -> list[signal.Signals]:
    """Return the signals that end a command as Ctrl-C does: SIGTERM, and SIGHUP unless the parent ignores it (``nohup``)."""
    return [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def signal_handlers(numbers: Iterable[int], handler: Callable[[int, object], object]) -> Iterator[None]:
    """Let ``handler`` handle the signals ``numbers`` in this block. Only the main thread gets signals, so others change nothing."""
    before = {}
    with suppress(ValueError):  # not the main thread
        for number in numbers:
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)


@contextmanager
def _exit_at_signals() -> Iterator[None]:
    """Let the first signal of ``stop_signals``, or Ctrl-C, end the process at once. In this block, it has nothing to clean up.

    A handler that raises is not enough for an import. Python ignores the exception in some callbacks, and turns it into a RuntimeError
    in others.
    """
    numbers = stop_signals()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)
    with signal_handlers(numbers, lambda number, _: os._exit(SIGNALED + number)):
        yield


@contextmanager
def _ended_by_signals() -> Iterator[list[int]]:
    """Let the first signal of ``stop_signals`` end the command in this block as Ctrl-C does. Yield a list of the received signals.

    Later signals have no effect, because a closed terminal sends SIGHUP twice. A command may set its own signal handlers.

    Python ignores a KeyboardInterrupt in some callbacks, for example at the end of an import. It then calls ``sys.unraisablehook``,
    and also ignores an exception of this hook. So a thread sends the signal again. ``_exit_at_signals`` handles most imports.
    """
    signals: list[int] = []
    repeats: list[threading.Timer] = []

    def end(number: int, _: object) -> None:
        signals.append(number)
        session = sys.modules.get("sidecar.cli.session")  # imported by commands that use it
        if len(signals) == 1 and not (session is not None and session.cancel_running(SIGNALED + number)):
            raise KeyboardInterrupt(number)

    def send_again(ignored: sys.UnraisableHookArgs) -> None:
        if not isinstance(ignored.exc_value, KeyboardInterrupt):
            hook(ignored)
            return
        number = signals[0] if signals else signal.SIGINT
        signals.clear()
        repeats.append(threading.Timer(_REPEAT_DELAY_S, os.kill, (os.getpid(), number)))
        repeats[-1].daemon = True
        repeats[-1].start()

    with signal_handlers(stop_signals(), end):
        hook, sys.unraisablehook = sys.unraisablehook, send_again
        try:
            yield signals
        finally:
            sys.unraisablehook = hook
            for repeat in repeats:
                repeat.cancel()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line with ``arguments`` (None: those of the process). It always ends with SystemExit and the exit code."""
    atexit.register(gc.freeze)  # a last collection would take a quarter of the time of a short command
    with _ended_by_signals() as signals:
        _prepare_standard_streams(lambda: bool(signals) or _is_cancelled())
        words = sys.argv[1:] if arguments is None else arguments
        try:
            _run(words)
        except (click.Abort, KeyboardInterrupt, OutputStalledError) as error:
            drop_stalled_output()
            if isinstance(error.__context__, EOFError):
                click.echo(err=True)  # the end of the line with the question
                _show(ConfigError(NO_ANSWER), as_json="--json" in words)
                sys.exit(EXIT_USAGE)
            sys.exit(SIGNALED + signals[0] if signals else EXIT_INTERRUPTED)


def _run(arguments: list[str]) -> None:
    gc.set_threshold(_GC_THRESHOLD, *gc.get_threshold()[1:])
    if arguments[:1] == ["help"]:  # "liftpy help stream create"
        arguments = [*arguments[1:], "--help"]
    try:
        color = False if os.environ.get("NO_COLOR") else None  # None: colors on a terminal only
        code = liftpy.main(args=arguments, prog_name="liftpy", standalone_mode=False, color=color)
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and (text := new_name(error)):
            error = click.UsageError(text, error.ctx)
        if "--json" in arguments:
            kind = ConfigError if isinstance(error, click.UsageError) else LiftError
            _show(kind(error.format_message()), as_json=True)
        else:
            error.show()
        sys.exit(error.exit_code)
    except LiftError as error:
        _show(error, as_json="--json" in arguments)
        sys.exit(exit_code(error))
    except OSError as error:  # a file that the user has named. Other files and sockets raise LiftError
        if error.filename is None and error.errno not in DISK_ERRORS:
            raise
        if error.filename is None:
            discard_stdout()
            _show(StorageError(f"Cannot write the output: {error.strerror}."), as_json="--json" in arguments)
            sys.exit(EXIT_FAILED)
        if error.errno in DISK_ERRORS:
            _show(StorageError(f"Cannot use file {error.filename}: {error.strerror}."), as_json="--json" in arguments)
            sys.exit(EXIT_FAILED)
        _show(ConfigError(f"Cannot use file {error.filename}: {error.strerror}."), as_json="--json" in arguments)
        sys.exit(EXIT_USAGE)
    sys.exit(code if isinstance(code, int) else 0)


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a full or broken disk. Writes to a file raise them without its name."""


def _is_cancelled() -> bool:
    """Return whether a signal has cancelled the work of a command that uses an event loop."""
    session = sys.modules.get("sidecar.cli.session")
    return session is not None and bool(session.is_cancelled())


def _prepare_standard_streams(is_stopping: Callable[[], bool]) -> None:
    """Open the null device in place of the standard streams that the parent has closed. Sockets must not get their descriptors.

    Characters that the encoding of the output lacks are printed as escape sequences. So a command cannot fail after its work.
    Errors of the standard error are ignored. ``is_stopping``: returns whether a stop signal has arrived. It ends a write that waits.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free descriptor, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    make_output_stoppable(is_stopping)


def new_name(error: click.UsageError) -> str:
    """Return the present name of a renamed command or option that the user has given. '': ``error`` has another cause."""
    path = "" if error.ctx is None else error.ctx.command_path.partition(" ")[2]
    if isinstance(error, click.NoSuchOption):
        new = renamed.OPTIONS.get(f"{path} {error.option_name}".strip())
        return f"The option {error.option_name} was renamed. Use {new}." if new else ""
    match = re.match(r"No such command '([^']+)'", error.message)
    old = f"{path} {match[1]}".strip() if match else ""
    return f"The command liftpy {old} was renamed. Use liftpy {renamed.COMMANDS[old]}." if old in renamed.COMMANDS else ""


def _show(error: LiftError, *, as_json: bool) -> None:
    word = next((word for kind, word in _ERROR_KINDS.items() if isinstance(error, kind)), "")
    runbook = ""
    if word:
        from liftpy.core.observe.cluster_health import RUNBOOKS, VERDICTS  # only errors need it

        runbook = f"{RUNBOOKS}/{VERDICTS[word].runbook}.md"
    if as_json:
        error_object = {"code": error.code, "detail": str(error), "retryable": error.retryable}
        text = json.dumps({"error": {**error_object, "verdict": word, "runbook": runbook} if word else error_object})
    else:
        text = f"Error: {error}" + (" (try again)" if error.retryable else "") + (f"\n{word}: {runbook}" if word else "")
    click.echo(text, err=True)


_ERROR_KINDS: dict[type[LiftError], str] = {
    NatsUnreachableError: "nats-lost",
    NoMajorityError: "no-majority",
    NoClusterError: "no-answer",
}
"""Error class -> verdict about the cluster, as ``liftpy health`` prints it."""
