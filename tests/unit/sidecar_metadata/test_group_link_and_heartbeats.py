"""Test a node's link to the metadata group, its heartbeats, and the end of its membership."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import nats.errors
import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire import frames
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import Subjects
from sidecar.metadata import feed, group_role, membership
from sidecar.metadata.group_role import MetadataConnection
from sidecar.runtime.settings import NodeSettings
from tests.unit.scripted_group import ScriptedGroup

UNAVAILABLE = pb.ControlResponse.UNAVAILABLE
NS = 1_000_000_000


class Strict:
    """Stand in for the NATS connection of the group. Connecting fails as often as the test sets."""

    made: ClassVar[list[Any]] = []
    failures: ClassVar[list[Exception]] = []

    def __init__(self, name: str, errors: Any) -> None:
        assert name == "group"
        self.errors, self.options = errors, {"max_reconnect_attempts": 1}
        self.calls: list[Any] = []
        Strict.made.append(self)

    async def connect(self, **given: Any) -> None:
        self.given = given
        if Strict.failures:
            raise Strict.failures.pop(0)

    async def flush(self, timeout_s: float) -> None:
        self.calls.append("flush")
        raise OSError

    async def close(self) -> None:
        self.calls.append("close")
        raise OSError


async def test_metadata_group_link_retries_until_connected_and_closes_its_parts_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Strict.made, Strict.failures = [], [OSError(), nats.errors.NoServersError()]
    monkeypatch.setattr(group_role, "BusConnection", Strict)
    monkeypatch.setattr(group_role, "_RECONNECT_WAIT_S", 0.0)
    settings = NodeSettings("n1", tmp_path, nats=("nats://h:1", "nats://h:2"), controllers=("n1",))
    counters: Counter[str] = Counter()
    folder: Any = SimpleNamespace(raft=tmp_path / "raft")
    inboxes: Any = None
    link = MetadataConnection(settings, folder, Subjects("ns"), inboxes, counters)
    await link._connect()
    first, second, third = Strict.made
    assert (first.calls, second.calls, third.calls) == (["close"], ["close"], [])
    assert first.errors is second.errors is third.errors is counters
    assert link._connection is third
    assert third.options["max_reconnect_attempts"] == -1
    given = third.given
    assert (given["servers"], given["name"], given["inbox_prefix"]) == (
        ["nats://h:1", "nats://h:2"],
        "liftpy-n1-group",
        b"ns.inbox.n1",
    )
    assert (given["max_reconnect_attempts"], given["pending_size"]) == (1, 0)
    assert given["closed_cb"] == given["disconnected_cb"] == link._disconnected
    assert (given["reconnected_cb"], given["error_cb"]) == (link._reconnected, link._error)

    async def stop() -> None:
        third.calls.append("group")

    link._role = SimpleNamespace(backends=[], stop=stop)  # type: ignore[assignment]
    await link.close()
    assert third.calls == ["group", "flush", "close"]


class Beating:
    """Heartbeats with a virtual clock, whose timer the test fires. ``home``: calls for the event loop of the node."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.home: list[Any] = []
        self.answered: list[Any] = []
        self.group = ScriptedGroup(*(pb.ControlResponse(index=number) for number in range(1, 100)))
        monkeypatch.setattr(membership, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(membership, "clock", SimpleNamespace(now_ns=lambda: round(self.now * NS)))
        self.beat = pb.Heartbeat(nodeId="n1", incarnation=2)
        role, pace = cast(Any, SimpleNamespace(current=self.group)), membership.HeartbeatTimes(0.5, 3.0)
        self.beats = membership.Heartbeats(role, self.beat, pace, lambda *what: self.answered.append(what))
        self.beats._home = cast(
            Any, SimpleNamespace(call_soon_threadsafe=lambda call, *given: self.home.append((call, *given)))
        )
        loop = SimpleNamespace(call_later=self._call_later, create_future=asyncio.get_running_loop().create_future)
        monkeypatch.setattr(membership, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
        self.running = self.beats.run()
        self.running.send(None)

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        timer = (self.now + seconds, callback)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: timer in self.timers and self.timers.remove(timer))

    def run(self, seconds: float) -> None:
        """Fire the timer as often as it is due within ``seconds``."""
        end = self.now + seconds
        while self.timers and self.timers[0][0] <= end:
            self.now, fire = self.timers.pop(0)
            fire()
        self.now = end

    def turn_home(self) -> None:
        """Run the calls for the event loop of the node."""
        home, self.home[:] = list(self.home), []
        for call, *given in home:
            call(*given)


async def test_node_heartbeats_are_sent_at_the_interval_and_stop_while_the_node_loop_is_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Beating(monkeypatch)
    running.run(9.0)
    assert [request.heartbeat for request, _ in running.group.asked] == [running.beat] * 6, "for as long as a session"
    assert len({request.operationId for request, _ in running.group.asked}) == 6
    assert running.answered == [], "the loop is blocked"
    running.turn_home()
    times_ns = [round((100 + n / 2) * NS) for n in range(6)]
    assert [(sent_ns, response.index) for sent_ns, response in running.answered] == list(
        zip(times_ns, range(1, 7), strict=True)
    )
    running.run(0.5)
    assert len(running.group.asked) == 7, "it goes on when the loop turns"


async def test_node_heartbeat_is_sent_with_a_tick_shortly_before_its_due_time(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Beating(monkeypatch)
    for after_s, count in ((0.3, 1), (0.1, 2), (0.3, 2), (0.1, 3)):
        running.run(after_s)
        running.turn_home()
        running.group.ticked()
        assert len(running.group.asked) == count
    running.run(0.59)
    assert len(running.group.asked) == 3, "the next tick may come a little later than the interval"
    running.run(0.02)
    assert len(running.group.asked) == 4
    running.run(0.5)
    assert len(running.group.asked) == 5, "without ticks, the interval applies"


async def test_node_heartbeat_is_sent_at_once_to_a_new_metadata_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Beating(monkeypatch)
    monkeypatch.setattr(ScriptedGroup, "leader", "n2")
    running.group.ticked()
    running.group.ticked()
    assert len(running.group.asked) == 2


def a_membership(group: Any, told: list[Any]) -> membership.Membership:
    settings: Any = SimpleNamespace(node_id="n1", replication=ReplicationConfig(), rack="r", weight=2.0)
    return membership.Membership(settings, group, told.append, told.append)


@pytest.mark.parametrize(
    ("node", "seen", "incarnation", "ends"),
    [(None, 9, 3, True), (None, 8, 3, False), (None, 9, 0, False), ("n1", 9, 3, False)],
)
async def test_node_membership_of_a_removed_node_ends_when_the_image_confirms_the_removal(
    node: str | None, seen: int, incarnation: int, ends: bool
) -> None:
    group, told = ScriptedGroup(), list[Any]()
    made = a_membership(group, told)
    made._end_heartbeats = lambda: asyncio.sleep(0)  # type: ignore[assignment,return-value]
    made.incarnation = incarnation
    group.shown = replace(ClusterImage(), index=seen, nodes={node: None} if node else {})  # type: ignore[dict-item]
    made._image_changed(ClusterImage(), group.shown)
    assert told == [], "an image alone may be forged"
    made._heartbeat_answered(1, pb.ControlResponse(error=pb.ControlResponse.NOT_FOUND, index=9))
    assert len(told) == ends
    if ends:
        for words in ("Node 'n1' was removed from the cluster", "Its data directory was not deleted", "start it: it joins"):
            assert words in str(told[0])


@pytest.mark.parametrize(("own", "ends"), [(4, True), (3, False), (2, False), (None, False)])
async def test_node_membership_ends_when_a_newer_process_registers_the_node_id(own: int | None, ends: bool) -> None:
    group, told = ScriptedGroup(), list[Any]()
    made = a_membership(group, told)
    made._end_heartbeats = lambda: asyncio.sleep(0)  # type: ignore[assignment,return-value]
    made.incarnation = 3
    group.shown = replace(ClusterImage(), nodes={"n1": SimpleNamespace(incarnation=own)} if own else {})  # type: ignore[dict-item]
    made._heartbeat_answered(1, pb.ControlResponse(error=pb.ControlResponse.FENCED))
    assert len(told) == ends
    if ends:
        assert "another process has registered as n1" in str(told[0])
    made._end_heartbeats = None
    made._heartbeat_answered(1, pb.ControlResponse(error=pb.ControlResponse.FENCED))
    assert len(told) == ends, "after the last heartbeat nothing is heard any more"


async def test_node_membership_leave_called_twice_ends_the_heartbeats_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    refusal = pb.ControlResponse(error=UNAVAILABLE, detail="nobody leads")
    group, told = ScriptedGroup(refusal, pb.ControlResponse(), refusal), list[Any]()
    made = a_membership(group, told)
    made.incarnation = 3

    async def end() -> None:
        told.append(len(group.asked))

    made._end_heartbeats = end
    await made.leave(7.0)
    await made.leave(7.0)
    assert told == [0], "once, and before it is said"
    assert [request.fenceNode for request, _ in group.asked] == [pb.FenceNode(nodeId="n1", incarnation=3)] * 2
    assert group.asked[0][1] == 7.0
    assert caplog.messages == ["stop not reported to the metadata group reason=nobody leads: stopping"]
    await made.drain(5.0)
    assert group.asked[2] == (pb.ControlRequest(drainNode=pb.DrainNode(nodeId="n1", incarnation=3)), 5.0)
    assert caplog.messages[1:] == ["leaderships not transferred reason=nobody leads: stopping without a transfer"]


# ---- who follows the feed --------------------------------------------------------------------------------------------------
async def test_metadata_feed_subscriber_requests_missing_entries_until_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_POLL_S", 0.0)
    asked: list[Any] = []
    shown: list[tuple[int, int]] = []
    answers: list[Any] = [
        nats.errors.NoRespondersError(), TimeoutError(), OSError(), nats.errors.TimeoutError(), b"nothing",
        frames.encode(pb.FeedSnapshotResponse(index=1)), frames.encode(pb.FeedSnapshotResponse(index=2)),
    ]  # fmt: skip

    class Connection:
        async def request(self, subject: str, payload: bytes, timeout: float) -> Any:
            asked.append((subject, frames.decode(payload, pb.FeedSnapshotRequest), timeout))
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return SimpleNamespace(data=answer)

    class Subscription:
        """Request entries while there are answers. The last answer changes the image."""

        image = ClusterImage()
        synced = False
        resync_count = 0
        received: ClassVar[list[int]] = []

        def request(self, now_ns: int) -> pb.FeedSnapshotRequest | None:
            return pb.FeedSnapshotRequest(afterIndex=7) if answers else None

        def response_received(self, response: pb.FeedSnapshotResponse) -> bool:
            self.received.append(response.index)
            if response.index == 2:
                self.image = replace(ClusterImage(), index=2)
            return response.index == 2

    Subscription.received = []
    connection: Any = Connection()
    made: Any = feed.FeedSubscriber("n1", connection, Subjects("ns"))
    made._subscription = Subscription()
    made.watch(lambda before, after: shown.append((before.index, after.index)))
    asking = asyncio.create_task(made._ask_for_what_is_missing())
    async with asyncio.timeout(30):
        while not shown:
            assert not asking.done(), asking
            await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    question = (Subjects("ns").feed_snapshot(), pb.FeedSnapshotRequest(afterIndex=7), feed._REQUEST_TIMEOUT_S)
    assert asked == [question] * 7
    assert Subscription.received == [1, 2]
    assert shown == [(0, 2)], "what changes nothing is not shown"
    assert sum(made.counters.values()) == 1, "the one that can't be read"
