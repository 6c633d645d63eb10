"""SimRepeater: an application that sends each message under a ``Nats-Msg-Id`` again until it hears that it is stored [A3]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from liftpy.config import AckPolicy
from liftpy.testing.clients import PUBLISH_TIMEOUT_NS, SimPublisher
from liftpy.testing.clock import MS
from liftpy.testing.messages import Ack, Publish

if TYPE_CHECKING:
    from liftpy.ids import PartitionKey
    from liftpy.testing.world import World

_PATIENCE_MS = (1, 5, 20, 100, 400, PUBLISH_TIMEOUT_NS // MS)
"""It sends again after one of these without an answer: an impatient one meets its own message in every hand that it goes through."""
_MOST_ATTEMPTS = 40


class SimRepeater(SimPublisher):
    """One message at a time: sent again after a no or a time-out, never after a yes; given up after so many attempts."""

    def __init__(self, cluster: World, name: str, interval_ns: int, key: PartitionKey) -> None:
        self._message_id = 0
        self._attempts = 0
        super().__init__(cluster, name, interval_ns, key)

    def _turn(self) -> None:
        if self.stopped:
            return
        if not self._message_id:
            self._message_id, self._attempts = self.cluster.new_id(self.name, self._number), 0
            self.cluster.checkers.repeated.add(self._message_id)
            self._attempt(self._message_id)
        self.cluster.clock.after(1 + int(self._rng.random() * 2 * self.interval_ns), self._turn)

    def _attempt(self, message_id: int) -> None:
        if self.stopped or message_id != self._message_id:
            return
        self._attempts += 1
        number, self._number = self._number, self._number + 1
        block = b"NATS/1.0\r\nNats-Msg-Id: m%d\r\n\r\n" % message_id
        publish = Publish(self.name, number, (message_id,), AckPolicy.ALL, ())
        message = (publish.inbox(0), b"%d" % message_id, block)
        publish = Publish(self.name, number, (message_id,), AckPolicy.ALL, (message,))
        self.asked_all, self.asked_ns = self.asked_all + 1, self.asked_ns or self.cluster.clock.now_ns
        self.waiting[number] = {0}
        self.cluster.network.request(
            self.name, self.subject, publish, lambda answer: self._answered(number, AckPolicy.ALL, answer)
        )
        self.cluster.clock.after(self._rng.choice(_PATIENCE_MS) * MS, lambda: self._again(message_id))
        self.cluster.clock.after(PUBLISH_TIMEOUT_NS, lambda: self._timed_out(number))

    def _again(self, message_id: int) -> None:
        if self._attempts >= _MOST_ATTEMPTS and message_id == self._message_id:
            self._message_id = 0
        self._attempt(message_id)

    def _done(self, number: int, ack: Ack | None) -> None:
        super()._done(number, ack)
        if ack is not None and not ack.reason:
            self.cluster.counters["answered as a duplicate"] += ack.duplicate
            self._message_id = 0
