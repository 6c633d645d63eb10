"""Format of ``--help``: an example for each command, a section for connection options, and the nearest name after a typo."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import click

from liftpy.errors import LiftError

F = TypeVar("F", bound=Callable[..., Any])


class ConnectionOption(click.Option):
    """Option that says how to reach the cluster. The help lists it in a section of its own."""


class SharedOption(ConnectionOption):
    """Connection option of every command that uses a cluster. It is also allowed before the command."""


SHARED_OPTIONS = {
    "nats": ("--nats", "URL", "NATS server, or several servers separated by commas.  [default: nats://127.0.0.1:4222]"),
    "context": ("--context", "NAME", "Context to use. `liftpy context add` makes one.  [default: the selected one]"),
    "namespace": ("--namespace", "NS", "Namespace of the cluster.  [default: liftpy]"),
    "creds_file": ("--creds", "FILE", "File with a NATS JWT and its nkey seed."),
    "nkey_seed_file": ("--nkey", "FILE", "File with a NATS nkey seed."),
    "user": ("--user", "NAME", "NATS user. Set the password in LIFTPY_PASSWORD."),
    "tls_ca_file": ("--tls-ca", "FILE", "Trusted CA certificates (PEM file)."),
    "tls_cert_file": ("--tls-cert", "FILE", "Client certificate (PEM file)."),
    "tls_key_file": ("--tls-key", "FILE", "Private key of the client certificate (PEM file)."),
    "inbox_prefix": (
        "--inbox-prefix",
        "NAME",
        "Subject prefix for replies that the NATS permissions of this user allow.  [default: _INBOX]",
    ),
    "principal": (
        "--principal",
        "NAME",
        "Name recorded with your changes. It must be the principal that the NATS permissions of this user allow.",
    ),
}
"""Name -> option, kind of its value, help. An environment variable LIFTPY_<NAME> gives the value, too."""


def shared_option(name: str) -> Callable[[F], F]:
    """Return the click option for the row ``name`` of SHARED_OPTIONS, as a decorator of a command or group."""
    flag, metavar, text = SHARED_OPTIONS[name]
    head, mark, default = text.partition("  [")
    text = f"{head}  [{default.removesuffix(']') + '; ' if mark else ''}env: LIFTPY_{name.upper()}]"
    complete = complete_context if name == "context" else None
    return click.option(flag, name, cls=SharedOption, default=None, metavar=metavar, help=text, shell_complete=complete)


def complete_context(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of contexts that begin with ``incomplete``, for shell completion. After an error there are none."""
    from sidecar.runtime.contexts import Contexts  # late: only a shell's completion needs it
    from sidecar.runtime.settings import contexts_file

    path = contexts_file()
    try:
        names = Contexts.load(path).values if path is not None else {}
    except LiftError:
        return []
    return [name for name in sorted(names) if name.startswith(incomplete)]


def options_before(ctx: click.Context | None) -> dict[str, str]:
    """Return the values of shared options that the user wrote before the command, by name."""
    before = None if ctx is None else ctx.find_root().obj
    return dict(before) if isinstance(before, dict) else {}


class HelpCommand(click.Command):
    """A command with an example.

    Args:
        example: Command lines that can be run as they are, one per line.
    """

    def __init__(self, *args: Any, example: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.example = inspect.cleandoc(example)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self._write(formatter, "Options", self._records(ctx, lambda param: not isinstance(param, ConnectionOption)))
        self._write(
            formatter,
            "Connection options",
            self._records(ctx, lambda param: isinstance(param, ConnectionOption) and not isinstance(param, SharedOption)),
        )
        units = {text for param in self.params if (text := getattr(param.type, "units_text", ""))}
        if units:
            with formatter.section("Units"):
                for text in sorted(units):
                    formatter.write_text(text)
        if any(isinstance(param, SharedOption) for param in self.params):
            with formatter.section("Connection options"):
                formatter.write_text("--nats, --context, --namespace, --creds and more. 'liftpy --help' describes them.")

    def _records(self, ctx: click.Context, is_wanted: Callable[[click.Parameter], bool]) -> list[tuple[str, str]]:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option) and is_wanted(param)]
        return [row for row in (param.get_help_record(ctx) for param in options) if row is not None]

    @staticmethod
    def _write(formatter: click.HelpFormatter, title: str, rows: list[tuple[str, str]]) -> None:
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. It is a usage error if a connection option is given to a command that contacts no cluster."""
        if not isinstance(self, click.Group):
            known = {param.name for param in self.params if isinstance(param, SharedOption)}
            for name in options_before(ctx):
                if name not in known:
                    flag = SHARED_OPTIONS[name][0]
                    own = any(param.name == name for param in self.params)
                    raise click.UsageError(
                        f"Put {flag} after '{ctx.command_path}'." if own else f"'{ctx.command_path}' has no option {flag}.", ctx
                    )
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.example:
            lines = self.example.splitlines()
            with formatter.section("Example" if len(lines) == 1 else "Examples"):
                for line in lines:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        super().format_epilog(ctx, formatter)


class HelpGroup(HelpCommand, click.Group):
    """A command group with the help format of this module. After a typo, the error names the nearest command."""

    command_class = HelpCommand

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self._write(formatter, "Options", self._records(ctx, lambda param: not isinstance(param, ConnectionOption)))
        self.format_commands(ctx, formatter)
        shared = self._records(ctx, lambda param: isinstance(param, SharedOption))
        self._write(formatter, "Connection options (before or after the command)", shared)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = str(args[0])
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            names = self.list_commands(ctx)
            near = difflib.get_close_matches(name, names, n=1) or [one for one in names if one.startswith(name)][:1]
            hint = f"Did you mean '{ctx.command_path} {near[0]}'?" if near else f"Commands: {', '.join(names)}."
            ctx.fail(f"No such command '{name}'. {hint}")
        return super().resolve_command(ctx, args)
