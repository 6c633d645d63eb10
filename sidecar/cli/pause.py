"""``liftpy stream pause`` and ``resume``: partitions that take no publishes for a while."""

from __future__ import annotations

import json

import click

from liftpy.client import Client
from liftpy.cluster.image import StreamImage
from sidecar.cli.options import connection_options, internal_option, json_option
from sidecar.cli.session import with_client
from sidecar.settings import Target

_PARTITIONS = click.option(
    "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only this one; may be repeated.  [default: all]"
)


@click.command()
@click.argument("name")
@_PARTITIONS
@click.option("--resume-on-publish", is_flag=True, help="Until somebody publishes: that is stored, and resumes its partition.")
@click.option("--resume-all", is_flag=True, help="The same, and a publish to one partition resumes all that are paused so.")
@json_option
@connection_options
@internal_option
def pause(
    name: str, partitions: tuple[int, ...], resume_on_publish: bool, resume_all: bool, as_json: bool, target: Target
) -> None:
    """Have stream NAME take no publishes until it is resumed. Who waits for an answer is refused (PAUSED), plain messages are dropped
    and counted; what was taken before is committed and acknowledged, and reading goes on."""

    async def work(client: Client) -> StreamImage:
        return await client.pause(
            name, partitions or None, resume_on_publish=resume_on_publish or resume_all, resume_all=resume_all
        )

    _show(with_client(target, work), partitions, as_json)


@click.command()
@click.argument("name")
@_PARTITIONS
@json_option
@connection_options
@internal_option
def resume(name: str, partitions: tuple[int, ...], as_json: bool, target: Target) -> None:
    """Have stream NAME take publishes again."""
    _show(with_client(target, lambda client: client.resume(name, partitions or None)), partitions, as_json)


def _show(image: StreamImage, partitions: tuple[int, ...], as_json: bool) -> None:
    about = [p for p in image.partitions if not partitions or p.partition in partitions]
    if as_json:
        found = [{"partition": p.partition, "paused": p.pause.words} for p in about]
        click.echo(json.dumps({"stream": image.name, "uid": image.uid, "partitions": found}))
        return
    for p in about:
        state = f"is paused {p.pause.words}" if p.pause.takes_nothing else "takes publishes"
        click.echo(f"{image.name}/{p.partition} {state}")
