"""Simulated NATS: at most once, in order per sender, subject and receiver.

What it does that a perfect network does not: delays of any length, loss, duplicates (of retries and reconnect buffers), reordering
across subjects, interest that becomes visible late, no-responders answers, several responders on one subject, slow consumers
(a subscriber's messages are dropped in silence for a while), disconnects (everything on its way to the node is gone),
cuts in one direction between two nodes, and payloads above ``max_payload`` that are refused at the sender.

Messages are values; record batches inside them are real bytes. Every link draws from its own generator, so that taking one
fault out of a schedule changes as little as possible elsewhere.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from liftpy.core.replication.lease import INGEST, REPLICATION
from tests.simulation.replica.clock import MS, Clock, S

Reply = Callable[[Any], None]
Handler = Callable[[Any, Reply], None]
Gate = Callable[[str, str, Any, Callable[[], None]], bool]

SILENT_NS = 6 * S
"""Time without an answer to a ping after which a client treats its connection as lost, in nanoseconds."""
NO_RESPONDERS = "no responders"
"""Answer to a request without subscribers."""


@dataclass(slots=True)
class Noise:
    """Faults of the network. Probabilities per message. Times in ns."""

    delay_ns: int = MS // 4
    jitter_ns: int = MS // 2
    loss: float = 0.0
    duplicate: float = 0.0
    spike: float = 0.0
    """Probability that a message takes up to ``spike_ns`` longer, and with it all behind it on its subject."""
    spike_ns: int = 200 * MS
    interest_ns: int = 2 * MS
    """Time until all servers know a new subscription, in nanoseconds."""

    def calm(self) -> None:
        """Return the noise with delays only."""
        self.loss = self.duplicate = self.spike = 0.0


@dataclass(slots=True)
class _Subscription:
    node: str
    handler: Handler
    visible_ns: int
    closed: bool = False

    def handle(self, message: Any, reply: Reply) -> None:
        """Handle a message as a client library does: one of a closed subscription is dropped."""
        if not self.closed:
            self.handler(message, reply)


@dataclass(frozen=True, slots=True)
class _Way:
    """Way of one message: sender, receiver, subject and connection."""

    sender: str
    receiver: str
    subject: str
    link: str


def link_of(subject: str) -> str:
    """Return the connection that carries a subject: publishes and acks, reads, or node traffic."""
    if ".read." in subject:
        return "reads"
    stream, _, number = subject.partition(".")
    return INGEST if number.isdigit() and stream else REPLICATION


class Network:
    """All connections. ``alive(node)``: whether a node's process can receive, even paused."""

    def __init__(self, clock: Clock, seed: int, noise: Noise, deliver: Callable[[str, Callable[[], None]], None]) -> None:
        self.clock = clock
        self.noise = noise
        self.counters: Counter[str] = Counter()
        self.max_payload_bytes = 1 << 20
        self.down: set[str] = set()
        """Nodes that are cut off from NATS."""
        self.cuts: set[tuple[str, str]] = set()
        """(from, to): nothing passes in this direction."""
        self.links_down: set[tuple[str, str]] = set()
        """(node, connection): one of a node's separate connections is gone, the others go on."""
        self.half_open: set[tuple[str, str, bool]] = set()
        """(node, connection, whether what it sends is lost, else what it is sent): neither end has noticed yet."""
        self.slow: set[str] = set()
        """Nodes whose subscriptions drop what arrives."""
        self.once: set[str] = set()
        """Subjects on which nothing is duplicated: a publisher that sends twice means two messages."""
        self.gate: Gate | None = None
        """Function of a script: ``gate(sender, receiver, message, arrive)`` returns True to keep a message, and calls
        ``arrive`` later.
        """
        self._seed = seed
        self._deliver = deliver
        self._subscriptions: dict[str, list[_Subscription]] = {}
        self._random: dict[tuple[str, str], random.Random] = {}
        self._last_ns: dict[tuple[str, str, str], int] = {}
        self._generation: Counter[str] = Counter()

    # ---- subscriptions -----------------------------------------------------------------------------------------------
    def subscribe(self, node: str, subject: str, handler: Handler) -> None:
        """Subscribe. ``handler(message, reply)`` is called for each message. Others learn of it a little later."""
        self.unsubscribe(node, subject)
        visible_ns = self.clock.now_ns + self._rng(node, "interest").randrange(self.noise.interest_ns + 1)
        self._subscriptions.setdefault(subject, []).append(_Subscription(node, handler, visible_ns))

    def unsubscribe(self, node: str, subject: str) -> None:
        """Unsubscribe. Messages on their way are dropped at the node."""
        held = self._subscriptions.get(subject, [])
        for subscription in held:
            subscription.closed = subscription.closed or subscription.node == node
        self._subscriptions[subject] = [s for s in held if s.node != node]

    def disconnect(self, node: str) -> None:
        """The node's process is gone, or its connection: subscriptions and everything on its way to it are lost."""
        self._generation[node] += 1
        for subject in self._subscriptions:
            self.unsubscribe(node, subject)

    def drop_in_flight(self, node: str) -> None:
        """A reconnect: what was on its way to the node is lost, the subscriptions are made again."""
        self._generation[node] += 1

    def settled_ns(self, subject: str, node: str) -> int:
        """Return when all messages on their way to ``node`` will have arrived."""
        return max((at_ns for (_, on, to), at_ns in self._last_ns.items() if (on, to) == (subject, node)), default=0)

    # ---- messages ------------------------------------------------------------------------------------------------------
    def publish(self, sender: str, subject: str, message: Any) -> None:
        """Publish to all known subscribers."""
        self._send(sender, subject, message, _no_reply)

    def request(self, sender: str, subject: str, message: Any, on_reply: Reply) -> None:
        """``on_reply`` gets each answer (several are possible), or NO_RESPONDERS; time-outs are the caller's."""

        def reply_to(responder: str) -> Reply:
            way = _Way(responder, sender, "_INBOX", link)
            return lambda answer: self._transmit(way, answer, lambda: on_reply(answer))

        link = link_of(subject)
        if not self._send(sender, subject, message, reply_to) and sender not in self.down:
            self.counters["no responders"] += 1
            self._transmit(_Way(sender, sender, "_INBOX", link), NO_RESPONDERS, lambda: on_reply(NO_RESPONDERS))

    def _send(self, sender: str, subject: str, message: Any, reply_to: Callable[[str], Reply]) -> int:
        link = link_of(subject)
        if sender in self.down or (sender, link) in self.links_down:
            self.counters["sent while cut off"] += 1
            return 0
        now_ns, count = self.clock.now_ns, 0
        for subscription in self._subscriptions.get(subject, ()):
            if subscription.visible_ns > now_ns:
                continue
            count += 1
            node, handler = subscription.node, subscription.handle
            arrive = lambda n=node, h=handler: h(message, reply_to(n))  # noqa: E731
            self._transmit(_Way(sender, node, subject, link), message, arrive)
        return count

    def _transmit(self, way: _Way, message: Any, arrive: Callable[[], None]) -> None:
        sender, receiver = way.sender, way.receiver
        rng, noise = self._rng(sender, receiver), self.noise
        if self.gate is not None:
            generation = self._generation[receiver]
            if self.gate(sender, receiver, message, lambda: self._arrive(way, generation, arrive)):
                return
        if noise.loss and rng.random() < noise.loss:
            self.counters["lost"] += 1
            return
        delay_ns = noise.delay_ns + int(rng.random() * noise.jitter_ns)
        if noise.spike and rng.random() < noise.spike:
            self.counters["delayed"] += 1
            delay_ns += int(rng.random() * noise.spike_ns)
        path = (sender, way.subject, receiver)
        at_ns = max(self.clock.now_ns + delay_ns, self._last_ns.get(path, 0))
        self._last_ns[path] = at_ns
        generation = self._generation[receiver]
        self.clock.at(at_ns, lambda: self._arrive(way, generation, arrive))
        if noise.duplicate and way.subject not in self.once and rng.random() < noise.duplicate:
            self.counters["duplicated"] += 1
            again_ns = at_ns + int(rng.random() * noise.spike_ns)
            self.clock.at(again_ns, lambda: self._arrive(way, generation, arrive))

    def _arrive(self, way: _Way, generation: int, arrive: Callable[[], None]) -> None:
        sender, receiver = way.sender, way.receiver
        if (sender, way.link) in self.links_down or (receiver, way.link) in self.links_down:
            self.counters["cut with a connection"] += 1
        elif (sender, way.link, True) in self.half_open or (receiver, way.link, False) in self.half_open:
            self.counters["lost on a half-open connection"] += 1
        elif sender in self.down or receiver in self.down or (sender, receiver) in self.cuts:
            self.counters["cut"] += 1
        elif generation != self._generation[receiver]:
            self.counters["lost with a connection"] += 1
        elif receiver in self.slow and sender != receiver:
            self.counters["dropped by a slow consumer"] += 1
        else:
            self._deliver(receiver, arrive)

    def _rng(self, sender: str, receiver: str) -> random.Random:
        rng = self._random.get((sender, receiver))
        if rng is None:
            rng = self._random[sender, receiver] = random.Random(f"{self._seed}/{sender}/{receiver}")
        return rng


def _no_reply(responder: str) -> Reply:
    return lambda answer: None
