"""Scripts about requests to the metadata group: a change of its leader, late answers, events, and messages that nobody understands."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from typing import Any

from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import EVENTS_STREAM
from liftpy.errors import NotFoundError
from sidecar.quorum import codec
from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.scripts.forgers import ask_for_vote
from tests.simulation.world.scripts.stage import Stage, script

_ANSWER_OF_THE_FEED = re.compile(r"liftpy\.inbox\.n4\.(?!.*\.heartbeats$)")
"""Inbox of the node n4 for answers that are no answers to heartbeats."""


@script(nodes=4)
async def script_metadata_leader_changes_while_a_request_waits(s: Stage) -> None:
    """Given a request that waits for a node, when its metadata leader changes, the next leader decides the request, and only once.

    The former leader does not wait for a timeout: the client knows the result within 3 s.
    """
    s.allow("refused: duplicate frame")
    await s.create("orders", replicas=4, leader="n4")
    await asyncio.sleep(3)
    old = await s.controller()
    seen = (await s.events())[-1]["index"]
    s["n4"].pause(NS_PER_S * 9 // 10)  # it is asked to stop its publishes, and does not answer
    began_s = s.now_s
    target = next(node for node in await s.isr("orders") if node != "n4")
    electing = asyncio.create_task(s.client.admin.elect_leader("orders", 0, target))
    await asyncio.sleep(0.02)
    asker = next(node for node in ("n1", "n2", "n3") if node != old)
    await ask_for_vote(s, old, asker, ahead=1)
    await electing
    s.expect(s.now_s - began_s < 3, True, f"the request took {s.now_s - began_s:.1f} s")
    await s.becomes(lambda: s.leader("orders") == target, what=f"{target} leads")
    await s.becomes(lambda: s.count_log(old, "metadata.leadership_lost") == 1, what=f"{old} does not lead any more")
    events = [event for event in await s.events() if event["index"] > seen and event.get("stream") == "orders"]
    requests = [event["outcome"] for event in events if event["kind"] == "request"]
    s.expect(requests, ["done"], "events of the request")
    s.expect([event["now"] for event in events if event["kind"] == "leadership_transfer"], [target], "events of the transfer")
    s.expect(await s.publish("orders", 1), [0], "offset")


@script(preferred_leader_interval_s=0.0)
async def script_operator_changes_how_often_leaderships_return(s: Stage) -> None:
    """Given a partition that its preferred leader does not lead, when an operator sets an interval, the leadership returns."""
    preferred = await s.create("orders")
    other = s.others(preferred)[0]
    await s.client.admin.elect_leader("orders", 0, other)
    await asyncio.sleep(10)
    s.expect(s.leader("orders"), other, "leader without an interval")
    for node in s.names:
        s.change_settings(node, replication__preferred_leader_interval_s=2.0)
    took_s = await s.becomes(lambda: s.leader("orders") == preferred, within_s=8, what="the preferred leader leads")
    s.expect(took_s > 0.5, True, f"the leadership returns after {took_s:.1f} s")
    for node in s.names:
        s.change_settings(node, replication__preferred_leader_interval_s=0.0)
    await asyncio.sleep(3)
    await s.client.admin.elect_leader("orders", 0, other)
    await s.stop(await s.controller())  # the next metadata leader has the new setting, too
    await asyncio.sleep(10)
    s.expect(s.leader("orders") in ("", preferred), False, "the leadership returns without an interval")


@script()
async def script_program_asks_for_events_in_pages(s: Stage) -> None:
    """Given a program that asks a controller for events, each answer has at most as many as it wants, and says if there are more.

    A wrong question is answered with an explanation. The metadata leader also publishes each event once.
    """
    await asyncio.sleep(2)
    since, known = len(s.messages), len(await s.events("n1"))
    for number in range(5):
        await s.create(f"orders{number}")
    await asyncio.sleep(1)
    everything = await s.events("n1")
    published = [(one.subject, json.loads(one.content)) for one in s.messages_to("liftpy.events.", since)]
    s.expect(published, [(f"liftpy.events.{event['kind']}", event) for event in everything[known:]], "published events")
    connection = s.client.transport.connection

    async def ask(question: bytes) -> dict[str, object]:
        return dict(json.loads((await connection.request("liftpy.control.events.n1", question, timeout=3)).data))

    for count in (1, 2, 7, len(everything)):
        found: list[dict[str, object]] = []
        more = True
        while more:
            after = [found[-1]["index"], found[-1]["number"]] if found else [0, -1]
            answer = await ask(json.dumps({"after": after, "count": count}).encode())
            events = answer["events"]
            assert isinstance(events, list)
            s.expect(0 < len(events) <= count, True, f"{len(events)} events in a page of {count}")
            found += events
            more = bool(answer["more"])
        s.expect(found == everything, True, f"events in pages of {count} equal all events")
    status = await s.status("n1")
    whole = await ask(b"")
    s.expect((whole["events"] == everything, whole["more"], whole["index"]), (True, False, status["metadata_index"]), "answer")
    late_ns = everything[len(everything) // 2]["time_ns"]
    recent = (await ask(json.dumps({"since_ns": late_ns}).encode()))["events"]
    s.expect(recent == [event for event in everything if event["time_ns"] >= late_ns], True, "events since a time")
    places = (b'{"after": 3}', b'{"after": [1]}', b'{"after": [-1, 0]}')
    wrong = (b"[]", b"{", *places, b'{"count": 0}', b'{"count": 501}', b'{"since_ns": "x"}')
    for question in wrong:
        text = str((await ask(question)).get("error"))
        s.expect_in('asked for as {"after": [index, number], "since_ns": 0, "count": 500}', text, f"answer to {question!r}")
    s.expect((await ask(b""))["events"] == everything, True, "events after wrong questions")


@script(nodes=4)
async def script_strangers_write_to_the_subjects_of_the_metadata_group(s: Stage) -> None:
    """Given messages of strangers on the subjects of controllers and of the feed, each is counted by its fault, and changes nothing."""
    await s.create("orders", leader="n2")
    await asyncio.sleep(2)
    leader = await s.controller()
    controller = next(node for node in ("n1", "n2", "n3") if node != leader)
    index = (await s.status("n4"))["metadata_index"]
    s.forget_log()
    connection = s.client.transport.connection
    heartbeats = {
        node: next(
            subscription.pattern
            for server in s.world.nats.servers
            for client in server.clients.values()
            for subscription in client.subscriptions.values()
            if subscription.pattern.startswith(f"liftpy.inbox.{node}.") and subscription.pattern.endswith(".heartbeats")
        )
        for node in (controller, "n4")
    }
    frame = codec.seal(controller, leader, b"frame")
    feed = frames.seal(pb.FeedEntry(index=index + 5, previousIndex=index + 4))
    foreign = frames.seal(pb.ControlResponse(operationId=b"x" * 16, metadataLeader="n9"))
    cases: list[tuple[str, str, bytes, str]] = [
        (controller, f"liftpy.raft.{controller}.{leader}", b"x", "no envelope"),
        (controller, f"liftpy.raft.{controller}.{leader}", frame[:-1], "checksum"),
        (controller, f"liftpy.raft.{controller}.n9", frame, "subject"),
        (controller, f"liftpy.raft.{controller}.{leader}", codec.seal(leader, controller, b"frame"), "subject"),
        (
            controller,
            f"liftpy.raft.{controller}.{leader}",
            envelope.encode(envelope.MessageType.FEED_ENTRY, b""),
            "message type",
        ),
        ("n4", "liftpy.feed", b"x", "no envelope"),
        ("n4", "liftpy.feed", feed[:-1], "checksum"),
        (controller, heartbeats[controller], b"x", ""),
        ("n4", heartbeats["n4"], foreign, ""),
    ]

    async def rejected(node: str) -> dict[str, int]:
        return {name.removeprefix("metadata: "): count for name, count in (await s.status(node))["refused"].items()}

    for node, subject, content, name in cases:
        before = await rejected(node)
        await connection.publish(subject, content)
        await asyncio.sleep(0.1)
        after = await rejected(node)
        grown = {kind: count - before.get(kind, 0) for kind, count in after.items() if count != before.get(kind, 0)}
        s.expect(grown, {name: 1} if name else {}, f"rejected messages of {node} after one on {subject}")
    await asyncio.sleep(1)
    s.expect({node: s.log(node) for node in s.names}, {node: [] for node in s.names}, "log lines")
    s.expect((await s.status("n4"))["metadata_leader"], leader, "metadata leader that n4 knows")
    s.allow(*(f"refused: {name}" for *_, name in cases), "refused: control request")

    # An entry that follows nothing is no damage: the node asks a controller what it has missed.
    since = len(s.messages)
    await connection.publish("liftpy.feed", feed)
    await asyncio.sleep(3)
    s.expect(0 < len(s.subjects("liftpy.feed.snapshot", since)) < 10, True, "requests for the missed entries")
    s.expect((await s.status("n4"))["metadata_index"], index, "index of the metadata")
    await s.create("more")
    await s.becomes(lambda: s.leader("more") != "", within_s=2, what="all nodes know the new stream")

    # The metadata leader answers a request of no known kind.
    request = frames.seal(pb.ControlRequest(operationId=b"x" * 16))
    response = frames.decode((await connection.request("liftpy.control.admin", request, timeout=1)).data, pb.ControlResponse)
    s.expect((response.error, response.operationId), (pb.ControlResponse.INVALID, b"x" * 16), "answer to a request of no kind")
    s.expect_in("The request has no known kind.", response.detail, "answer to a request of no kind")

    # A question that nobody understands is counted by one controller, and an answer by the node that has asked.
    before = Counter[str]()
    for node in ("n1", "n2", "n3"):
        before.update(await rejected(node))
    await connection.publish("liftpy.feed.snapshot", b"x", reply="liftpy.inbox.n4.token.1")
    await asyncio.sleep(0.1)
    for node in ("n1", "n2", "n3"):
        before.subtract(await rejected(node))
    s.expect({kind: -count for kind, count in before.items() if count}, {"no envelope": 1}, "rejected questions")
    counted = (await rejected("n4")).get("no envelope", 0)

    async def answer(question: Any) -> None:
        await connection.publish(question.reply, b"x")

    subscription = await connection.subscribe("liftpy.feed.snapshot", cb=answer)
    s.world.nats.loses = lambda client, message: (
        client.startswith("liftpy-n") and bool(_ANSWER_OF_THE_FEED.match(message.subject))
    )
    index = (await s.status("n1"))["metadata_index"]
    await connection.publish("liftpy.feed", frames.seal(pb.FeedEntry(index=index + 5, previousIndex=index + 4)))
    await asyncio.sleep(1)
    counted = (await rejected("n4")).get("no envelope", 0) - counted
    s.expect(1 <= counted <= 25, True, f"{counted} answers that n4 rejects within 1 s")
    s.world.nats.loses = lambda client, message: False
    await subscription.unsubscribe()
    await s.create("last")
    await s.becomes(lambda: s.leader("last") != "", within_s=3, what="all nodes know the last stream")


@script(nodes=4)
async def script_stranger_publishes_a_deletion_on_the_feed(s: Stage) -> None:
    """Given a node with the only copy, when a stranger publishes on the feed that its stream is deleted, the node asks the controllers.

    It keeps the data, says what operators should do, fetches the metadata again, and leads the partition as before.
    """
    await s.create("orders", replicas=1)
    stream = await s.client.admin.stream("orders")
    await s.client.admin.reassign(stream, 0, ["n4"])
    await s.shows(lambda: s.isr("orders"), ["n4"])
    await s.publish("orders", 3)
    await asyncio.sleep(2)
    s.forget_log()
    index = (await s.status("n4"))["metadata_index"]
    deletion = pb.Record(streamDeleted=pb.StreamDeleted(name="orders", uid=stream.uid))
    forged = pb.FeedEntry(index=index + 1, previousIndex=index, records=[deletion])
    await s.client.transport.connection.publish("liftpy.feed", frames.seal(forged))
    text = "ERROR partition.deletion_contradicted: partition not deleted partition=orders/0: *: restrict its NATS permissions"
    await s.becomes(lambda: s.count_log("n4", text) == 1, within_s=40, what="n4 keeps the data")

    async def state() -> tuple[bool, str]:
        indexes = {(await s.status(node))["metadata_index"] for node in s.names}
        return len(indexes) == 1, (await s.row("n4", "orders")).get("role", "")

    await s.shows(state, (True, "LEADER"), within_s=5, what="whether n4 knows what the others know, and its role")
    s.expect(await s.publish("orders", 1, first=3), [3], "offset of the next record")
    s.expect(await s.counter("n4", "metadata: images_fetched_again") >= 1, True, "n4 counts that it has fetched the metadata")


@script()
async def script_metadata_leader_sends_more_often_while_a_controller_is_late(s: Stage) -> None:
    """Given a controller that does not answer, or a leader that was late itself, the leader sends its messages more often.

    A controller that hears no leader begins an election. In a calm group the leader sends fewer messages.
    """
    await s.create("orders")
    await asyncio.sleep(6)
    leader = await s.controller()
    late = s.others(leader)[0]

    async def per_s(seconds: float) -> float:
        since = len(s.messages)
        await asyncio.sleep(seconds)
        return len(s.subjects(f"liftpy.raft.{late}.{leader}", since)) / seconds

    async def expect_rate(seconds: float, least: float, most: float, when: str) -> None:
        found = await per_s(seconds)
        s.expect(least <= found <= most, True, f"messages per second {when}, {found:g}")

    await expect_rate(4, 3.5, 6, "in a calm group")
    rejected = await s.total_counter("metadata: pre_votes_rejected")
    s[late].pause(NS_PER_S * 6 // 5)
    await asyncio.sleep(0.5)
    await expect_rate(0.6, 8, 12, "while a controller does not answer")
    await asyncio.sleep(1)
    await expect_rate(4, 3.5, 6, "when it answers again")
    s.expect(
        await s.total_counter("metadata: pre_votes_rejected"), rejected, "questions of the late controller before an election"
    )
    late_ticks = await s.metric(leader, "metadata_late_ticks_total")
    since = len(s.messages)
    await s.becomes(lambda: bool(s.subjects(f"liftpy.raft.{late}.{leader}", since)), what="a message of the leader")
    s[leader].pause(NS_PER_S * 37 // 100)  # longer than a leader may be late, and shorter than an election timeout
    await asyncio.sleep(0.5)
    s.expect(await s.metric(leader, "metadata_late_ticks_total") > late_ticks, True, "the leader counts its late tick")
    await expect_rate(4, 8, 12, "after the leader was late itself")
    await asyncio.sleep(1)
    await expect_rate(4, 3.5, 6, "when the group is calm again")
    s.expect(await s.controller(), leader, "metadata leader")


@script(events_stream=True)
async def script_connection_for_the_stream_of_events_is_refused(s: Stage) -> None:
    """Given a metadata leader that cannot connect to write events, it retries, and later writes each event once and in order."""
    leader = await s.controller()
    s.world.nats.refuse(f"liftpy-{leader}-events")
    for number in range(3):
        await s.create(f"orders{number}")
    await asyncio.sleep(8)
    failed = await s.counter(leader, "metadata: events not written at the first attempt")
    s.expect(2 <= failed <= 6, True, f"failed attempts within 8 s {failed}")
    s.expect(await s.counter(leader, "metadata: events written to their stream"), 0, "written events")
    s.world.nats.refuse("")

    async def created() -> list[str]:
        try:
            records = [record async for record in s.client.consume(EVENTS_STREAM, start="earliest", until="end")]
        except NotFoundError:
            return []
        events = [json.loads(record.value or b"") for record in records]
        places = [(event["index"], event["number"]) for event in events]
        s.expect(places, sorted(set(places)), "places of the events")
        return [event["stream"] for event in events if event["kind"] == "stream_created"]

    wanted = [f"orders{number}" for number in range(3)]
    await s.shows(created, [*wanted, EVENTS_STREAM], within_s=20, what="events of created streams")
    s.allow("events not written at the first attempt")


@script(events_stream=True)
async def script_stream_of_events_continues_after_changes_of_the_leader(s: Stage) -> None:
    """Given controllers that write events to a stream, when the leader changes or its connection is lost, each event is written once.

    The leader counts the events that it writes.
    """
    s.allow("events not written at the first attempt")
    written = "metadata: events written to their stream"

    async def places() -> list[tuple[int, int]]:
        try:
            records = [record async for record in s.client.consume(EVENTS_STREAM, start="earliest", until="end")]
        except NotFoundError:
            return []
        events = [json.loads(record.value or b"") for record in records]
        found = [(event["index"], event["number"]) for event in events]
        s.expect(found, sorted(set(found)), "places of the events in their stream")
        return found

    async def is_complete() -> bool:
        known = [(event["index"], event["number"]) for event in await s.events()]
        return await places() == known

    await s.create("orders")
    await s.shows(is_complete, True, within_s=10, what="all events are in their stream")
    leader = await s.controller()
    s.expect(await s.counter(leader, written), len(await places()), "events that the leader has written")
    await s.stop(leader)
    count = len(await places())
    await s.start(leader)
    await s.create("more")
    await s.shows(is_complete, True, within_s=10, what="all events are in their stream after a change of the leader")
    leader = await s.controller()
    own = len(await places()) - count
    s.expect(own - 8 <= await s.counter(leader, written) <= own + 8, True, "events that the next leader has written")
    s.world.nats.refuse(f"liftpy-{leader}-events")
    await s.create("last")
    await asyncio.sleep(3)
    s.world.nats.refuse("")
    await s.shows(is_complete, True, within_s=20, what="all events are in their stream after a lost connection")
