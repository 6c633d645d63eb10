"""Test which bytes a node drops under overload, so that nats-server does not disconnect it as a slow consumer [A11]."""

from __future__ import annotations

from liftpy.core.replication.inflight_limits import BLIND_RATE_BYTES, FRESH_NS, LIMIT_BYTES, LoadShedding

MIB = 1024 * 1024
MS = 1_000_000
START_NS = 1_000_000 * MS
MAX_PENDING = 64 * MIB
GATE = 48 * MIB
BUFFER = 256 * MIB


class Server:
    """A nats-server with fast publishers, and a node that stores so much a second; in steps of a millisecond."""

    def __init__(self, publishers: int, *, stored_rate: int = 25 * MIB, answer_ms: int | None = 20, every_ms: int = 20) -> None:
        self.held_each = publishers * 10 * MIB // 1000
        """In a millisecond, once the publishers are held back."""
        self.free_each = publishers * 60 * MIB // 1000
        self.stored_each = stored_rate // 1000
        self.answer_ms, self.every_ms = answer_ms, every_ms
        self.pending = self.given_up = self.read = self.done = self.most = 0
        self.overflow = LoadShedding()

    def run(self, seconds: float) -> None:
        answers: list[tuple[int, int, int, int]] = []
        for ms in range(int(seconds * 1000)):
            now_ns = START_NS + ms * MS
            self.pending += self.held_each if self.pending > GATE else self.free_each
            if self.answer_ms is not None and ms % self.every_ms == 0:
                answers.append((now_ns + self.answer_ms * MS, self.pending, self.read, now_ns))
            while answers and answers[0][0] <= now_ns:
                _, pending, read, request_ns = answers.pop(0)
                self.overflow.record_pong(pending, read, request_ns)
            self.done = min(self.read, self.done + self.stored_each)
            self._step(now_ns)
            self.most = max(self.most, self.pending)

    def _step(self, now_ns: int) -> None:
        due = 0
        if self.waiting < BUFFER // 2:
            self.overflow.buffer_has_room()
        else:
            room = BUFFER - self.waiting
            due = self.overflow.due_bytes(room <= BUFFER // 16, self.read, self.done, now_ns)
            given_up = min(max(0, due - room), MIB)
            self.given_up += given_up
            self.done += given_up
        if self.waiting < BUFFER // 2 or due or not self.overflow.can_stop_reading(self.read, now_ns):
            size = min(self.pending, BUFFER - self.waiting, MIB)
            self.pending -= size
            self.read += size

    @property
    def waiting(self) -> int:
        return self.read - self.done


def test_slow_consumer_guard_with_few_publishers_drops_nothing() -> None:
    for publishers in (1, 2):
        server = Server(publishers)
        server.run(20)
        assert server.given_up == 0
        assert server.most < MAX_PENDING


def test_slow_consumer_guard_with_many_publishers_drops_only_bytes_above_the_read_rate() -> None:
    for publishers in (4, 6, 12, 20):
        server = Server(publishers)
        server.run(20)
        assert server.most < MAX_PENDING
        excess = (publishers * 10 * MIB - 25 * MIB) * 20
        assert excess * 0.7 - BUFFER < server.given_up < excess * 1.2


def test_slow_consumer_guard_with_late_server_answers_stays_below_the_server_limit() -> None:
    server = Server(6, answer_ms=150)
    server.run(20)
    assert server.most < MAX_PENDING


def test_slow_consumer_guard_of_a_silent_server_reads_at_a_fixed_rate_doubled_per_disconnect() -> None:
    server = Server(4, answer_ms=None)
    server.run(20)
    assert server.most < MAX_PENDING
    assert server.overflow.blind_rate_bytes == BLIND_RATE_BYTES
    server.overflow.connection_lost()
    assert server.overflow.blind_rate_bytes == 2 * BLIND_RATE_BYTES


def test_slow_consumer_guard_drops_the_bytes_above_the_server_limit() -> None:
    overflow = LoadShedding()
    overflow.record_pong(60 * MIB, 7, START_NS)
    assert not overflow.can_stop_reading(7, START_NS + 1)
    assert overflow.due_bytes(False, 7, 0, START_NS + 2) == 60 * MIB - LIMIT_BYTES
    assert overflow.due_bytes(True, 7 + 8 * MIB, 0, START_NS + 3) == 0
    assert overflow.can_stop_reading(7 + 8 * MIB, START_NS + 3)
    assert not overflow.can_stop_reading(7 + 8 * MIB, START_NS + FRESH_NS + 1), "that was long ago"


def test_slow_consumer_guard_never_lets_a_server_write_exceed_its_deadline() -> None:
    """Nothing is stored at all, and the server holds little: it is read through all the same."""
    server = Server(1, stored_rate=0)
    server.held_each = server.free_each = 0
    server.pending, server.read = 40 * MIB, BUFFER
    server.run(8)
    assert server.pending == 0
