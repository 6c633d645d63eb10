"""The console script ``liftpy``: finds the command, and turns errors into a message and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage or setting, 3 unavailable (nobody answered: retry), 130 interrupted, 128 + number ended by
SIGTERM or SIGHUP. A command's module is imported only when the command is called: ``liftpy --help`` needs neither NATS nor Spark.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from liftpy import __version__
from liftpy.core.base import renamed
from liftpy.core.base.ids import is_utf8
from liftpy.errors import ConfigError, LiftError, UnavailableError
from sidecar.cli.closed_pipe import nobody_reads

EXIT_FAILED = 1
"""Of every command: failed."""
EXIT_USAGE = 2
"""Of every command: wrong usage or setting."""
EXIT_UNAVAILABLE = 3
"""Of every command: nobody answered. Retry."""
EXIT_INTERRUPTED = 130
"""Of every command: interrupted by Ctrl-C."""
SIGNALED = 128
"""Exit code of a command that SIGTERM or SIGHUP ended, without the signal's number."""

_YOUNG = 10_000
"""What a command imports is there to stay: looking for garbage in it every 700 objects is a twentieth of its start."""

COMMANDS = {
    "dev": ("sidecar.cli.dev", "Run nats-server and a cluster of sidecars here, in the foreground."),
    "sidecar": ("sidecar.cli.sidecar", "Run one node."),
    "stream": ("sidecar.cli.stream", "Create, list, show and delete streams."),
    "partition": ("sidecar.cli.partition", "Move replicas and leaderships, and elect a leader where there is none."),
    "publish": ("sidecar.cli.publish", "Publish the lines of a file or of the standard input."),
    "consume": ("sidecar.cli.consume", "Print the records of a stream."),
    "cursor": ("sidecar.cli.cursor", "Show cursors, named positions outside groups; set or forget them."),
    "group": ("sidecar.cli.group", "Show consumer groups, their members and lag; set or forget what they have committed."),
    "service": ("sidecar.cli.service", "Run a replicated service beside a node."),
    "status": ("sidecar.cli.status", "Show nodes, metadata leader and partitions."),
    "top": ("sidecar.cli.top", "Watch the cluster: one word, rates, acks, lag, each node."),
    "dashboard": (
        "sidecar.cli.dashboard",
        "Serve the cluster's web page: state, last minutes, elections; needs no port of a node.",
    ),
    "events": ("sidecar.cli.events", "Show what happened in the cluster, and who asked for what."),
    "health": ("sidecar.cli.health", "Say whether a node, or the cluster, is live, ready, caught up; for probes and people."),
    "settings": ("sidecar.cli.settings", "Show a node's settings, and have it read them again while it runs."),
    "log-level": ("sidecar.cli.log_level", "Have a node log more, or less, for a time."),
    "node": (
        "sidecar.cli.node",
        "Drain a node, ask whether it may stop, remove one that is gone for good; say its weight and rack.",
    ),
    "rebalance": ("sidecar.cli.rebalance", "Move replicas or leaderships so that every node holds its share."),
    "controllers": ("sidecar.cli.controllers", "Show the metadata group; add, remove and replace its members."),
    "upgrade": ("sidecar.cli.upgrade", "Check a rolling upgrade, finalize it, say what it has brought."),
    "backup": ("sidecar.cli.backup", "Take backups, list, verify and prune them, restore one, try that out."),
    "permissions": ("sidecar.cli.permissions", "Print the permissions that a NATS user needs."),
    "log": ("sidecar.cli.log", "Look into a partition's folder: dump, verify, repair."),
    "spark": ("sidecar.cli.spark", "Pipelines on Spark: archive streams into tables, audit replicas, measure."),
    "bench": ("sidecar.cli.bench", "Measure liftpy beside JetStream on this machine."),
    "demo": ("sidecar.cli.demo", "Show the whole way once: publish, replicate, read back, compute."),
}
"""Command -> module that holds a click command of the same name, and its line in ``liftpy --help``."""


class TextType(click.types.StringParamType):
    """Text that a user gives. What can't be UTF-8 is rejected here, once for all commands."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = super().convert(value, param, ctx)
        if isinstance(text, str) and not is_utf8(text):
            self.fail(f"{text!r} is not UTF-8 text", param, ctx)
        return text


TEXT = TextType()


def check_texts(command: click.Command) -> click.Command:
    """Have each option and argument of text of ``command``, and of its subcommands, checked as TEXT."""
    for param in command.params:
        if type(param.type) is click.types.StringParamType:
            param.type = TEXT
    for one in command.commands.values() if isinstance(command, click.Group) else ():
        check_texts(one)
    return command


class LazyGroup(click.Group):
    """A group that knows its commands' names and imports each only when it is called. ``rows``: as COMMANDS."""

    def __init__(self, *args: Any, rows: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rows = rows

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the rows."""
        return list(self._rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imported now."""
        if cmd_name not in self._rows:
            return None
        command = getattr(importlib.import_module(self._rows[cmd_name][0]), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return check_texts(command)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; when nobody reads what it writes (``| head``) that is its end and no failure."""
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
            return code
        except (BrokenPipeError, SystemExit) as error:  # caught here, because click and rich themselves would end with 1
            if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
                raise
            nobody_reads()
            return 0

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """With the lines of the rows: no command is imported for that."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._rows.items()])


@click.group(cls=LazyGroup, rows=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="liftpy", message="%(prog)s %(version)s")
def liftpy() -> None:
    """Durable, replicated, replayable streams on top of plain NATS."""


def exit_code(error: LiftError) -> int:
    """The exit code that says whose fault it is: 2 the caller's, 3 nobody answered (retry), 1 anything else."""
    if isinstance(error, ConfigError):
        return EXIT_USAGE
    return EXIT_UNAVAILABLE if isinstance(error, UnavailableError) else EXIT_FAILED


def stop_signals() -> list[signal.Signals]:
    """Return the signals that end a command as Ctrl-C does: SIGTERM, and SIGHUP unless the parent ignores it (``nohup``)."""
    return [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def _ended_by_signals() -> Iterator[list[int]]:
    """Let the first of ``stop_signals`` end the command in this block as Ctrl-C does. Yields the signals that came.

    Later ones change nothing: a closed terminal sends SIGHUP twice, and what a command does at its end is bounded. A command may set
    handlers of its own.
    """
    came: list[int] = []

    def end(number: int, _: object) -> None:
        came.append(number)
        session = sys.modules.get("sidecar.cli.session")  # imported by commands that use it
        if len(came) == 1 and not (session is not None and session.cancel_running()):
            raise KeyboardInterrupt

    before = {}
    try:
        for number in stop_signals():
            before[number] = signal.signal(number, end)
    except ValueError:  # only the main thread gets signals
        pass
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; always leaves by SystemExit."""
    atexit.register(gc.freeze)  # to look for garbage in all modules at the end takes a quarter of the time of a short command
    with _ended_by_signals() as came:
        try:
            _run(sys.argv[1:] if arguments is None else arguments)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(SIGNALED + came[0] if came else EXIT_INTERRUPTED)


def _run(given: list[str]) -> None:
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    try:
        code = liftpy.main(args=given, prog_name="liftpy", standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and (text := new_name(error)):
            error = click.UsageError(text, error.ctx)
        error.show()
        sys.exit(error.exit_code)
    except LiftError as error:
        _show(error, as_json="--json" in given)
        sys.exit(exit_code(error))
    except OSError as error:  # of a file that the user has named; sockets and our own files have errors of their own
        if error.filename is None:
            raise
        _show(ConfigError(f"{error.filename}: {error.strerror}"), as_json="--json" in given)
        sys.exit(EXIT_USAGE)
    sys.exit(code if isinstance(code, int) else 0)


def new_name(error: click.UsageError) -> str:
    """Return what the command or the option of ``error`` is called now, if the user gave an old name; else ''."""
    path = "" if error.ctx is None else error.ctx.command_path.partition(" ")[2]
    if isinstance(error, click.NoSuchOption):
        new = renamed.OPTIONS.get(f"{path} {error.option_name}".strip())
        return f"the option {error.option_name} is now called {new}" if new else ""
    found = re.match(r"No such command '([^']+)'", error.message)
    old = f"{path} {found[1]}".strip() if found else ""
    return f"the command liftpy {old} is now called liftpy {renamed.COMMANDS[old]}" if old in renamed.COMMANDS else ""


def _show(error: LiftError, *, as_json: bool) -> None:
    if as_json:
        text = json.dumps({"error": {"code": error.code, "detail": str(error), "retryable": error.retryable}})
    else:
        text = f"Error: {error}" + (" (try again)" if error.retryable else "")
    click.echo(text, err=True)
