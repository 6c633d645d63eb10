"""``liftpy service query``: ask a service for its state."""

from __future__ import annotations

import sys

import click

from liftpy.client import Client
from liftpy.client.queries import QueryAnswer
from liftpy.errors import ConfigError
from liftpy.ids import check_name
from sidecar.cli.options import BYTES, connection_options
from sidecar.cli.session import with_client
from sidecar.settings import Target


@click.command()
@click.argument("name")
@click.argument("text", required=False)
@click.option(
    "--partition",
    type=click.IntRange(0),
    help="Ask the instance of this partition.  [default: the only one; a service with several needs --partition or --key]",
)
@click.option("--key", type=BYTES, metavar="TEXT", help="Ask the instance that has the records of this key.")
@click.option(
    "--at-least",
    type=click.IntRange(0),
    metavar="OFFSET",
    help="Take a state that holds every record below OFFSET (0: any).  [default: every record that is committed now]",
)
@click.option("--position", "shows_position", is_flag=True, help="Say on stderr how far the state was, and on which node.")
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
    """Ask the service NAME; TEXT is the query, stdin's bytes where it is left out. Prints the answer's bytes."""
    check_name(name, "service")
    if partition is not None and key is not None:
        raise ConfigError("name --partition or --key, not both")
    body = sys.stdin.buffer.read() if text is None else text.encode()

    async def work(client: Client) -> QueryAnswer:
        return await client.query_service(name, body, partition=partition, key=key, at_least=at_least)

    answer = with_client(target, work, needs_majority=False)
    sys.stdout.buffer.write(answer.value + (b"" if answer.value.endswith(b"\n") else b"\n"))
    if shows_position:
        click.echo(f"position {answer.position} on {answer.node}", err=True)
