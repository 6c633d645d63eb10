"""``liftpy service call``: send a command to a service, and print what it replies."""

from __future__ import annotations

import sys

import click

from liftpy.client import Client
from liftpy.client.calling import CommandAnswer
from liftpy.ids import check_name
from sidecar.cli.options import BYTES, connection_options
from sidecar.cli.session import with_client
from sidecar.settings import Target


@click.command()
@click.argument("name")
@click.argument("text", required=False)
@click.option("--stream", required=True, help="The stream that the service reads: the command becomes a record of it.")
@click.option("--partition", type=click.IntRange(0), help="Which partition of it.  [default: that of --key, 0 without one]")
@click.option("--key", type=BYTES, default=None, help="Of the record.")
@click.option(
    "--id", "message_id", default="", metavar="ID", help="Message id: sent twice it has one effect.  [default: a random one]"
)
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0.1, 3600), default=5.0, show_default=True, help="Seconds to wait."
)
@click.option("--offset", "shows_offset", is_flag=True, help="Say on stderr which record it became, and which node answered.")
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
    """Send the command TEXT (stdin's bytes where it is left out) to the service NAME; prints the bytes of its reply.

    Without an answer it is sent again under the same message id; a service that replies carries it out once.
    """
    check_name(name, "service")
    body = sys.stdin.buffer.read() if text is None else text.encode()

    async def work(client: Client) -> CommandAnswer:
        return await client.call_service(
            name,
            stream,
            body,
            partition=partition,
            key=key,
            message_id=message_id,
            timeout_s=timeout_s,
        )

    answer = with_client(target, work, needs_majority=False)
    sys.stdout.buffer.write(answer.value + (b"" if answer.value.endswith(b"\n") else b"\n"))
    if shows_offset:
        click.echo(f"offset {answer.offset}, answered by {answer.node}", err=True)
