"""SimContender: an application that expects the last sequence of a subject with each message, beside others that do the same [A7]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy.config import AckPolicy
from liftpy.testing.clients import PUBLISH_TIMEOUT_NS, SimPublisher
from liftpy.testing.messages import Ack, Publish

if TYPE_CHECKING:
    from liftpy.ids import PartitionKey
    from liftpy.testing.world import World

_SUBJECTS = 9
_FRESH = 0.2
"""So often it is a subject that has no record yet."""
_WRONG_SEQUENCE = "10071"


class SimContender(SimPublisher):
    """Knows the last sequence of each subject by its own acks, or by having been told no."""

    def __init__(self, cluster: World, name: str, interval_ns: int, key: PartitionKey) -> None:
        self._known: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        """Number of a publish -> its subject."""
        super().__init__(cluster, name, interval_ns, key)

    def _turn(self) -> None:
        if self.stopped:
            return
        fresh = self._rng.random() < _FRESH
        self._contend(_SUBJECTS + self._rng.getrandbits(40) if fresh else int(self._rng.random() ** 3 * _SUBJECTS))
        self.cluster.clock.after(1 + int(self._rng.random() * 2 * self.interval_ns), self._turn)

    def _contend(self, subject: int) -> None:
        number, self._number = self._number, self._number + 1
        message_id, expected = self.cluster.new_id(self.name, number), self._known.get(subject, 0)
        self.cluster.checkers.expected[message_id] = subject, expected
        block = b"NATS/1.0\r\nSim-To: %d\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % (subject, expected)
        publish = Publish(self.name, number, (message_id,), AckPolicy.ALL, ())
        message = (publish.inbox(0), b"%d" % message_id, block)
        publish = Publish(self.name, number, (message_id,), AckPolicy.ALL, (message,))
        self.waiting[number], self._asked[number] = {0}, subject
        self.cluster.network.request(
            self.name, self.subject, publish, lambda answer: self._answered(number, AckPolicy.ALL, answer)
        )
        self.cluster.clock.after(PUBLISH_TIMEOUT_NS, lambda: self._timed_out(number))

    def _done(self, number: int, ack: Ack | None) -> None:
        super()._done(number, ack)
        subject = self._asked.pop(number)
        if ack is None:
            return
        if not ack.reason:
            self._known[subject] = ack.offset + 1
            self.cluster.counters["stored as expected"] += 1
        elif ack.reason == _WRONG_SEQUENCE:
            self._known[subject] = int(ack.detail.rsplit(" ", 1)[1])
            self.cluster.counters["last sequence of a subject told"] += 1
        elif "being read" in ack.detail:
            self.cluster.counters["told that subjects are being read"] += 1
