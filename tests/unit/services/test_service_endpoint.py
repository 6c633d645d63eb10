"""Test the service protocol of a node: frames, answers to inboxes, and events for the replica."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.features import EFFECT_NUMBERS
from liftpy.core.replication import events
from liftpy.core.replication.phases import RoleName
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire._pb import service_pb2 as pb
from liftpy.core.wire.decode_errors import REPLY, by_reason
from liftpy.core.wire.envelope import MessageType
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.partition.services import PartitionServices, ServiceHandler


class World:
    """A bus, a replica and timers, as far as services need them."""

    def __init__(self) -> None:
        self.image = SimpleNamespace(feature_level=EFFECT_NUMBERS)
        self.sent: list[tuple[str, bytes]] = []
        self.fed: list[events.Event] = []
        self.counters: Counter[str] = Counter()
        self.replica: Any = SimpleNamespace(
            role="FOLLOWER", phase="FOLLOWER_FETCH", leader_epoch=1, high_watermark=9, epoch_start_offset=0
        )
        log: Any = SimpleNamespace(log_start_offset=0, log_end_offset=12, config=StreamConfig())
        bus: Any = SimpleNamespace(send=self._send, listen=self._listen)
        self.timers: list[Any] = []
        self.cancelled: list[Any] = []
        timers: Any = SimpleNamespace(
            set=lambda timer, at_ns: self.timers.append((at_ns, timer)), cancel=lambda timer: self.cancelled.append(timer)
        )
        key = PartitionKey("s", "u1", 0)
        self.ended: list[Any] = []
        self.moved: list[tuple[str, str]] = []
        self.replica.state = SimpleNamespace(replicas=("n1", "n2", "n3"), isr=("n1", "n2"), leader="n2", passed_over=())
        partition: Any = SimpleNamespace(
            key=key, log=log, replica=self.replica, counters=self.counters, feed=self.fed.append, mark_changed=lambda: None,
            named_leader=lambda: ("n2", 1, 1),
            transfer_leadership=lambda effect: self.moved.append((effect.toward, effect.reason)),
        )  # fmt: skip
        proposals: Any = SimpleNamespace(report_service=lambda key, ended: self.ended.append(ended))
        node: Any = SimpleNamespace(
            settings=SimpleNamespace(node_id="n1", replication=ReplicationConfig()), links=SimpleNamespace(replication=bus),
            ack_ids=itertools.count(3 << 32), timers=timers, proposals=proposals, subjects=Subjects(),
            reads=SimpleNamespace(inboxes=InboxRule(("_INBOX.",))), group=SimpleNamespace(image=self.image),
        )  # fmt: skip
        self.services = PartitionServices(partition, node)
        find = {("s", 0): self.services}
        self.handler = ServiceHandler(
            bus, Subjects(), "n1", InboxRule(("_INBOX.",)), lambda *name: find.get(name), self.counters
        )

    def _send(self, subject: str, pieces: tuple[bytes, ...]) -> None:
        self.sent.append((subject, b"".join(pieces)))

    def _listen(self, subject: str, sink: Any) -> Any:
        if subject == "liftpy.service.n1":
            self.say = lambda payload, reply=b"_INBOX.x": sink(subject.encode(), reply, payload, b"")
        else:
            assert subject == "liftpy.service.n1.session.*.*"
            self.say_bound = lambda at, payload: sink(f"liftpy.service.n1.session.{at}".encode(), b"_INBOX.x", payload, b"")
        return SimpleNamespace(close=lambda: None)

    def become(self, role: str, phase: str, epoch: int) -> None:
        self.replica.role, self.replica.phase, self.replica.leader_epoch = RoleName(role), phase, epoch
        self.services.role_changed()

    def report(self) -> None:
        """Let the time of the next report to the other nodes come."""
        self.services._report.fire()

    def last(self, kind: Any) -> Any:
        subject, frame = self.sent[-1]
        assert subject == "_INBOX.x"
        return frames.decode(frame, kind)


@pytest.fixture
def world() -> World:
    return World()


def hello(**fields: Any) -> bytes:
    return frames.encode(pb.ServiceHello(**{"service": "bank", "stream": "s", "instance": 5, **fields}))


def test_service_endpoint_rejects_a_hello_whose_service_or_stream_differs_from_the_subject(world: World) -> None:
    """NATS permissions apply to the subject, which contains the stream and the service."""
    world.say_bound("s.bank", hello())
    assert world.last(pb.JoinLog).service == "bank"
    world.sent.clear()
    for message in (hello(service="other"), hello(stream="t"), frames.encode(pb.ServiceAck(service="other", stream="s"))):
        world.say_bound("s.bank", message)
    assert (world.sent, sum(by_reason(world.counters).values())) == ([], 3)


def test_service_endpoint_reports_twenty_crashes_as_fewer_than_ten_events(world: World) -> None:
    for number in range(20):
        world.say(hello(instance=number + 1, first=True))
        world.say(hello(instance=number + 1, leaving=True, ending=pb.ServiceHello.FAILED, problem=f"crash {number}"))
    assert [one.reason for one in world.ended] == [f"crash {number}" for number in range(len(world.ended))]
    assert 1 <= len(world.ended) < 10
    assert [str(one) for one in world.services.services_that_ended()] == ["bank failed: crash 19"]


def test_service_endpoint_reports_replay_progress_to_the_replica(world: World) -> None:
    world.say(hello(position=10))
    world.say(hello(position=4))
    assert world.last(pb.JoinLog).ackId >> 32 == 3  # above those of earlier incarnations
    world.become("CANDIDATE", "LEADER_REPLAY", 2)
    world.services.replay(12)
    assert world.fed == [events.ReplayProgressed(end_offset=4)]
    order = world.last(pb.JoinLog)
    assert order.stopPosition == 10
    world.say(hello(position=7))
    assert world.fed[-1] == events.ReplayProgressed(end_offset=7)
    assert not any(isinstance(event, events.ReplayFinished) for event in world.fed)
    ack = pb.ServiceAck(service="bank", stream="s", instance=5, ackId=order.ackId, position=10, streamUid="u1")
    world.say(frames.encode(ack))
    assert world.fed[-1] == events.ReplayFinished(end_offset=12)
    world.become("LEADER", "LEADER_READY", 2)
    assert world.last(pb.JoinLog).role == pb.SERVICE_LEADER
    world.become("LEADER", "LEADER_NO_LEASE", 2)
    assert world.last(pb.JoinLog).role == pb.SERVICE_FOLLOWER
    (report,) = world.services.report()
    assert (report["service"], report["position"], report["lag"]) == ("bank", 10, 0)


def test_service_endpoint_counts_invalid_frames_and_sends_no_answer(world: World) -> None:
    bad = [
        b"",
        b"x" * 50,
        envelope.encode(MessageType.SERVICE_HELLO, b"\xff\xff"),
        frames.encode(client_pb2.ReadRequest()),
        frames.encode(pb.JoinLog()),
    ]
    for payload in bad:
        world.say(payload)
    assert world.sent == []
    assert sum(by_reason(world.counters).values()) == len(bad)


@pytest.mark.parametrize("reply", [b"", b"orders.new", b"liftpy.control", b"_INBOX.*"])
def test_service_endpoint_sends_answers_only_to_inbox_subjects(world: World, reply: bytes) -> None:
    world.say(hello(), reply)
    assert (world.sent, world.counters[REPLY]) == ([], 1)
    assert world.services.report() == []


def test_service_endpoint_refuses_a_hello_for_an_unknown_partition(world: World) -> None:
    world.say(hello(stream="other"))
    refusal = world.last(pb.ServiceRefusal)
    assert (refusal.reason, refusal.node, refusal.stream) == (pb.ServiceRefusal.NO_SUCH_PARTITION, "n1", "other")
    world.say(hello())
    world.say(hello(leaving=True), b"\xff")  # whatever that is
    assert world.services.report() == []
    assert len(world.sent) == 2


def test_service_endpoint_ignores_an_ack_with_another_stream_uid(world: World) -> None:
    world.say(hello(position=10))
    world.say(hello())
    world.become("CANDIDATE", "LEADER_REPLAY", 2)
    world.services.replay(12)
    order = world.last(pb.JoinLog)
    world.say(
        frames.encode(pb.ServiceAck(service="bank", stream="s", instance=5, ackId=order.ackId, position=10, streamUid="u0"))
    )
    assert world.fed == []


def test_service_endpoint_forwards_a_snapshot_request_to_the_service(world: World) -> None:
    world.say(hello(snapshotPosition=4))
    assert world.services.retain_from() == 4
    world.say(frames.encode(pb.SnapshotRequest(service="bank", stream="other")), b"")
    assert len(world.sent) == 1
    world.say(frames.encode(pb.SnapshotRequest(service="bank", stream="s")), b"")
    assert world.last(pb.JoinLog).snapshotRequest == 1


def test_service_endpoint_of_a_leader_with_a_failing_service_transfers_leadership(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 1_000_000_000
    monkeypatch.setattr("sidecar.runtime.clock.now_ns", lambda: now_ns)

    def report(node: str, **fields: Any) -> pb.ServiceReport:
        states = [pb.ServiceReport.State(service="bank", position=10)]
        return pb.ServiceReport(**{"node": node, "stream": "s", "streamUid": "u1", "services": states, **fields})

    world.become("LEADER", "LEADER_READY", 2)
    world.say(hello(position=7))
    world.report()
    told = [(subject, frames.decode(frame, pb.ServiceReport)) for subject, frame in world.sent if ".notify." in subject]
    assert [subject for subject, _ in told] == ["liftpy.notify.n2", "liftpy.notify.n3"]
    assert [(s.service, s.position, s.failing) for s in told[0][1].services] == [("bank", 7, False)]
    world.say(hello(position=8, failing=True))
    for _ in range(10):
        world.services.record_states(report("n3"))  # not in the ISR
        world.services.record_states(report("n4"))  # holds no replica
        world.services.record_states(report("n2", streamUid="u0"))
        world.report()
        now_ns += 1_000_000_000
    assert world.moved == []
    for _ in range(2):
        world.services.record_states(report("n2"))
        world.report()
        now_ns += 1_000_000_000
    assert [toward for toward, _ in world.moved] == ["n2"]


def test_service_endpoint_ends_a_service_whose_state_digest_differs_from_two_nodes(world: World) -> None:
    def stored(digest: bytes) -> list[pb.SnapshotDigest]:
        return [pb.SnapshotDigest(position=100, digest=digest * 16)]

    def reported(node: str, digest: bytes) -> None:
        states = [pb.ServiceReport.State(service="bank", position=100, snapshots=stored(digest), life=1)]
        world.services.record_states(pb.ServiceReport(node=node, stream="s", streamUid="u1", services=states))

    world.say(hello(position=100, snapshots=stored(b"a"), life=9))
    reported("n2", b"b")
    world.report()
    (report,) = world.services.report()
    assert "the code is not deterministic" in str(report["problem"])
    reported("n3", b"b")
    world.sent.clear()
    world.report()
    refusal = frames.decode(world.sent[0][1], pb.ServiceRefusal)
    assert (refusal.reason, refusal.position, refusal.instance) == (pb.ServiceRefusal.DIVERGED, 100, 5)
    told = frames.decode(world.sent[1][1], pb.ServiceReport).services[0]
    assert ([s.digest for s in told.snapshots], told.life) == ([b"a" * 16], 9)
    world.say(hello(position=100, life=10))  # it has begun anew, without that snapshot
    world.sent.clear()
    world.report()
    assert all(".notify." in subject for subject, _ in world.sent)
    (report,) = world.services.report()
    assert report["problem"] == ""


def test_service_endpoint_sends_agreed_snapshot_digests_to_a_service_that_fetches_a_snapshot(world: World) -> None:
    def report(node: str, digest: bytes) -> pb.ServiceReport:
        snapshot = pb.SnapshotDigest(position=40, digest=digest * 16)
        states = [pb.ServiceReport.State(service=name, position=50, life=3, snapshots=[snapshot]) for name in ("bank", "other")]
        return pb.ServiceReport(node=node, stream="s", streamUid="u1", services=states)

    world.say(hello())
    world.services.record_states(report("n2", b"a"))
    world.services.record_states(report("n3", b"a"))
    world.say(hello())
    assert not world.last(pb.JoinLog).agreed, "it has not asked"
    world.say(hello(fetching=True, fetchedBytes=7, givenBytes=8))
    (agreed,) = world.last(pb.JoinLog).agreed
    assert (agreed.position, agreed.digest, agreed.nodes) == (40, b"a" * 16, 2)
    (row,) = world.services.report()
    assert (row["fetched_bytes"], row["given_bytes"]) == (7, 8)
    world.services.record_states(report("n3", b"b"))
    world.say(hello(fetching=True))
    assert not world.last(pb.JoinLog).agreed, "one against one"


def test_service_endpoint_instruction_contains_the_lowest_code_version_of_all_replicas(world: World) -> None:
    def report(node: str, version: int) -> pb.ServiceReport:
        states = [pb.ServiceReport.State(service="bank", position=50, life=3, version=version)]
        return pb.ServiceReport(node=node, stream="s", streamUid="u1", services=states)

    world.say(hello(version=3, activeVersion=1))
    world.services.record_states(report("n2", 2))
    world.report()
    assert [s.version for s in frames.decode(world.sent[-1][1], pb.ServiceReport).services] == [3]
    world.say(hello(version=3, activeVersion=1))
    assert world.last(pb.JoinLog).lowestVersion == 0, "nothing is known of n3"
    world.services.record_states(report("n3", 2))
    world.report()
    world.say(hello(version=3, activeVersion=1))
    assert world.last(pb.JoinLog).lowestVersion == 2
    (row,) = world.services.report()
    assert (row["version"], row["active_version"]) == (3, 1)


@pytest.mark.parametrize("level", [0, EFFECT_NUMBERS - 1, EFFECT_NUMBERS])
def test_service_endpoint_instruction_numbers_effects_by_record_when_level_and_all_replicas_allow_it(
    world: World, level: int
) -> None:
    """Below the level, services of earlier versions may start. They number effects by count."""

    def report(node: str, numbers: pb.EffectNumbers) -> pb.ServiceReport:
        states = [pb.ServiceReport.State(service="bank", position=50, life=3, effectNumbers=numbers)]
        return pb.ServiceReport(node=node, stream="s", streamUid="u1", services=states)

    def told() -> pb.EffectNumbers:
        world.report()
        world.say(hello(effectNumbers=pb.EFFECT_NUMBERS_BY_RECORD))
        return world.last(pb.JoinLog).effectNumbers

    world.image.feature_level = level
    world.say(hello(effectNumbers=pb.EFFECT_NUMBERS_BY_RECORD))
    world.services.record_states(report("n2", pb.EFFECT_NUMBERS_BY_RECORD))
    world.services.record_states(report("n3", pb.EFFECT_NUMBERS_UNCHANGED))
    expected = {EFFECT_NUMBERS - 1: pb.EFFECT_NUMBERS_BY_COUNT}.get(level, pb.EFFECT_NUMBERS_UNCHANGED)
    assert told() == expected
    world.services.record_states(report("n3", pb.EFFECT_NUMBERS_BY_RECORD))
    assert told() == (pb.EFFECT_NUMBERS_BY_RECORD if level == EFFECT_NUMBERS else expected)


async def test_service_endpoint_serves_a_service_in_the_same_process_without_nats(world: World) -> None:
    told: list[Any] = []
    join = pb.ServiceHello(service="groups", stream="s", instance=8, position=10)
    world.handler.process_local(join, "_INBOX.here", told.append)
    assert told == [], "not while it speaks"
    await asyncio.sleep(0)
    (order,) = told
    assert (order.instance, order.role) == (8, pb.SERVICE_FOLLOWER)
    world.say(hello(instance=6))
    world.become("CANDIDATE", "LEADER_REPLAY", 2)
    await asyncio.sleep(0)
    assert told[-1].leaderEpoch == 2
    assert {subject for subject, _ in world.sent} == {"_INBOX.x"}, "another one, in a process of its own, is"
    world.services.replay(12)
    await asyncio.sleep(0)
    for service, instance, ack_id in (("groups", 8, told[-1].ackId), ("bank", 6, world.last(pb.JoinLog).ackId)):
        ack = pb.ServiceAck(service=service, stream="s", instance=instance, ackId=ack_id, position=10, streamUid="u1")
        world.handler.process_local(ack, "_INBOX.here", told.append)
    assert world.fed[-1] == events.ReplayFinished(end_offset=12)
    count = len(told)
    world.handler.process_local(
        pb.ServiceHello(service="groups", stream="s", instance=8, leaving=True), "_INBOX.here", told.append
    )
    world.become("LEADER", "LEADER_READY", 2)
    await asyncio.sleep(0)
    assert len(told) == count, "it hears nothing after its end"
    world.handler.process_local(pb.ServiceHello(service="groups", stream="t", instance=8), "_INBOX.here", told.append)
    await asyncio.sleep(0)
    assert (told[-1].reason, told[-1].instance) == (pb.ServiceRefusal.NO_SUCH_PARTITION, 8)
    world.handler.process_local(
        pb.ServiceHello(service="groups", stream="t", instance=8, leaving=True), "_INBOX.here", told.append
    )
    await asyncio.sleep(0)
    assert len(told) == count + 1


def test_service_endpoint_schedules_a_check_after_the_last_service_expired(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 1_000_000_000
    monkeypatch.setattr("sidecar.runtime.clock.now_ns", lambda: now_ns)
    for name in ("bank", "shop"):
        world.say(hello(service=name))
        now_ns, check = next((at_ns, timer) for at_ns, timer in reversed(world.timers) if timer is world.services._check)
        assert [told["service"] for told in world.services.report()] == [name]
        check.fire()
        assert world.services.report() == []


def test_service_endpoint_close_of_a_partition_cancels_all_timers(world: World) -> None:
    world.say(hello(position=10))
    world.say(hello(position=2))
    world.become("CANDIDATE", "LEADER_REPLAY", 2)
    world.services.replay(12)
    world.services.close()
    assert {id(timer) for _, timer in world.timers} <= {id(timer) for timer in world.cancelled}
    assert len(world.timers) >= 3
