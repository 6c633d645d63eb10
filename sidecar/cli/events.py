"""``liftpy events``: print events of the cluster that the controllers keep in memory. It needs the role ``operator``.

The events are equal on every controller. So the command can continue at another controller without printing an event twice.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import click

from liftpy.client import Client
from liftpy.config import NS_PER_S
from liftpy.core.base.strict_json import load_json
from liftpy.core.metadata.controller.cluster_events import event_text
from liftpy.core.observe.node_events import checked_events
from liftpy.core.observe.timeline import SKEW_NS
from liftpy.core.wire.subjects import EVENTS_STREAM
from liftpy.errors import LiftError, NotAllowedError, UnavailableError
from sidecar.cli.help import HelpCommand
from sidecar.cli.options import Duration, connection_options, json_option
from sidecar.cli.output import print_json, wait_for_closed_pipe
from sidecar.cli.session import with_client
from sidecar.runtime.settings import Target
from sidecar.runtime.tasks import start_attended

_TIMEOUT_S = 2.0
POLL_S = 1.0


@click.command(cls=HelpCommand, example="liftpy events --since 24h --follow")
@click.option("--since", "since_s", type=Duration(), default="1h", show_default=True, help="Maximum age of the events.")
@click.option("--follow", is_flag=True, help="Wait for new events until Ctrl-C.")
@json_option
@connection_options
def events(since_s: float, follow: bool, as_json: bool, target: Target) -> None:
    """Show elections, ISR changes, node starts and stops, and requests with their principal. With --json, print one object per line.

    If the setting events_stream is on, the stream _liftpy-events keeps events for 30 days. Otherwise the controllers keep the newest
    10,000 events in memory. The first line of the output says so if --since reaches further back.
    """
    since_ns = max(0, time.time_ns() - round(since_s * NS_PER_S))

    async def work(client: Client) -> None:
        pipe_closed = start_attended(wait_for_closed_pipe(sys.stdout))
        async for page in EventPages(client).pages(since_ns, follow=follow):
            _show(page, as_json)
            if pipe_closed.done():
                return

    with_client(target, work, needs_majority=not follow)


class EventPages:
    """Reads the cluster events in pages. If a controller does not answer, it asks the next one."""

    def __init__(self, client: Client, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._client = client
        self._sleep = sleep
        self._place = (0, -1)
        self._known_index = 0
        """Index of the metadata log up to which all events were read, or reported as missing."""
        self._numbers: dict[str, int] = {}
        """Node id -> number of the last event that was read from this node."""
        self._of_nodes: list[dict[str, Any]] = []
        """Events of single nodes that are not in a page yet."""

    async def pages(self, since_ns: int, *, follow: bool) -> AsyncIterator[dict[str, Any]]:
        """Yield pages of events since the wall-clock time ``since_ns``, oldest first.

        ``follow``: True to wait for new events forever. The first page has ``begins`` if older events are not in memory.
        """
        first = True
        self._of_nodes = await self._node_events(since_ns)
        async for page in self._stored_pages(since_ns):
            first = False
            yield self._merged(page)
        while True:
            try:
                page = await self._page(since_ns)
            except UnavailableError:
                if first or not follow:
                    raise
                page = {"events": [], "more": False, "begins": 0, "begins_ns": 0, "index": 0}  # no controller leads now: retry
            page["gap"] = page["begins_ns"] > since_ns if first else page["begins"] > max(self._place[0], self._known_index)
            if page["events"]:
                last = page["events"][-1]
                self._place = (last["index"], last["number"])
            self._known_index = max(self._known_index, page["begins"], 0 if page["more"] else page["index"])
            first = False
            if not page["more"] and follow:
                self._of_nodes += await self._node_events(since_ns)
            yield self._merged(page)
            if not page["more"]:
                if not follow:
                    return
                await self._sleep(POLL_S)

    def _merged(self, page: dict[str, Any]) -> dict[str, Any]:
        """Return the page ``page`` with the events of single nodes up to the time of its last event, sorted by time.

        If no page follows, all remaining events of single nodes are added.
        """
        events = page["events"]
        until = _place(events[-1]) if events else (0, -1)
        due = [one for one in self._of_nodes if not page["more"] or _place(one) <= until]
        self._of_nodes = [one for one in self._of_nodes if one not in due]
        return {**page, "events": sorted([*events, *due], key=_place)} if due else page

    async def _node_events(self, since_ns: int) -> list[dict[str, Any]]:
        async def ask(node: str) -> list[dict[str, Any]]:
            try:
                answer = await self._client.admin.node_events(node, self._numbers.get(node, -1), since_ns, _TIMEOUT_S)
            except LiftError:
                return []
            events = checked_events(answer.get("node_events"))
            if events:
                self._numbers[node] = events[-1]["number"]
            return events

        try:
            nodes = await self._client.admin.node_ids()
        except LiftError:
            return []
        return [event for events in await asyncio.gather(*map(ask, nodes)) for event in events]

    async def _stored_pages(self, since_ns: int) -> AsyncIterator[dict[str, Any]]:
        """Yield pages from the stream of events if that stream is readable. Newer events are in the memory of the controllers."""
        client = self._client
        try:
            bounds = await client.bounds(EVENTS_STREAM)
            start = max(await client.offset_at(EVENTS_STREAM, 0, max(0, since_ns - SKEW_NS)), bounds.log_start_offset)
            async for part in client.read_range(EVENTS_STREAM, 0, start, bounds.high_watermark + 1, uid=bounds.uid, exact=True):
                stored_events = [load_json(value) for value in part.values() if value]
                if stored_events:
                    self._place = (stored_events[-1]["index"], stored_events[-1]["number"])
                events = [event for event in stored_events if event["time_ns"] >= since_ns]
                yield {"events": events, "more": True, "begins": 0, "begins_ns": 0, "index": self._place[0], "gap": False}
        except (LiftError, ValueError, KeyError, TypeError):  # the stream does not exist, or has other records
            return

    async def _page(self, since_ns: int) -> dict[str, Any]:
        why: LiftError | None = None
        for controller in await self._client.admin.controller_ids():
            try:
                page = await self._client.admin.cluster_events(controller, self._place, since_ns, _TIMEOUT_S)
            except NotAllowedError:
                raise
            except LiftError as error:
                why = error
                continue
            if "error" not in page and page["index"] >= self._place[0]:
                return page
        raise UnavailableError(
            f"No controller returned events: {why or 'they have not caught up'}. Check `liftpy controllers`, then retry."
        )


def _place(event: dict[str, Any]) -> tuple[int, int]:
    return event["index"], event["number"]


def _show(page: dict[str, Any], as_json: bool) -> None:
    if page["gap"] and not as_json:
        click.echo(f"(the history up to entry {page['begins']:,} is no longer in memory)")
    elif page["gap"]:
        print_json({"kind": "gap", "up_to_index": page["begins"]})
    for event in page["events"]:
        if as_json:
            print_json(event)
        else:
            click.echo(f"{event['time']}  {event['index']}.{event['number']}  {event_text(event)}")
