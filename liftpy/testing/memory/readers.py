"""Readers: the subjects on which readers ask one replica in memory; what is answered is decided in ``liftpy.replica.reads``."""

from __future__ import annotations

from collections.abc import Callable

from liftpy.config import NS_PER_S
from liftpy.ingest.state_transfer import StateGiver
from liftpy.replica.reads import Chunks, Reads, ReplicaSource
from liftpy.testing.memory.bus import BusSubscription
from liftpy.testing.memory.home import HeldReplica


class Readers:
    """The ``ReadShell`` of one replica's ``Reads``. Who asks is known by his reply subject."""

    def __init__(self, replica: HeldReplica, is_heard: Callable[[], bool], giver: StateGiver) -> None:
        self._replica = replica
        self._bus = replica.node.bus
        key, node, subjects = replica.key, replica.node, replica.node.subjects
        source = ReplicaSource(
            replica.replica,
            replica.log,
            failed=lambda: bool(replica.failed),
            is_heard=is_heard,
        )
        self._reads = Reads[str](key, node.node_id, source, self, node.counters, node.read_budget)
        self._reads.giver = giver
        self.advanced = self._reads.advanced
        self._subject = subjects.read(key.stream, key.partition)
        self._own = self._bus.listen(subjects.read_from(key.stream, key.partition, node.node_id), self._arrived)
        self._shared: BusSubscription | None = None

    def share(self, wanted: bool) -> None:
        """Join or leave those that answer anybody's reads."""
        if wanted and self._shared is None:
            self._shared = self._bus.listen(self._subject, self._arrived, self._subject)
        elif not wanted and self._shared is not None:
            self._shared.close()
            self._shared = None

    def close(self) -> None:
        """Listen no more, and answer everybody who waits: not here any more."""
        self.share(False)
        self._own.close()
        self._reads.close()

    def _arrived(self, subject: bytes, reply: bytes, payload: bytes, block: bytes) -> None:
        if self._replica.node.inboxes.allows(reply):
            self._reads.asked(payload, reply.decode())

    # ---- what carries the answers ----------------------------------------------------------------------------------------
    @property
    def max_payload(self) -> int:
        """Bytes of one message at most."""
        return self._bus.max_payload

    @property
    def has_room(self) -> bool:
        """Always: what is sent lies in the reader's own memory."""
        return True

    def now_ns(self) -> int:
        """Monotonic."""
        return self._replica.now_ns()

    def answer(self, asker: str, chunks: Chunks) -> None:
        """One message to the reply subject."""
        self._bus.send(asker, chunks)

    def request_failed(self, asker: str, error: Exception) -> None:
        """A defect: tests are to see it."""
        raise error

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Callable[[], None]:
        """A timer of the loop."""
        return self._replica.node.loop.call_at(at_ns / NS_PER_S, callback).cancel
