"""Scripts about the coordinators of groups: nodes that may not coordinate, lost connections, and streams that are deleted."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from liftpy.client.group import GroupOptions
from liftpy.core.wire.subjects import GROUPS_STREAM
from sidecar.groups import on_demand
from sidecar.groups.coordinators import GroupCoordinators
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
    took_s = s.now_s
    await s.stop("n1")
    took_s = s.now_s - took_s
    s.expect(took_s < 1, True, f"a stop waits for no retry of a coordinator, it took {took_s:.1f} s")
    await s.start("n1")
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


def _subscriptions(s: Stage, node: str) -> Counter[str]:
    """Return the subjects to which the coordinators of a node subscribe."""
    clients = [client for server in s.world.nats.servers for client in server.clients.values()]
    return Counter(
        one.pattern for client in clients if client.name == f"liftpy-{node}-groups" for one in client.subscriptions.values()
    )


@script(nodes=4)
async def script_coordinator_moves_to_another_node(s: Stage) -> None:
    """Given a coordinator, when its replica moves away and returns, each node runs the coordinators of its replicas, and no other."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 8)
    s.expect(await _read(s, 2), [0, 1], "records of the group")
    stream = await s.client.admin.stream(GROUPS_STREAM)
    before = list(stream.partitions[0].replicas)
    away, source = s.others(*before)[0], before[0]

    async def places() -> list[str]:
        """Return the nodes that run the coordinator of partition 0 without a problem."""
        rows = [(node, row) for node in s.names for row in await _coordinators(s, node)]
        return [node for node, row in rows if row["partition"] == 0 and row["role"] and not row["problem"]]

    await s.shows(places, sorted(before), what="nodes with the coordinator")
    await asyncio.sleep(3)
    counts = {node: sum(_subscriptions(s, node).values()) for node in s.names}
    replicas = [away, *before[1:]]
    for target in (replicas, before, replicas, before):
        await s.client.admin.reassign(stream, 0, target)
        await s.shows(places, sorted(target), within_s=20, what="nodes with the coordinator after a move")
        await s.shows(lambda: s.isr(GROUPS_STREAM), sorted(target), within_s=20)
    await asyncio.sleep(3)
    found = {node: sum(_subscriptions(s, node).values()) for node in s.names}
    s.expect(found[source] - counts[source] <= 1, True, f"subscriptions of coordinators before {counts} and after {found}")
    restarts = [row["restarts"] for node in s.names for row in await _coordinators(s, node)]
    s.expect(set(restarts), {0}, "restarts after failures")
    s.expect(await _read(s, 6), list(range(2, 8)), "next records of the group")


@script(nodes=4)
async def script_node_cannot_load_its_coordinators(s: Stage) -> None:
    """Given a node that cannot load the code of coordinators, it says so, and loads it after the next change of the metadata.

    Nodes without a replica of the groups stream load nothing.
    """
    calls, load = Counter[str](), on_demand._load_class

    def load_class() -> type[GroupCoordinators]:
        process = s.world.scheduler.process
        assert process is not None
        calls[process.name] += 1
        if process.name == "n1" and calls["n1"] == 1:
            raise ImportError("no module")
        return load()

    setattr(on_demand, "_load_class", load_class)  # noqa: B010
    s.allow("group.*")
    await s.create("orders", leader="n2")
    await s.publish("orders", 2)
    s.expect(calls, Counter(), "nodes that have loaded coordinators before the first group")
    s.expect(await _read(s, 2), [0, 1], "records of the group")
    stream = await s.client.admin.stream(GROUPS_STREAM)
    replicas = sorted(stream.partitions[0].replicas)
    if "n1" not in replicas:
        replicas = ["n1", *replicas[1:]]
        await s.client.admin.reassign(stream, 0, replicas)
    await s.becomes(lambda: calls["n1"] == 2, what="n1 loads its coordinators again")
    s.expect(s.count_log("n1", "group coordinators not loaded error=ImportError('no module'): retrying after"), 1, "log lines")

    async def rows() -> list[tuple[str, int]]:
        return [(node, row["partition"]) for node in s.names for row in await _coordinators(s, node) if row["role"]]

    placed = {one.partition: one.replicas for one in (await s.client.admin.stream(GROUPS_STREAM)).partitions}
    wanted = sorted((node, partition) for partition, nodes in placed.items() for node in nodes)
    await s.shows(rows, wanted, within_s=5, what="coordinators that run")
    hosts = {node for node, _ in wanted}
    s.expect(calls, Counter({node: 1 + (node == "n1") for node in hosts}), "loads of each node")


@script(nodes=1, controllers=1)
async def script_cursors_and_groups_are_reported(s: Stage) -> None:
    """Given a cursor, a group with a partition without positions, and a deleted group, the node reports each of them correctly."""
    await s.create("orders", partitions=2)
    await s.publish("orders", 6, partition=0)
    await asyncio.sleep(20)
    cursors = [f"cursor-{number}" for number in range(6)]  # in each partition of the groups stream
    for name in cursors:
        async with s.client.cursor(name, "orders") as cursor:
            await cursor.commit(3)
    options = GroupOptions(auto_commit_s=1000.0)

    async def report(group: str = "") -> dict[str, Any]:
        question = b'{"groups": {"group": "%s"}}' % group.encode()
        return dict((await s.client.admin.ask_node("n1", question))["groups"])

    async def positions() -> list[tuple[Any, ...]]:
        fields = ("partition", "position", "end", "lag_records", "in_flight", "returned", "dead")
        rows = (await report("readers"))["positions"]
        return sorted(tuple(row[name] for name in fields) for row in rows)

    nothing = (0, 0, None, None)
    async with s.client.group("readers", ["orders"], options=options) as group:
        for _ in range(4):
            await anext(group)
        await s.shows(positions, [(0, None, None, *nothing), (1, None, None, *nothing)], what="partitions without positions")
        owners = {row["member"] for row in (await report("readers"))["positions"]}
        s.expect(owners, {row["member"] for row in (await report("readers"))["members"]}, "owner of the partitions")
        await group.commit()
        await s.shows(positions, [(0, 4, 6, 2, *nothing[1:]), (1, None, None, *nothing)], what="positions after a commit")
    began_s = s.now_s

    async def rows() -> list[tuple[Any, ...]]:
        fields = ("group", "kind", "members", "partitions", "streams", "lag_records", "unknown")
        return sorted(tuple(row[name] for name in fields) for row in (await report())["rows"])

    wanted = [(name, "cursor", 0, 1, "orders", 0, 0) for name in cursors]
    wanted.append(("readers", "group", 0, 1, "orders", 2, 0))
    await s.shows(rows, wanted, what="rows of cursors and groups")
    await asyncio.sleep(4)
    series = {
        (name, labels): value for (name, labels), value in (await s.metrics("n1")).items() if name.startswith("group_lag")
    }
    ages_s = [value for (name, _), value in series.items() if name == "group_lag_seconds"]
    s.expect(len(ages_s) == 1 and 20 < ages_s[0] < s.now_s, True, f"age of the oldest unread record {ages_s}")
    counts = {key: value for key, value in series.items() if key[0] != "group_lag_seconds"}
    s.expect(counts, {("group_lag_records", 'group="readers"'): 2, ("group_lag_unknown", ""): 0}, "metrics of lags")
    await asyncio.sleep(62 - (s.now_s - began_s))
    s.expect(len((await report("readers"))["history"]) >= 2, True, "values of the history")
    await s.client.groups.delete("readers")
    await asyncio.sleep(5)
    s.expect((await report("readers"))["rows"], [], "rows of the deleted group")
    async with s.client.group("readers", ["orders"], options=options) as group:
        await anext(group)
        await group.commit()
    await s.shows(positions, [(0, 1, 6, 5, *nothing[1:])], what="positions of the new group")
    s.expect(len((await report("readers"))["history"]), 1, "values of the history of the new group")
