"""Scripts about what operators do and see: metrics of the state of partitions, labels of streams, paused partitions, events."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from liftpy.client.client import Client
from liftpy.core.wire.subjects import EVENTS_STREAM
from liftpy.errors import NotFoundError, PublishRejectedError
from tests.simulation.world.scripts.stage import Stage, script

_STATES = (
    "partitions_under_replicated", "partitions_at_min_isr", "partitions_under_min_isr", "partitions_paused", "partitions_moving",
    "partitions_failed", "cluster_partitions_offline", "cluster_streams_waiting",
)  # fmt: skip


async def _states(s: Stage, *nodes: str) -> dict[str, float]:
    """Return the metrics about states of partitions whose sum over some nodes (default: all) is not 0."""
    sums = {name: sum([await s.metric(node, name) for node in nodes or s.names]) for name in _STATES}
    return {name: count for name, count in sums.items() if count}


async def _roles(s: Stage, node: str) -> dict[str, float]:
    """Return the roles of the partitions of a node that its metrics show."""
    roles = {role: await s.metric(node, "partitions", f'"{role}"') for role in ("leader", "follower", "learner", "failed")}
    return {role: count for role, count in roles.items() if count}


@script(nodes=4, controllers=1, copy_bytes_per_s=5_000, copy_min_bytes_per_s=0, copy_fetch_bytes=4096)
async def script_metrics_show_the_state_of_partitions(s: Stage) -> None:
    """Given partitions that are moved, paused, or short of replicas, the metrics show each state, and only while it lasts."""
    await s.create("orders", replicas=3, min_isr=2, leader="n1")
    await s.create("single", replicas=1)
    await s.publish("orders", 100, value=b"x" * 200)
    s.expect(await _states(s), {}, "states of a healthy cluster")
    stream = await s.client.admin.stream("orders")
    replicas = stream.partitions[0].replicas
    s.expect(await _roles(s, "n1"), {"leader": 1 + (s.leader("single") == "n1")}, "roles on n1")

    target = s.others(*replicas)[0]
    source = next(node for node in replicas if node != "n1")
    await s.client.admin.reassign(stream, 0, [target, *(node for node in replicas if node != source)])
    await s.shows(lambda: _states(s), {"partitions_moving": 1}, within_s=3, what="states during a move")
    await s.shows(lambda: s.metric(target, "partitions", '"learner"'), 1, within_s=3, what="learners on the new node")
    rate = (await s.status(target))["copies"]
    s.expect(rate["bytes_per_second"], 5_000, "bytes per second that a copy may use")
    s.expect(0 < rate["copied_bytes"] < 24_000, True, f"copied bytes {rate}")
    await s.shows(lambda: _states(s), {}, within_s=30, what="states after the move")
    s.expect((await s.status(target))["copies"]["copied_bytes"] >= 20_000, True, "copied bytes after the move")
    s.expect(await s.metric(target, "partitions", '"learner"'), 0, "learners after the move")

    await s.client.admin.pause("orders", [0])
    await s.shows(lambda: _states(s), {"partitions_paused": 1}, within_s=3, what="states during a pause")
    text = await s.fails(s.publish("orders", 1, timeout_s=3), PublishRejectedError)
    s.expect_in("PAUSED", text, "error of a publish")
    await s.client.transport.connection.publish("orders.x", b"plain")
    await asyncio.sleep(0.5)
    s.expect((await s.row("n1", "orders"))["dropped"], {"paused": 1}, "dropped publishes")
    await s.client.admin.resume("orders")
    s.expect(await s.publish("orders", 1), [100], "offset after the pause")
    await s.client.admin.pause("orders", [0], resume_on_publish=True)
    s.forget_log()
    s.expect(await s.publish("orders", 1, timeout_s=5), [101], "offset of the publish that ends the pause")
    s.expect_log(
        "n1",
        """
        INFO partition.pause_ended: pause ended partition=orders/0 pause=UNTIL_PUBLISH
        INFO partition.pause_ended: pause ended partition=orders/0 pause=ENDING
        """,
        about="pause",
    )
    await s.shows(lambda: _states(s), {}, within_s=3, what="states after the pauses")

    followers = [node for node in (await s.client.admin.stream("orders")).partitions[0].replicas if node != "n1"]
    s[followers[0]].kill()
    up = s.others(followers[0])
    short = {"partitions_under_replicated": 1, "partitions_at_min_isr": 1}
    if s.leader("single") not in up:
        short["cluster_partitions_offline"] = 1
    await s.shows(lambda: _states(s, *up), short, within_s=6, what="states with one follower less")
    await s.publish("orders", 1)
    s[followers[1]].kill()
    up = s.others(*followers)
    short = {"partitions_under_replicated": 1, "partitions_under_min_isr": 1}
    if s.leader("single") not in up:
        short["cluster_partitions_offline"] = 1
    await s.shows(lambda: _states(s, *up), short, within_s=6, what="states without followers")
    text = await s.fails(s.publish("orders", 1, timeout_s=3), PublishRejectedError)
    s.expect_in("BELOW_MIN_ISR", text, "error of a publish")
    await s.start(*followers)
    await s.shows(lambda: _states(s), {}, within_s=20, what="states at the end")


@script()
async def script_metrics_have_a_label_for_chosen_streams(s: Stage) -> None:
    """Given ``metrics_streams``, when an operator changes the setting, each chosen stream has its own series, and no sum falls."""
    for name in ("shop-a", "shop-b", "other"):
        await s.create(name, leader="n2")
        await s.publish(name, 3)

    async def series() -> dict[str, float]:
        found = await s.metrics("n2")
        return {labels: value for (name, labels), value in found.items() if name == "ingest_records_total"}

    s.expect(await series(), {"": 9}, "series without labels")
    s.change_settings("n2", metrics_streams=("shop-*",))
    labels = {'stream="shop-a"': 3.0, 'stream="shop-b"': 3.0, 'stream="(other)"': 3.0}
    await s.shows(series, labels, within_s=3, what="series with labels")
    sizes = {row["stream"]: row["log_bytes"] for row in (await s.status("n2"))["partitions"]}
    for name, size_bytes in sizes.items():
        label = name if name.startswith("shop") else "(other)"
        s.expect(await s.metric("n2", "log_size_bytes", f'"{label}"'), size_bytes, f"bytes of {name}")
    await s.publish("shop-a", 2)
    await s.shows(lambda: s.metric("n2", "ingest_records_total", '"shop-a"'), 5, within_s=3, what="records of shop-a")
    await s.client.admin.delete_stream("shop-a")
    await asyncio.sleep(1)
    s.expect(await s.metric("n2", "ingest_records_total"), 11, "records of all streams after the deletion of one")
    s.change_settings("n2", metrics_streams=("other",))
    await s.shows(lambda: s.metric("n2", "ingest_records_total", '"other"'), 3, within_s=3, what="records of other")
    s.expect(await s.metric("n2", "ingest_records_total"), 11, "records of all streams with another label")
    s.change_settings("n2", metrics_streams=())
    await asyncio.sleep(1)
    s.expect(sum((await series()).values()), 11, "records without labels")


@script(events_stream=True)
async def script_events_are_in_their_stream(s: Stage) -> None:
    """Given changes of the cluster, the stream of events has each event once and in order, also after a failover of the controllers."""

    async def stored(client: Client) -> list[dict[str, Any]]:
        try:
            records = [record async for record in client.consume(EVENTS_STREAM, start="earliest", until="end")]
        except NotFoundError:  # the metadata leader creates the stream soon
            return []
        return [json.loads(record.value or b"") for record in records]

    def places(events: list[dict[str, Any]]) -> list[tuple[int, int]]:
        return [(event["index"], event["number"]) for event in events]

    async def streams() -> list[str]:
        return [event["stream"] for event in await stored(s.client) if event["kind"] == "stream_created"]

    await s.create("orders", leader="n2")
    await s.shows(streams, ["orders", EVENTS_STREAM], within_s=10, what="created streams")
    asked = [event for event in await s.events() if event["index"] <= (await stored(s.client))[-1]["index"]]
    kept = await stored(s.client)
    s.expect([event for event in kept if event["kind"] != "gap"], asked[len(asked) - len(kept) :], "events of a controller")
    old = await s.controller()
    s.expect(await s.counter(old, "metadata: events written to their stream") >= len(kept), True, "written events")
    s[old].kill()
    await s.becomes(lambda: s.leader("orders") not in ("", old), within_s=10, what="a node leads orders")
    await s.create("more")
    await s.shows(streams, ["orders", EVENTS_STREAM, "more"], within_s=20, what="created streams after a failover")
    await s.start(old)
    await s.create("last")
    await s.shows(streams, ["orders", EVENTS_STREAM, "more", "last"], within_s=20, what="created streams at the end")
    found = places(await stored(s.client))
    s.expect(found, sorted(set(found)), "places of the events rise")
    kinds = [event["kind"] for event in await stored(s.client)]
    s.expect(kinds.count("gap") <= 1, True, f"no event is lost {kinds}")
    settings = (await s.client.admin.stream(EVENTS_STREAM)).config
    s.expect((settings.retention_age_s, settings.retention_bytes), (30 * 86_400, 1 << 30), "retention of the stream")
