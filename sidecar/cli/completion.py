"""``liftpy completion``: scripts that let a shell complete commands, options and names, and the man page."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from liftpy import __version__
from liftpy.client import Client, connect
from liftpy.core.base.ids import check_name, is_internal
from sidecar.cli.help import SHARED_OPTIONS, HelpCommand, options_before
from sidecar.cli.main import TextType
from sidecar.cli.node_reports import ask_nodes
from sidecar.cli.options import target_of

SHELLS = ("bash", "zsh", "fish")
WAIT_S = 1.0
"""Maximum time that shell completion waits for the names in a cluster, in seconds."""
MAX_NAMES = 1000
"""Maximum number of names that shell completion offers."""


@click.command(
    cls=HelpCommand,
    example="""
    liftpy completion bash > ~/.local/share/bash-completion/completions/liftpy
    liftpy completion zsh > ~/.zfunc/_liftpy
    liftpy completion fish > ~/.config/fish/completions/liftpy.fish
    liftpy completion man > liftpy.1
    """,
)
@click.argument("shell", type=click.Choice((*SHELLS, "man")))
def completion(shell: str) -> None:
    """Print the completion script of SHELL, or the man page.

    The script completes commands, options, and the names of streams, groups, cursors, services, nodes and contexts. For names it asks
    the cluster that the options, the environment or the context names, for at most a second.
    """
    root = click.get_current_context().find_root().command
    if shell == "man":
        click.echo("\n".join(man_page(root)))
        return
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root, {}, "liftpy", "_LIFTPY_COMPLETE").source())


async def _names(client: Client, kind: str) -> list[str]:
    if kind == "stream":
        return [one.name for one in await client.admin.list_streams(internal=True)]
    if kind == "group":
        return [one.name for one in await client.groups.list()]
    if kind == "cursor":
        return await client.cursors.list()
    image = (await client.admin.describe_cluster()).image
    if kind == "service":
        return await _services(client, [node for node in sorted(image.nodes) if image.is_live(node)])
    return sorted(image.nodes)


async def _services(client: Client, nodes: list[str]) -> list[str]:
    reports = await ask_nodes(client, nodes)
    partitions = [partition for report in reports.values() for partition in report.values()]
    partitions = [partition for partition in partitions if not is_internal(str(partition.get("stream", "")))]
    return sorted({str(one["service"]) for key in ("services", "gone_services") for p in partitions for one in p.get(key, ())})


def names_of_cluster(ctx: click.Context, kind: str, incomplete: str) -> list[CompletionItem]:
    """Return the names of the given ``kind`` that begin with ``incomplete``, for shell completion.

    ``kind``: "stream", "group", "cursor", "service" or "node". After an error the result is empty, because a shell shows no
    errors here.
    """
    options: dict[str, Any] = {**options_before(ctx), **{key: ctx.params[key] for key in SHARED_OPTIONS if ctx.params.get(key)}}

    async def ask() -> list[str]:
        target = target_of(options)
        async with asyncio.timeout(WAIT_S):
            async with await connect(
                target.nats, target.namespace, credentials=target.credentials, name="liftpy-completion", timeout_s=WAIT_S
            ) as client:
                return await _names(client, kind)

    try:
        matches = asyncio.run(ask())
    except Exception:
        return []
    return [CompletionItem(name) for name in matches if name.startswith(incomplete)][:MAX_NAMES]


class ClusterName(TextType):
    """Type of an argument that is the name of a stream, group, cursor, service or node. A shell can complete it.

    Args:
        kind: "stream", "group", "cursor", "service" or "node".
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return names_of_cluster(ctx, self._kind, incomplete)


class NodeId(ClusterName):
    """Type of an argument that is the id of one node. An id that is not valid is rejected before the command runs."""

    def __init__(self) -> None:
        super().__init__("node")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return check_name(str(super().convert(value, param, ctx)), "node")


NODE_ID = NodeId()
node_argument = click.argument("node_id", metavar="NODE", type=NODE_ID)
STREAM, GROUP, CURSOR, NODE = ClusterName("stream"), ClusterName("group"), ClusterName("cursor"), ClusterName("node")
SERVICE = ClusterName("service")


def man_page(root: click.Command) -> Iterator[str]:
    """Yield the lines of the man page of ``root`` and all its commands (troff, macros ``man``)."""
    first_line = (root.help or "").strip().splitlines()[0]
    yield f'.TH LIFTPY 1 "{datetime.date.today():%Y-%m-%d}" "liftpy {__version__}" "User Commands"'
    yield ".SH NAME"
    yield f"liftpy \\- {_escape(first_line)}"
    yield ".SH COMMANDS"
    for path, command in _walk((str(root.name),), root):
        yield f".SS {_escape(' '.join(path))}"
        yield ".nf"
        with click.Context(
            command, info_name=" ".join(path), terminal_width=78, max_content_width=78, **root.context_settings
        ) as ctx:
            yield from (_escape(line) for line in command.get_help(ctx).splitlines())
        yield ".fi"


def _walk(path: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            if below is not None:
                yield from _walk((*path, name), below)


def _escape(line: str) -> str:
    """Return ``line`` so that troff prints it literally: backslashes and leading dots and apostrophes are escaped."""
    text = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
