"""Test the notify subject of a node: each kind reaches its receiver, anything else is counted."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.worker_assignment import WHOLE, WorkerShare, share_of
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.messages import LeaderNotice
from liftpy.core.wire import frames
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire._pb import service_pb2
from liftpy.core.wire.decode_errors import REFUSED, REPLY
from liftpy.core.wire.subjects import InboxRule, Subjects
from sidecar.partition.replica_manager import NotifyHandler
from sidecar.partition.replication import Notifications

KEY = PartitionKey("orders", "uid-1", 2)
QUESTION = pb.LeaderQuestion(stream="orders", partition=2, streamUid="uid-1")
ASIDE = pb.StepAside(stream="orders", partition=2, streamUid="uid-1")


class Bus:
    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []

    def listen(self, subject: str, sink: Any) -> None:
        self.subject, self.sink = subject, sink

    def send(self, subject: str, pieces: tuple[bytes, ...]) -> None:
        self.sent.append((subject, b"".join(pieces)))


class Node:
    """Notifications of node n1, and whoever it hands things to."""

    def __init__(self, share: WorkerShare = WHOLE) -> None:
        self.bus: Any = Bus()
        self.delivered: list[Any] = []
        self.asked: list[Any] = []
        self.counters: Counter[str] = Counter()
        self.serves = True
        partitions: Any = SimpleNamespace(
            deliver=lambda *said: self.delivered.append(said),
            transfer_leadership=self._transfer,
            serves=self._testify,
            services_of=lambda stream, partition: SimpleNamespace(record_states=self.asked.append),
        )
        self.notifications = Notifications(self.bus, Subjects())
        NotifyHandler(
            self.bus,
            Subjects().notify("n1"),
            InboxRule(("_INBOX.",)),
            partitions,
            lambda reply, body: self.asked.append((reply, bytes(body))),
            self.counters,
            share,
        )

    def _transfer(self, stream: str, partition: int, uid: str, leader_epoch: int, done: Any) -> None:
        self.asked.append((pb.StepAside(stream=stream, partition=partition, streamUid=uid, leaderEpoch=leader_epoch), done))

    def _testify(self, question: pb.LeaderQuestion) -> bool:
        self.asked.append(question)
        return self.serves

    def hears(self, message: Any, reply: bytes = b"_INBOX.asker") -> None:
        self.bus.sink(b"liftpy.notify.n1", reply, message if isinstance(message, bytes) else frames.encode(message), b"")

    def sent(self) -> list[tuple[str, bytes]]:
        sent, self.bus.sent = self.bus.sent, []
        return sent


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.mark.parametrize("serves", [True, False])
def test_leadership_probe_on_the_notify_subject_gets_an_answer_to_its_inbox(node: Node, serves: bool) -> None:
    node.serves = serves
    node.hears(QUESTION)
    [(subject, answer)] = node.sent()
    assert subject == "_INBOX.asker"
    assert frames.decode(answer, pb.LeaderTestimony) == pb.LeaderTestimony(serves=serves, question=QUESTION)
    assert (node.asked, node.delivered, node.counters) == ([QUESTION], [], {})


def test_resign_request_on_the_notify_subject_is_answered_after_the_resignation(node: Node) -> None:
    node.hears(ASIDE)
    [(request, done)] = node.asked
    assert request == ASIDE
    assert node.sent() == []
    done()
    [(subject, answer)] = node.sent()
    assert (subject, frames.decode(answer, pb.StepAside)) == ("_INBOX.asker", ASIDE)
    assert not node.delivered


@pytest.mark.parametrize("reply", [b"", b"orders.delete", b"_INBOX.*"])
@pytest.mark.parametrize("question", [QUESTION, ASIDE])
def test_notify_subject_ignores_a_request_whose_reply_is_not_an_inbox(node: Node, question: Any, reply: bytes) -> None:
    node.hears(question, reply)
    assert (node.asked, node.sent(), node.delivered) == ([], [], [])
    assert node.counters == {REPLY: 1}


def test_leader_notice_without_reply_is_delivered_to_its_replica(node: Node) -> None:
    leader = Node()
    leader.notifications.send_notice(
        KEY,
        LeaderNotice(
            leader="n1",
            leader_epoch=4,
            epoch=9,
            epoch_start_offset=17,
            high_watermark=30,
            log_start_offset=2,
            replicas=("n1", "n3"),
        ),
    )
    sent = leader.sent()
    assert [subject for subject, _ in sent] == ["liftpy.notify.n1", "liftpy.notify.n3"]
    node.hears(sent[0][1], b"")
    event = LeaderNotice(leader="n1", leader_epoch=4, epoch=9, epoch_start_offset=17, high_watermark=30, log_start_offset=2)
    assert (node.delivered, node.asked, node.counters) == ([("orders", 2, "uid-1", event)], [], {})


def test_notify_subject_passes_combined_fetches_and_service_reports_to_their_handlers(node: Node) -> None:
    quiet = frames.encode(pb.QuietFetches(replicaID="n2"))
    node.hears(quiet, b"_INBOX.q")
    report = service_pb2.ServiceReport(node="n2")
    node.hears(report, b"")
    (reply, body), heard = node.asked
    assert (reply, quiet.endswith(body), frames.parse(body, pb.QuietFetches).replicaID) == (b"_INBOX.q", True, "n2")
    assert heard == report
    assert (node.delivered, node.sent(), node.counters) == ([], [], {})


@pytest.mark.parametrize(
    "said", [b"", b"no frame", frames.encode(pb.ReplicationRequest(replicaID="n2")), frames.encode(QUESTION)[:-1] + b"\xff"]
)
def test_notify_subject_counts_an_invalid_message(node: Node, said: bytes) -> None:
    node.hears(said)
    assert (node.delivered, node.asked, node.sent()) == ([], [], [])
    ((name, count),) = node.counters.items()
    assert (name.startswith(REFUSED), count) == (True, 1)


def test_wake_up_with_a_stream_uid_is_delivered_only_to_that_stream(node: Node) -> None:
    """A recreated stream ignores wake-ups of the deleted one."""
    for replica in ("n2", "n3"):
        node.notifications.wake(KEY, do.NotifyReplica(replica=replica))
    (to, frame), (other, same) = node.sent()
    assert (to, other, frame) == ("liftpy.notify.n2", "liftpy.notify.n3", same)
    node.hears(frame, b"")
    older = pb.PartitionNotification(stream="orders", partition=2)
    node.hears(older, b"")
    assert node.delivered == [("orders", 2, uid, ev.NotificationReceived()) for uid in ("uid-1", "")]
    assert (node.asked, node.sent(), node.counters, node.bus.subject) == ([], [], {}, "liftpy.notify.n1")
    node.notifications.forget(KEY)
    node.notifications.forget(KEY)
    assert not node.notifications._wake_frames


def test_leadership_probe_is_answered_only_by_the_worker_that_hosts_the_partition() -> None:
    """The answer of another worker would depose a serving leader, or replace it too early."""
    hosts = share_of(KEY.stream, KEY.partition, 2)
    for number in range(2):
        node = Node(WorkerShare(number, 2))
        node.hears(QUESTION)
        node.hears(ASIDE)
        assert len(node.asked) == (2 if number == hosts else 0)
        assert len(node.sent()) == (1 if number == hosts else 0)
        node.hears(pb.PartitionNotification(stream="orders", partition=2, streamUid="uid-1"))
        assert len(node.delivered) == 1, "who has the partition takes it"
    assert not node.counters
