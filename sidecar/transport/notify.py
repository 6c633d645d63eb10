"""Sends and receives messages on ``<ns>.notify.<node>``.

They are notices of leaders, combined fetches, service reports, and requests of the metadata leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.worker_assignment import WHOLE, WorkerShare
from liftpy.core.replication import effects as do
from liftpy.core.replication import events, messages
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import replication_pb2 as pb
from liftpy.core.wire._pb import service_pb2
from liftpy.core.wire.decode_errors import REPLY, counter_name
from liftpy.core.wire.envelope import MessageType
from liftpy.core.wire.subjects import InboxRule, Subjects
from liftpy.errors import ProtocolError
from liftpy.nats.request_guard import RequestGuard
from sidecar.transport.connection import BusConnection, send_answer

Deliver = Callable[[str, int, str, events.Event], None]
"""Called with (stream, partition, stream uid or '', event).

It passes the event to the replica on this node, if there is one.
"""
BeginTransfer = Callable[[pb.StepAside, Callable[[], None]], None]
"""Called with (request, callback for the end of the leadership transfer)."""
QuietFetches = Callable[[bytes, memoryview], None]
"""Called with (reply subject, combined fetch without its envelope). Raises ProtocolError."""
Testify = Callable[[pb.LeaderQuestion], bool]
"""Returns whether this node serves as the leader that a request names."""
ServiceReported = Callable[[service_pb2.ServiceReport], None]
"""Called with the report of another replica about its services."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Functions that handle the requests on the notify subject of a node."""

    begin_transfer: BeginTransfer
    testify: Testify
    quiet_fetches: QuietFetches
    service_reported: ServiceReported


class Notifications:
    """Sends and receives the messages on the notify subjects, for a whole node.

    Each process of a node receives all messages, and processes those of its partitions (``share``).
    """

    def __init__(
        self,
        bus: BusConnection,
        subjects: Subjects,
        node_id: str,
        inboxes: InboxRule,
        deliver: Deliver,
        requests: Requests,
        counters: Counter[str],
        share: WorkerShare = WHOLE,
    ) -> None:
        self._share = share
        self._bus = bus
        self._subjects = subjects
        self._node_id = node_id
        self._inboxes = inboxes
        self._deliver = deliver
        self._requests = requests
        self._counters = counters
        guard = RequestGuard("notify", counters)
        self._listener = bus.listen(subjects.notify(node_id), guard.handler(self._notice_arrived))
        self._wake_frames: dict[PartitionKey, bytes] = {}

    def close(self) -> None:
        self._listener.close()

    def wake(self, key: PartitionKey, effect: do.NotifyReplica) -> None:
        """Send a notification to the follower in ``effect``, so that it fetches new records of the partition ``key``."""
        frame = self._wake_frames.get(key)
        if frame is None:
            frame = frames.seal(pb.PartitionNotification(stream=key.stream, partition=key.partition, streamUid=key.uid))
            self._wake_frames[key] = frame
        self._bus.send(self._subjects.notify(effect.replica), (frame,))

    def forget(self, key: PartitionKey) -> None:
        """Drop the stored notification frame of the partition ``key``, which is no longer on this node."""
        self._wake_frames.pop(key, None)

    def send_notice(self, key: PartitionKey, effect: do.SendNotice) -> None:
        """Send a LeaderNotice (leader, HW) about the partition ``key`` to the replicas in ``effect``."""
        notice = messages.NOTICE.to_pb(
            effect, stream=key.stream, streamUid=key.uid, partition=key.partition, leader=self._node_id
        )
        frame = frames.seal(notice)
        for replica in effect.replicas:
            self._bus.send(self._subjects.notify(replica), (frame,))

    def _notice_arrived(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes) -> None:
        try:
            kind, body = envelope.decode(payload)
            if kind is MessageType.PARTITION_NOTIFICATION:
                wake = frames.parse(body, pb.PartitionNotification)
                self._deliver(wake.stream, wake.partition, wake.streamUid, events.NotificationReceived())
                return
            if kind is MessageType.QUIET_FETCHES:
                self._requests.quiet_fetches(reply, body)
                return
            if kind is MessageType.SERVICE_REPORT:
                self._requests.service_reported(frames.parse(body, service_pb2.ServiceReport))
                return
            if kind in (MessageType.STEP_ASIDE, MessageType.LEADER_QUESTION) and not self._inboxes.allows(reply):
                self._counters[REPLY] += 1
                return
            if kind is MessageType.STEP_ASIDE:
                request = frames.parse(body, pb.StepAside)
                if not self._share.holds(request.stream, request.partition):
                    return  # another process of this node answers the request
                self._requests.begin_transfer(request, lambda: self._answer(reply, request))
                return
            if kind is MessageType.LEADER_QUESTION:
                question = frames.parse(body, pb.LeaderQuestion)
                if not self._share.holds(question.stream, question.partition):
                    return
                testimony = pb.LeaderTestimony(serves=self._requests.testify(question), question=question)
                self._answer(reply, testimony)
                return
            if kind is not MessageType.LEADER_NOTICE:
                raise ProtocolError(
                    f"Messages of type {kind.name} are not allowed on a notify subject. Check that all nodes run compatible "
                    "versions."
                )
            notice = frames.parse(body, pb.LeaderNotice)
        except ProtocolError as error:
            self._counters[counter_name(error)] += 1
            return
        self._deliver(notice.stream, notice.partition, notice.streamUid, messages.NOTICE_RECEIVED.from_pb(notice))

    def _answer(self, reply: bytes, answer: pb.StepAside | pb.LeaderTestimony) -> None:
        send_answer(self._bus, (self._inboxes,), self._counters, reply, (frames.seal(answer),))
