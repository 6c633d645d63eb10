"""``liftpy top``: the cluster at a glance, once a second, in a terminal; over NATS, with the role ``status``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from liftpy.client import Client
from liftpy.errors import LiftError, UnavailableError
from liftpy.glance import Glance
from liftpy.watching import Model, Watching
from sidecar.cli.options import connection_options, json_option
from sidecar.cli.pipes import reader_gone
from sidecar.cli.session import with_client
from sidecar.cli.top_render import SORTS, View, pressed, render, rows_of
from sidecar.settings import Target
from sidecar.tasks import attended

EVERY_S = 1.0
_TIMEOUT_S = 0.9
"""For a node's glance: a node that is slower is shown as silent for that second."""
_ARROWS = {"\x1b[A": "k", "\x1b[B": "j", "\x1bOA": "k", "\x1bOB": "j"}


@click.command()
@click.option("--sort", type=click.Choice(SORTS), default="rate", show_default=True, help="What comes first.")
@click.option("--once", is_flag=True, help="Print one frame, of two looks a second apart, and end.")
@json_option
@connection_options
def top(sort: str, once: bool, as_json: bool, target: Target) -> None:
    """Show the cluster at a glance, once a second: one word, rates, acks, lag, each node. With --json one object a line."""
    with_client(
        target,
        lambda client: _watch(client, target.namespace, View(sort=sort), once=once, as_json=as_json),
        needs_majority=False,
    )


async def _watch(client: Client, namespace: str, view: View, *, once: bool, as_json: bool) -> None:
    looking = Looking(client, Watching(namespace))
    await looking.look()
    if not looking.knows_any:
        raise UnavailableError("no node is known: the metadata group does not answer")
    if once or not (as_json or sys.stdout.isatty()):
        await asyncio.sleep(EVERY_S)
        await looking.look()
        _print(looking.watching.model(), view, as_json)
    elif as_json:
        gone = attended(reader_gone(sys.stdout))
        while not gone.done():
            await asyncio.wait((gone,), timeout=EVERY_S)
            await looking.look()
            _print(looking.watching.model(), view, as_json)
    else:
        await _live(looking, view)


class Looking:
    """Asks all known nodes, all at once."""

    def __init__(self, client: Client, watching: Watching, now: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._now = now
        self.watching = watching
        self._named: list[str] = []
        """By the metadata leader, at the start."""

    @property
    def knows_any(self) -> bool:
        """Whether there is a node to ask."""
        return bool(self.watching.nodes(self._named))

    async def look(self) -> None:
        """Once."""
        if not self.knows_any:
            with suppress(LiftError):
                self._named = await self._client.node_ids()
        nodes = self.watching.nodes(self._named)
        said = await asyncio.gather(*map(self._ask, nodes))
        self.watching.put(self._now(), dict(zip(nodes, said, strict=True)))

    async def _ask(self, node: str) -> Glance | None:
        try:
            return await self._client.node_glance(node, _TIMEOUT_S)
        except LiftError:
            return None


def _print(model: Model, view: View, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(as_object(model)))
        return
    console = Console()
    console.print(render(model, console.width, len(model.rows) + 12, view))


def as_object(model: Model) -> dict[str, Any]:
    """What ``--json`` says of it: without what a second has no room for."""
    found = asdict(model)
    del found["history_in"], found["history_out"]
    for row in found["rows"]:
        del row["history"]
    found["verdict"]["reasons"] = [reason._asdict() for reason in model.verdict.reasons]
    return found


async def _live(looking: Looking, view: View) -> None:
    """Until q is pressed, or the terminal is gone."""
    changed = asyncio.Event()

    def show(live: Live) -> None:
        model = looking.watching.model()
        live.update(render(model, live.console.width, live.console.height, view), refresh=True)

    def key(text: str) -> None:
        nonlocal view
        view = pressed(view, text, len(rows_of(looking.watching.model(), view)))
        changed.set()

    with keys(key), Live(console=Console(), screen=True, auto_refresh=False) as live:
        due = time.monotonic()
        while not view.ended:
            show(live)
            changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), max(0.0, due + EVERY_S - time.monotonic()))
            if not changed.is_set():
                due = time.monotonic()
                await looking.look()


@contextmanager
def keys(pressed_key: Callable[[str], None]) -> Iterator[None]:
    """Have each key that is pressed told, while this lasts. The end of the input is q."""
    loop, where = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(where) if os.isatty(where) else None

    def read() -> None:
        text = os.read(where, 1024).decode("utf-8", "ignore")
        for sequence, letter in _ARROWS.items():
            text = text.replace(sequence, letter)
        for one in text or "q":
            pressed_key(one)

    if before is not None:
        tty.setcbreak(where)
    loop.add_reader(where, read)
    try:
        yield
    finally:
        loop.remove_reader(where)
        if before is not None:
            termios.tcsetattr(where, termios.TCSADRAIN, before)
