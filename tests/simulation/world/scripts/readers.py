"""Scripts about consumer groups, queues, services and readers."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

from liftpy.client.group import GroupOptions
from liftpy.client.queue import Job, QueueOptions
from tests.simulation.world.scripts.stage import Stage, script


@script()
async def script_lag_of_a_group(s: Stage) -> None:
    """Given a group that has read some records, when more come, the nodes report its lag in records and in time.

    When its coordinator dies, another node takes over, and the group continues at its position.
    """
    await s.create("orders", leader="n2")
    await s.publish("orders", 10)

    async def read(count: int) -> list[int]:
        found: list[int] = []
        async with s.client.group("readers", ["orders"], options=GroupOptions(auto_commit_s=0.2)) as group:
            while len(found) < count:
                found.append((await anext(group)).offset)
            await group.commit()
        return found

    async def rows() -> list[tuple[int, int]]:
        found = []
        for node in s.world.nodes:
            if node.is_ready:
                answer = await s.client.admin.ask_node(node.name, b'{"groups": {}}')
                found += [(row["lag_records"], row["unknown"]) for row in answer["groups"]["rows"] if row["group"] == "readers"]
        return found

    s.expect(await read(6), list(range(6)), "records of the group")
    await s.shows(rows, [(4, 0)], within_s=20, what="lag of the group")
    await s.shows(lambda: s.total("group_lag_records", '"readers"'), 4, within_s=5, what="lag of the group in the metrics")
    await s.publish("orders", 5, first=10)
    await s.shows(rows, [(9, 0)], within_s=20, what="lag of the group")
    states = {node: await s.metric(node, "coordinators", "leader") for node in s.names}
    groups = {node: await s.metric(node, "groups") for node in s.names}
    coordinator = max(groups, key=lambda node: groups[node])
    s.expect(sum(states.values()) >= 1, True, f"coordinators {states}")
    s[coordinator].kill()
    s.expect(await read(9), list(range(6, 15)), "records after the death of the coordinator")
    await s.shows(rows, [(0, 0)], within_s=20, what="lag of the group")
    history = await s.client.admin.ask_node(
        next(node.name for node in s.world.nodes if node.is_ready), json.dumps({"groups": {"group": "readers"}}).encode()
    )
    s.expect(history.get("groups") is not None, True, "an answer about the group")
    await s.start(coordinator)
    await s.shows(lambda: s.isr("orders"), s.names)


@script()
async def script_positions_of_a_group(s: Stage) -> None:
    """Given a group of partitions on several nodes, its coordinator reports members, positions, age of unread records and a history."""
    created_s = s.now_s
    await s.create("orders", replicas=1, partitions=3)
    for partition in range(3):
        await s.publish("orders", 4, partition=partition)
    published_s = s.now_s

    async def report() -> dict[str, Any]:
        """Return what the node says on which the group is coordinated."""
        answers = [await s.client.admin.ask_node(node, b'{"groups": {"group": "readers"}}') for node in s.names]
        found = [answer["groups"] for answer in answers if answer["groups"]["rows"]]
        s.expect(len(found), 1, "nodes that report the group")
        return dict(found[0])

    async def positions() -> list[tuple[int | None, ...]]:
        rows = (await report())["positions"]
        return sorted(tuple(row[name] for name in ("partition", "position", "end", "lag_records")) for row in rows)

    async with s.client.group("readers", ["orders"], options=GroupOptions(auto_commit_s=0.2)) as group:
        positions_read = dict.fromkeys(range(3), 0)
        while sum(positions_read.values()) < 11 or min(positions_read.values()) == 0:
            record = await anext(group)
            positions_read[record.partition] = record.offset + 1
        await group.commit()
        unread = [(partition, position, 4, 4 - position) for partition, position in positions_read.items()]
        await s.shows(positions, unread, within_s=20, what="positions of the group")
        await asyncio.sleep(2)  # the ends of partitions on other nodes are asked for every 2 s
        found = await report()
        s.expect([(row["client"], row["partitions"]) for row in found["members"]], [("driver", 3)], "members")
        (member,) = {row["member"] for row in found["positions"]}
        one = {"member": member, "client": "driver", "instance": "", "partitions": 3, "streams": "orders", "session_s": 10.0}
        s.expect(found["members"], [one], "member that reads the partitions")
        ages_s = {row.pop("lag_s") for row in (*found["rows"], *found["positions"]) if row["lag_records"]}
        s.expect(all(0 < age_s <= s.now_s - created_s for age_s in ages_s), True, f"ages of unread records {ages_s}")
        row = {
            "group": "readers", "kind": "group", "members": 1, "partitions": 3, "streams": "orders", "lag_records": 1,
            "unknown": 0, "in_flight": 0,
        }  # fmt: skip
        s.expect(found["rows"], [row], "row of the group")
        for row in found["positions"]:
            wanted = {"stream": "orders", "member": member, "in_flight": 0, "returned": None, "dead": None}
            s.expect({name: row[name] for name in wanted}, wanted, f"position in partition {row['partition']}")
        roles = [(await s.status(node))["coordinators"] for node in s.names]
        for partition in range(3):
            leads = sorted(one[partition]["role"] for one in roles)
            s.expect(leads, ["FOLLOWER", "FOLLOWER", "LEADER"], f"coordinators of partition {partition}")
        for one in (one for rows in roles for one in rows):
            s.expect((one["restarts"], one["problem"], one["bound_bytes"]), (0, "", 64 << 20), f"coordinator {one}")
        counted = {(one["groups"], one["members"], one["queues"], one["records_out"]) for rows in roles for one in rows}
        s.expect(counted, {(0, 0, 0, 0), (1, 1, 0, 0)}, "groups, members, queues and records of the coordinators")

    async def left() -> tuple[list[str], set[str], list[tuple[int, int]], int]:
        found = await report()
        members = [row["client"] for row in found["members"]]
        lags = [(row["lag_records"], row["unknown"]) for row in found["rows"]]
        return members, {row["member"] for row in found["positions"]}, lags, found["history"][-1]["lag_records"]

    await s.shows(left, ([], {""}, [(1, 0)], 1), what="members, owners of partitions, lag and newest lag of the history")
    age_s = s.now_s - published_s
    reported_s = (await report())["rows"][0]["lag_s"]
    s.expect(age_s - 6 < reported_s <= age_s, True, f"age of the unread record, {reported_s} s of {age_s:.1f} s")
    began_s = s.now_s
    await s.stop("n1")
    s.expect(s.now_s - began_s < 1, True, f"coordinators stop at once, it took {s.now_s - began_s:.1f} s")
    await s.start("n1")


@script()
async def script_job_of_a_queue_is_given_again_until_it_is_done(s: Stage) -> None:
    """Given a queue, when a worker takes jobs and acknowledges some, the others come again, and the figures show them."""
    await s.create("jobs", leader="n2")
    await s.publish("jobs", 6)
    options = QueueOptions(ack_wait_s=4.0, max_deliveries=10)
    async with s.client.queue("jobs", "workers", options=options) as queue:
        jobs: list[Job] = []
        while len(jobs) < 6:
            jobs += await queue.take(6)
        await queue.ack(jobs[:4])
        inflight = [await s.metric(node, "queue_inflight_records") for node in s.names]
        s.expect(sum(inflight), 2, "records without ack")

        async def report() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
            """Return the rows and the positions of the queue, without ages."""
            answers = [await s.client.admin.ask_node(node, b'{"groups": {"group": "workers"}}') for node in s.names]
            found = next(answer["groups"] for answer in answers if answer["groups"]["rows"])
            rows, positions = (
                [{name: value for name, value in row.items() if name != "lag_s"} for row in found[part]]
                for part in ("rows", "positions")
            )
            return rows, positions

        row = {
            "group": "workers", "kind": "queue", "members": 0, "partitions": 1, "streams": "jobs", "lag_records": 2,
            "unknown": 0, "in_flight": 2,
        }  # fmt: skip
        position = {
            "stream": "jobs", "partition": 0, "member": "", "position": 4, "end": 6, "lag_records": 2, "in_flight": 2,
            "returned": 0, "dead": 0,
        }  # fmt: skip
        await s.shows(report, ([row], [position]), within_s=3.5, what="rows of the queue")
        again: list[Job] = []
        began_s = s.now_s
        while len(again) < 2:
            again += await queue.take(6)
        s.expect([(job.record.offset, job.deliveries) for job in again], [(4, 2), (5, 2)], "records that come again")
        s.expect(s.now_s - began_s < 6, True, f"time until they come again, {s.now_s - began_s:.1f} s")
        await queue.ack(again)
    await s.shows(lambda: s.total("queue_inflight_records"), 0, what="records without ack")


@script()
async def script_reader_waits_for_a_record(s: Stage) -> None:
    """Given a reader at the end of a log, when a record is committed, it gets it at once, and the node counts its wait."""
    await s.create("orders", leader="n2")
    await s.publish("orders", 3)
    found: list[bytes] = []

    async def read() -> None:
        async with aclosing(s.client.consume("orders", start=3).records()) as records:
            async for record in records:
                found.append(record.value or b"")

    reading = asyncio.create_task(read())
    await s.shows(lambda: s.total("readers_waiting"), 1, what="waiting readers")
    await asyncio.sleep(3)
    s.expect(await s.total("readers_waiting"), 1, "waiting readers")
    began_s = s.now_s
    await s.publish("orders", 1, first=3)
    await s.becomes(lambda: found == [b"record-3"], within_s=0.5, what="the reader gets the record")
    s.expect(s.now_s - began_s < 0.1, True, "the record comes at once")
    reading.cancel()
    await s.shows(lambda: s.total("readers_waiting"), 0, what="waiting readers after the end of the reader")
    s.expect(await s.total("read_records_total"), 1, "records that the nodes have sent")


@script(nodes=3)
async def script_service_runs_next_to_each_replica(s: Stage) -> None:
    """Given a replicated service, when records come, its row in the status follows. When it ends, the status and the log say so."""
    from tests.simulation.world.load.services import OUTPUT

    services = await s.start_services()
    await s.publish("orders", 50)

    async def rows(*names: str) -> dict[str, list[tuple[object, ...]]]:
        fields = ("service", "role", "position", "lag", "output_count", "output_backlog", "problem")
        return {
            node: [tuple(one[field] for field in fields) for one in (await s.row(node, "orders"))["services"]]
            for node in s.names
        }

    def wanted(leader: str, count: int) -> dict[str, list[tuple[object, ...]]]:
        return {node: [("sums", "LEADER" if node == leader else "FOLLOWER", count, 0, count, 0, "")] for node in s.names}

    await s.shows(rows, wanted("n2", 50), what="rows of the service")
    s.expect(len(await s.read(OUTPUT[0])), 50, "outputs")
    await s.client.admin.elect_leader("orders", 0, "n1")
    await s.publish("orders", 10, first=50)
    await s.shows(rows, wanted("n1", 60), what="rows of the service after the transfer")
    s.expect(len(await s.read(OUTPUT[0])), 60, "outputs")
    s.expect(await s.total("services_ended"), 0, "ended services")
    s.forget_log()
    services.instances[0].end()
    took_s = await s.becomes(lambda: s.count_log("n1", "service.ended") == 1, what="the node notices the end")
    s.expect(1 < took_s < 5, True, f"the node notices it after a few heartbeats, it took {took_s:.1f} s")
    await asyncio.sleep(1)
    ended = [event for event in await s.events() if event["kind"] == "service_ended"]
    s.expect([(event["node"], event["stream"], event["partition"]) for event in ended], [("n1", "orders", 0)], "events")
    row = await s.row("n1", "orders")
    s.expect(row["services"], [], "services of n1")
    gone = [(one["service"], one["role"], one["ending"], one["problem"]) for one in row["gone_services"]]
    s.expect(gone, [("sums", "GONE", "silent", "nothing is heard from it")], "services that have ended")
    s.expect_log(
        "n1", "WARNING service.ended: service ended partition=orders/0 service=sums kind=silent reason=*", about="service."
    )
    s.expect((await s.metric("n1", "services_ended"), await s.metric("n2", "services_ended")), (1, 0), "ended services")
    await s.publish("orders", 5, first=60)
    services.instances[0].start()
    await s.shows(rows, wanted("n1", 65), within_s=20, what="rows of the service after its return")
    s.expect(len(await s.read(OUTPUT[0])), 65, "outputs")
    for instance in services.instances:
        instance.end()


@script(nodes=1, controllers=1)
async def script_service_ends_again_and_again(s: Stage) -> None:
    """Given a service that ends again and again, the cluster has some events of it, and the node counts the ends without one."""
    from tests.simulation.world.load.clients import Clients, Model
    from tests.simulation.world.load.services import Services

    model = Model(s.world.scheduler)
    await s.create("orders")
    services = Services(s.world, model, Clients(s.world, model, []))
    await services.create(s.client)
    s.forget_log()
    (instance,) = services.instances

    async def running() -> int:
        return len((await s.row("n1", "orders"))["services"])

    for number in range(6):
        instance.start()
        await s.shows(running, 1, what="services that run")
        instance.end()
        await s.becomes(lambda: s.count_log("n1", "service.ended") == number + 1, what="the end is logged")  # noqa: B023
    await asyncio.sleep(1)
    events = [event for event in await s.events() if event["kind"] == "service_ended"]
    counted = await s.metric("n1", "incidents_total", '"service_end_without_event"')
    s.expect(len(events) + counted, 6, "events and ends without an event")
    s.expect((len(events) > 0, counted > 0), (True, True), f"{len(events)} events, and {counted:g} ends without an event")


@script(long=True)
async def script_service_of_a_replica_computes_something_else(s: Stage) -> None:
    """Given an instance of a service with another state than the two others, it ends, and status, metric and log say so."""
    from tests.simulation.world.load.clients import Clients, Model
    from tests.simulation.world.load.services import Services, Sums

    class Drifting(Sums):
        """Writes the right outputs, and a wrong snapshot."""

        def take_snapshot(self) -> bytes:
            return self.state + b"0"

    model = Model(s.world.scheduler, may_lose=True)  # so that the end of an instance is no violation
    await s.create("orders", leader="n2")
    services = Services(s.world, model, Clients(s.world, model, []))
    await services.create(s.client)
    for instance in services.instances:
        if instance.settings.node == "n3":
            instance.factory = lambda: Drifting
        instance.start()
    await s.publish("orders", 60)
    await s.becomes(lambda: s.count_log("n3", "service.ended") == 1, what="the instance on n3 ends")
    services.instances[2].end()
    s.expect_log(
        "n3",
        "WARNING service.ended: service ended partition=orders/0 service=sums kind=diverged reason=*",
        about="service.ended",
    )
    gone = (await s.row("n3", "orders"))["gone_services"]
    s.expect([(one["service"], one["ending"]) for one in gone], [("sums", "diverged")], "services that have ended")
    s.expect_in("the state at position 40 differs from the state on n1, n2", gone[0]["problem"])
    s.expect([await s.metric(node, "services_diverged") for node in s.names], [0, 0, 1], "diverged services")
    s.expect([len((await s.row(node, "orders"))["services"]) for node in s.names], [1, 1, 0], "services that run")
    for instance in services.instances:
        instance.end()


@script(nodes=4)
async def script_service_continues_when_the_replica_of_its_node_returns(s: Stage) -> None:
    """Given a service next to a replica, when the replica moves away and comes back, the same process follows and leads again."""
    from tests.simulation.world.load.clients import Clients, Model
    from tests.simulation.world.load.services import OUTPUT, Services

    model = Model(s.world.scheduler)
    await s.create("orders", leader="n1")
    services = Services(s.world, model, Clients(s.world, model, []))
    await services.create(s.client)
    for instance in services.instances:
        instance.start()
    stream = await s.client.admin.stream("orders")
    before = list(stream.partitions[0].replicas)
    away, count = next(node for node in s.names if node not in before), 0

    async def rows() -> dict[str, tuple[object, ...]]:
        status = {node: (await s.row(node, "orders")).get("services", []) for node in s.names}
        return {node: (one["role"], one["position"], one["problem"]) for node, shown in status.items() for one in shown}

    async def led_by(leader: str, *replicas: str) -> None:
        nonlocal count
        await s.publish("orders", 5, first=count)
        count += 5
        await s.shows(
            rows,
            {node: ("LEADER" if node == leader else "FOLLOWER", count, "") for node in replicas},
            within_s=20,
            what=f"services with the leader {leader}",
        )

    for leader in before:  # the instance of n1 gets several orders
        await s.client.admin.elect_leader("orders", 0, leader)
        await led_by(leader, *before)
    source = before[0]
    replicas = [away, *before[1:]]
    await s.client.admin.reassign(stream, 0, replicas)
    await s.shows(lambda: s.isr("orders"), sorted(replicas))
    await led_by(before[-1], *replicas)
    await asyncio.sleep(4)
    s.expect(s.count_log(source, "service.ended"), 0, "ends of services on the node without a replica")
    await s.client.admin.reassign(stream, 0, before)
    await s.shows(lambda: s.isr("orders"), sorted(before))
    await led_by(before[-1], *before)
    await s.client.admin.elect_leader("orders", 0, source)
    await led_by(source, *before)
    s.expect(len(await s.read(OUTPUT[0])), count, "outputs")
    for instance in services.instances:
        instance.end()


@script()
async def script_group_has_no_lag_in_a_deleted_stream(s: Stage) -> None:
    """Given a group that reads two streams, when one of them is deleted, its lag is that of the other stream.

    The partitions are on different nodes, so the coordinator asks other nodes for the ends of some of them.
    """
    for name in ("orders", "jobs"):
        await s.create(name, partitions=3, replicas=1)
        for partition in range(3):
            await s.publish(name, 4, partition=partition)
    async with s.client.group("readers", ["orders", "jobs"]) as group:
        for _ in range(24):
            await anext(group)
        await group.commit()
    for name in ("orders", "jobs"):
        for partition in range(3):
            await s.publish(name, 2, partition=partition, first=4)

    async def lags() -> list[tuple[int, int, int]]:
        """Return the lags of the group: its rows, and the sum of its positions."""
        answers = [await s.client.admin.ask_node(node, b'{"groups": {"group": "readers"}}') for node in s.names]
        return [
            (row["lag_records"], row["unknown"], sum(one["lag_records"] for one in answer["groups"]["positions"]))
            for answer in answers
            for row in answer["groups"]["rows"]
        ]

    await s.shows(lags, [(12, 0, 12)], within_s=20, what="lag of the group")
    await s.client.admin.delete_stream("jobs")
    await s.shows(lags, [(6, 0, 6)], within_s=20, what="lag of the group without a deleted stream")


@script()
async def script_lags_of_a_group_leave_no_subscription(s: Stage) -> None:
    """Given a group that reads partitions of other nodes, when its coordinator measures lags, it unsubscribes each time."""
    await s.create("orders", partitions=3, replicas=1)
    for partition in range(3):
        await s.client.publish("orders", b"record", partition=partition)
    async with s.client.group("readers", ["orders"]) as group:
        for _ in range(3):
            part = await group.take()
            assert part is not None
            group.finished(part)
        await group.commit()

    def subscriptions() -> int:
        clients = [client for server in s.world.nats.servers for client in server.clients.values()]
        return sum(len(client.subscriptions) for client in clients if client.name.endswith("-groups"))

    await asyncio.sleep(10)
    before = subscriptions()
    await asyncio.sleep(20)
    s.expect(subscriptions(), before, "subscriptions of the coordinators")
