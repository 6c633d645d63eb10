"""Scripts about the coordinators of groups: nodes that may not coordinate, lost connections, and streams that are deleted."""

from __future__ import annotations

import asyncio
from typing import Any

from liftpy.client.group import GroupOptions
from liftpy.core.wire.subjects import GROUPS_STREAM
from tests.simulation.world.scripts.stage import Stage, script


async def _read(s: Stage, count: int) -> list[int]:
    """Read and commit ``count`` records of ``orders`` in the group ``readers``. Return their offsets."""
    found: list[int] = []
    async with s.client.group("readers", ["orders"], options=GroupOptions(auto_commit_s=0.2)) as group:
        while len(found) < count:
            found.append((await anext(group)).offset)
        await group.commit()
    return found


async def _coordinators(s: Stage, node: str) -> list[dict[str, Any]]:
    return list((await s.status(node))["coordinators"])


@script()
async def script_coordinator_of_groups_cannot_connect(s: Stage) -> None:
    """Given a node whose coordinators cannot connect, they retry with growing pauses, and its status says why they do not run.

    As soon as the connection is possible, they follow their partitions, and the group loses no position.
    """
    await s.create("orders", leader="n2")
    await s.publish("orders", 6)
    s.world.nats.refuse("liftpy-n1-groups")
    s.forget_log()
    reading = asyncio.create_task(_read(s, 4))
    await s.becomes(lambda: s.count_log("n1", "group.coordinator_restarted") >= 3, what="the coordinators have failed")
    await asyncio.sleep(20)
    rows = await _coordinators(s, "n1")
    s.expect([(row["partition"], row["role"]) for row in rows], [(0, ""), (1, ""), (2, "")], "coordinators of n1")
    restarts = [row["restarts"] for row in rows]
    s.expect(all(3 <= count <= 7 for count in restarts), True, f"restarts of each coordinator with growing pauses {restarts}")
    logged = s.count_log("n1", "ERROR group.coordinator_restarted: group coordinator failed partition=* error=*: restarting it")
    s.expect(
        (sum(restarts), await s.counter("n1", "coordinator_restarted")), (logged, logged), "restarts in status and counters"
    )
    for row in rows:
        s.expect_in("connect", row["problem"], "problem in the status")
    s.world.nats.refuse("")

    async def roles() -> list[tuple[str, str]]:
        return [(row["role"] or "none", row["problem"]) for row in await _coordinators(s, "n1")]

    async def is_running() -> bool:
        return all(role in ("LEADER", "FOLLOWER") and not problem for role, problem in await roles())

    await s.shows(is_running, True, within_s=31, what="coordinators of n1 that run")
    s.expect(await reading, list(range(4)), "records of the group")
    s.expect(await _read(s, 2), [4, 5], "next records of the group")


@script(nodes=3, starts=False)
async def script_node_without_the_inbox_prefix_coordinates_no_groups(s: Stage) -> None:
    """Given a node whose settings allow no inboxes of groups, it says so once and coordinates none. The other nodes do."""
    s.allow("refused: invalid reply subject")
    s.change_file("n1", inbox_prefixes=("_INBOX.", "_INBOX_liftpy-jetstream."))
    s.change_file("n2", run_group_coordinators=False)
    await s.start()
    await s.create("orders")
    await s.publish("orders", 3)
    groups = asyncio.create_task(_read(s, 3))
    await asyncio.sleep(2)
    stream = await s.client.admin.stream(GROUPS_STREAM)
    for number in range(len(stream.partitions)):
        await s.client.admin.elect_leader(GROUPS_STREAM, number, "n3")
    s.expect(await groups, [0, 1, 2], "records of the group")
    text = "WARNING group.coordinator_disabled: group coordinators not started missing_inbox_prefix=_INBOX_liftpy-groups.: *"
    s.expect([s.count_log(node, text) for node in s.names], [1, 0, 0], "log lines")
    s.expect([len(await _coordinators(s, node)) for node in s.names], [0, 0, len(stream.partitions)], "coordinators")
    connections = [client.name for server in s.world.nats.servers for client in server.clients.values()]
    s.expect([name for name in connections if name.endswith("-groups")], ["liftpy-n3-groups"], "connections of coordinators")


@script()
async def script_stream_of_a_group_is_deleted(s: Stage) -> None:
    """Given a group with unread records, when its stream is deleted and created again, it reads the new one from its beginning."""
    await s.create("orders", replicas=1)
    await s.publish("orders", 5)
    s.expect(await _read(s, 2), [0, 1], "records of the group")

    async def lags() -> list[tuple[int, int]]:
        found = []
        for node in s.names:
            answer = await s.client.admin.ask_node(node, b'{"groups": {}}')
            found += [(row["lag_records"], row["unknown"]) for row in answer["groups"]["rows"] if row["group"] == "readers"]
        return found

    await s.shows(lags, [(3, 0)], within_s=20, what="lag of the group")
    await s.client.admin.delete_stream("orders")
    await asyncio.sleep(5)
    await s.create("orders", replicas=1)
    await s.publish("orders", 2)
    s.expect(await _read(s, 2), [0, 1], "records of the new stream")
    await s.shows(lags, [(0, 0)], within_s=20, what="lag of the group in the new stream")


@script()
async def script_coordinators_of_all_nodes_know_the_same(s: Stage) -> None:
    """Given groups of several members, all replicas of their coordinators have equal figures, also after a change of the leader."""
    await s.create("orders", partitions=4)
    for partition in range(4):
        await s.publish("orders", 3, partition=partition)
    for name in ("one", "two", "three", "four"):
        async with s.client.group(name, ["orders"], options=GroupOptions(auto_commit_s=0.2)) as group:
            read = 0
            while read < 3:
                await anext(group)
                read += 1
            await group.commit()

    async def different() -> dict[int, set[tuple[Any, ...]]]:
        """Return (position, figures) of the coordinators of each partition that differ."""
        seen: dict[int, set[tuple[Any, ...]]] = {}
        for node in s.names:
            for row in await _coordinators(s, node):
                figures = tuple(row[name] for name in ("position", "groups", "members", "queues"))
                seen.setdefault(row["partition"], set()).add(figures)
        return {partition: figures for partition, figures in seen.items() if len(figures) > 1}

    await s.shows(different, {}, within_s=15, what="different figures of coordinators")
    stream = await s.client.admin.stream(GROUPS_STREAM)
    for state in stream.partitions:
        leader = next(node for node in s.names if node != state.leader)
        await s.client.admin.elect_leader(GROUPS_STREAM, state.partition, leader)
    await asyncio.sleep(3)
    await s.shows(different, {}, within_s=15, what="different figures of coordinators after a change of the leader")
    leading = [row["groups"] for node in s.names for row in await _coordinators(s, node) if row["role"] == "LEADER"]
    s.expect((len(leading), sum(leading)), (len(stream.partitions), 4), "coordinators that lead, and their groups")
