"""Format of ``--help``: an example for each command, a section for connection options, the nearest name after a typo."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import click


class ConnectionOption(click.Option):
    """An option that says how to reach the cluster. The help shows it behind the command's own options."""


class HelpCommand(click.Command):
    """A command with an example.

    Args:
        example: Command lines that can be run as they are, one per line.
    """

    def __init__(self, *args: Any, example: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.example = inspect.cleandoc(example)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options first, and connection options in a second section."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Connection options": []}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if row is not None:
                sections["Connection options" if isinstance(param, ConnectionOption) else "Options"].append(row)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example, then the epilog."""
        if self.example:
            lines = self.example.splitlines()
            with formatter.section("Example" if len(lines) == 1 else "Examples"):
                for line in lines:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        super().format_epilog(ctx, formatter)


class HelpGroup(HelpCommand, click.Group):
    """A group of such commands. It names the nearest command after a typo."""

    command_class = HelpCommand

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names.

        Raises:
            click.UsageError: There is no such command.
        """
        name = str(args[0])
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            names = self.list_commands(ctx)
            near = difflib.get_close_matches(name, names, n=1) or [one for one in names if one.startswith(name)][:1]
            hint = f"Did you mean '{ctx.command_path} {near[0]}'?" if near else f"Commands: {', '.join(names)}."
            ctx.fail(f"No such command '{name}'. {hint}")
        return super().resolve_command(ctx, args)
