"""Bus: what a nats-server does with messages, in one event loop: subscriptions, wildcards, queue groups, "nobody listens".

Everything here runs on the thread of the cluster's own loop; what comes from and goes to clients crosses over in ``connection``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import count

Sink = Callable[[bytes, bytes, bytes, bytes], None]
"""``sink(subject, reply, payload, header block)`` takes one message."""
MAX_PAYLOAD_BYTES = 1 << 20
"""Of one message with its headers: what a nats-server takes unless it is told otherwise."""
MAX_REMEMBERED = 4096
"""Subjects of which it is remembered who listens; one more, and all are looked up anew."""
NOBODY = b"NATS/1.0 503\r\n\r\n"
_TOKENS = {b"*": rb"[^.]+", b">": rb"[^.]+(?:\.[^.]+)*"}


class BusSubscription:
    """One interest in a subject; ``close`` ends it."""

    __slots__ = ("_bus", "fits", "number", "queue", "sink", "subject")

    def __init__(self, bus: Bus, number: int, subject: bytes, sink: Sink, queue: bytes) -> None:
        self._bus = bus
        self.number = number
        self.subject = subject
        self.sink = sink
        self.queue = queue
        parts = [_TOKENS.get(token) or re.escape(token) for token in subject.split(b".")]
        self.fits = re.compile(rb"\.".join(parts), re.DOTALL).fullmatch

    def close(self) -> None:
        """Nothing comes any more."""
        self._bus.forget(self)

    def leave(self) -> None:
        """The same: nothing is ever on its way here."""
        self.close()


class Bus:
    """``later(callback)``: in the next turn of the loop."""

    def __init__(self, later: Callable[[Callable[[], None]], object], max_payload: int = MAX_PAYLOAD_BYTES) -> None:
        self.max_payload = max_payload
        self._later = later
        self._subscriptions: dict[int, BusSubscription] = {}
        self._numbers = count(1)
        self._known: dict[bytes, tuple[list[BusSubscription], dict[bytes, list[BusSubscription]]]] = {}
        """Subject -> who listens without a queue, and who by queue."""
        self._turn = 0
        """Of the members of queue groups."""
        self._reading = False
        self._behind: list[Callable[[], None]] = []

    # ---- who listens ---------------------------------------------------------------------------------------------------
    def listen(self, subject: str | bytes, sink: Sink, queue: str | bytes = b"") -> BusSubscription:
        """Give ``sink`` every message that fits; with ``queue`` one of all that named the same."""
        made = BusSubscription(self, next(self._numbers), _bytes(subject), sink, _bytes(queue))
        self._subscriptions[made.number] = made
        self._known.clear()
        return made

    def forget(self, subscription: BusSubscription) -> None:
        """It has been closed."""
        if self._subscriptions.pop(subscription.number, None) is not None:
            self._known.clear()

    def _listeners(self, subject: bytes) -> tuple[list[BusSubscription], dict[bytes, list[BusSubscription]]]:
        found = self._known.get(subject)
        if found is None:
            plain: list[BusSubscription] = []
            queues: dict[bytes, list[BusSubscription]] = {}
            for subscription in self._subscriptions.values():
                if subscription.fits(subject):
                    (queues.setdefault(subscription.queue, []) if subscription.queue else plain).append(subscription)
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            found = self._known[subject] = (plain, queues)
        return found

    # ---- messages ------------------------------------------------------------------------------------------------------
    def publish(self, subject: bytes, reply: bytes, payload: bytes, block: bytes = b"") -> int:
        """Give it to all who listen, at once; return how many did. ``block``: the header block as it travels, b'' for none."""
        plain, queues = self._listeners(subject)
        for subscription in list(plain):
            subscription.sink(subject, reply, payload, block)
        for members in list(queues.values()):
            self._turn += 1
            members[self._turn % len(members)].sink(subject, reply, payload, block)
        return len(plain) + len(queues)

    def send(self, subject: str | bytes, chunks: Sequence[bytes | memoryview]) -> None:
        """Publish the concatenation of ``chunks``."""
        self.publish(_bytes(subject), b"", b"".join(chunks))

    def send_lines(self, lines: Sequence[bytes]) -> None:
        """Answers to publishers: lines ``PUB <inbox>  <size>``, each with its payload."""
        for line in lines:
            head, _, rest = line.partition(b"\r\n")
            _, subject, size = head.split()
            self.publish(subject, b"", rest[: int(size)])

    def together(self, deliver: Callable[[], None]) -> None:
        """What ``deliver`` publishes has arrived together: sinks are called behind all of it by ``behind_read``."""
        self._reading = True
        try:
            deliver()
        finally:
            self._reading = False
            behind, self._behind = self._behind, []
            for callback in behind:
                callback()

    def behind_read(self, callback: Callable[[], None]) -> None:
        """Call back when everything that arrives together has been given to its sinks."""
        if self._reading:
            self._behind.append(callback)
        else:
            self._later(callback)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
