"""Checks what operators see at the end of a history: health and status of each node, lags of groups, and events."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from liftpy.client import Client
from liftpy.core.wire.subjects import EVENTS_STREAM
from liftpy.errors import LiftError
from tests.simulation.world.checks.controllers import wrong_group
from tests.simulation.world.checks.figures import metrics_of
from tests.simulation.world.checks.pages import wrong_pages
from tests.simulation.world.load.clients import Model
from tests.simulation.world.load.groups import GROUP, GROUP_STREAM, QUEUE, QUEUE_GROUP
from tests.simulation.world.node_process import NodeProcess
from tests.simulation.world.world import World

_WITHIN_S = 90.0
"""Time within which the reports have to be right, in seconds. A node that a full disk has stopped restarts after 60 s."""
_MOST_SHOWN = 5
_UNREAD = 3
"""Number of records that the group has not read at the end."""


async def check_reports(world: World, model: Model, streams: list[tuple[str, str, int]]) -> None:
    """Check what the nodes of a quiet cluster report to operators."""
    async with world.connect() as client:
        for node in world.nodes:
            await _becomes_right(world, f"the status of {node.name}", partial(_status, client, node.name, streams))
            await _becomes_right(world, f"the settings of {node.name}", partial(_settings, client, node))
        await _becomes_right(world, "the metadata group", partial(_group, world, client))
        if world.profile.groups:
            wanted = await _publish_unread(client)
            await _becomes_right(world, "the lags of the groups", lambda: _lags(world, client, wanted))
        if world.has_events_stream:
            await _becomes_right(world, "the events", lambda: _events(client, model, may_have_gaps=world.has_small_snapshots))


async def _becomes_right(world: World, what: str, check: Callable[[], Awaitable[str]]) -> None:
    """Repeat ``check``, which returns what is wrong, until it returns ''."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _WITHIN_S
    while wrong := await _wrong(check):
        if loop.time() >= end_s:
            world.scheduler.violated(f"{what} after {_WITHIN_S:g} s in a quiet cluster: {wrong}")
            return
        await asyncio.sleep(0.5)


async def _wrong(check: Callable[[], Awaitable[str]]) -> str:
    try:
        return await check()
    except LiftError as error:
        return repr(error)


async def _status(client: Client, node: str, streams: list[tuple[str, str, int]]) -> str:
    health = await client.admin.node_health(node)
    if not all(health["health"].values()):
        return f"{health}"
    status = await client.admin.node_status(node)
    if failed := {name: count for name, count in status["counters"].items() if "failed request" in name}:
        return f"requests have failed: {failed}"
    controllers = status["controllers"]
    if controllers["learner"] or controllers["leaving"] or status["controller"] != (node in controllers["voters"]):
        return f"controller: {status['controller']}, of {controllers}"
    if status["failed_partitions"] or not status["nats"]["connected"] or not status["metadata_leader"]:
        return f"{status['failed_partitions']} {status['nats']} {status['metadata_leader']!r}"
    rows = {(row["stream"], row["partition"]): row for row in status["partitions"]}
    for name, _, _ in streams:
        for partition in (await client.admin.stream(name)).partitions:
            row, bounds = rows.get((name, partition.partition)), await client.bounds(name, partition.partition)
            if (row is not None) != (node in partition.replicas):
                return f"{name}/{partition.partition} has the replicas {partition.replicas}, and is here {row}"
            if row is not None and (row["leader"], row["high_watermark"]) != (partition.leader, bounds.high_watermark):
                return f"{name}/{partition.partition} is {partition} {bounds}, and is here {row}"
    return ", ".join(wrong_pages(status, await metrics_of(client, node))[:_MOST_SHOWN])


async def _group(world: World, client: Client) -> str:
    return ", ".join((await wrong_group(world, client))[:_MOST_SHOWN])


async def _settings(client: Client, node: NodeProcess) -> str:
    """Return which settings of the file the node does not use."""
    rows = {row["name"]: row for row in await client.admin.node_settings(node.name)}
    wanted = {
        "scrub_bytes_per_s": node.settings.scrub_bytes_per_s,
        "replication.copy_bytes_per_s": node.settings.replication.copy_bytes_per_s,
        "replication.preferred_leader_interval_s": node.settings.replication.preferred_leader_interval_s,
    }
    wrong = {name: (rows[name], value) for name, value in wanted.items() if rows[name]["value"] != value}
    return f"(setting, value in the file) {wrong}" if wrong else ""


async def _publish_unread(client: Client) -> list[tuple[str, int, str]]:
    """Publish records that the group has not read, and return (group, lag, stream) of the group and of the queue.

    A group without a position in a partition has no lag there, so a stream without records counts for nothing.
    """
    wanted = []
    for name, lag, stream in ((GROUP, _UNREAD, GROUP_STREAM), (QUEUE_GROUP, 0, QUEUE)):
        for partition in range(len((await client.admin.stream(stream)).partitions)):
            if (await client.bounds(stream, partition)).high_watermark >= 0:
                for _ in range(lag):
                    await client.publish(stream, b"unread", partition=partition)
                wanted.append((name, lag, stream))
                break
    return wanted


async def _lags(world: World, client: Client, wanted: list[tuple[str, int, str]]) -> str:
    found: dict[str, list[dict[str, Any]]] = {}
    for node in world.nodes:
        answer = await client.admin.ask_node(node.name, b'{"groups": {}}')
        for row in answer["groups"]["rows"]:
            found.setdefault(row["group"], []).append(row)
    for name, lag, streams in wanted:
        rows = [(row["lag_records"], row["unknown"], row["streams"]) for row in found.get(name, [])]
        if rows != [(lag, 0, streams)]:
            return f"(lag, unknown, streams) of {name} is {rows}, and should be {lag}"
    return ""


async def _events(client: Client, model: Model, *, may_have_gaps: bool) -> str:
    """Return what is wrong with the stream of events: each acknowledged request is there once, and places rise.

    ``may_have_gaps``: the controllers write snapshots so often that a restart of all of them may lose events.
    """
    bounds = await client.bounds(EVENTS_STREAM)
    events: list[dict[str, Any]] = []
    async for part in client.read_range(EVENTS_STREAM, 0, bounds.log_start_offset, bounds.high_watermark + 1):
        events += [json.loads(value) for value in part.values() if value]
    places = [(event["index"], event["number"]) for event in events]
    if places != sorted(set(places)):
        return f"places do not rise: {places[-20:]}"
    # The first raise of the feature level writes a snapshot. If then all controllers restart, nobody knows the events before it.
    if gaps := [event for event in events if event["kind"] == "gap" and event["was"] != "0.-1"]:
        return "" if may_have_gaps else f"events were lost: {gaps}"
    seen = Counter(
        (event["request"], event.get("stream", ""))
        for event in events
        if event["kind"] == "request" and event["outcome"] == "done"
    )
    # If all nodes restart before the stream of events exists, its first event is a gap of all that only their memory held.
    forgotten = int(events[0]["now"].split(".")[0]) if events and events[0]["kind"] == "gap" else -1
    if missing := [done for done, before in model.requests_done.items() if before > forgotten and not seen[done]]:
        return f"no event of {missing[:5]}"
    twice = [done for done in model.requests_done if seen[done] > 1]
    return f"two events of {twice[:5]}" if twice else ""
