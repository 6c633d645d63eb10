"""What is given up while more comes than a node can take: not a byte before the server is about to cut, and enough then [A11]."""

from __future__ import annotations

from liftpy.replica.overflow import BLIND_RATE_BYTES, LIMIT_BYTES, Overflow

MIB = 1024 * 1024
MS = 1_000_000
START_NS = 1_000_000 * MS
MAX_PENDING = 64 * MIB
GATE = 48 * MIB


class Server:
    """A nats-server with fast publishers, and a node that stores so much a second; in steps of a millisecond."""

    def __init__(self, publishers: int, *, stored_rate: int = 25 * MIB, answer_ms: int | None = 20, every_ms: int = 20) -> None:
        self.held_each = publishers * 10 * MIB // 1000
        """In a millisecond, once the publishers are held back."""
        self.free_each = publishers * 60 * MIB // 1000
        self.stored_each = stored_rate // 1000
        self.answer_ms, self.every_ms = answer_ms, every_ms
        self.pending = self.given_up = self.done = self.most = 0
        self.overflow = Overflow()

    def run(self, seconds: float) -> None:
        answers: list[tuple[int, int, int, int]] = []
        for ms in range(int(seconds * 1000)):
            now_ns = START_NS + ms * MS
            self.pending += self.held_each if self.pending > GATE else self.free_each
            if self.answer_ms is not None and ms % self.every_ms == 0:
                answers.append((now_ns + self.answer_ms * MS, self.pending, self.done, now_ns))
            while answers and answers[0][0] <= now_ns:
                _, pending, done, asked_ns = answers.pop(0)
                self.overflow.heard(pending, done, asked_ns)
            excess = min(self.overflow.excess_bytes(True, self.done, now_ns), MIB)
            self.given_up += excess
            gone = min(self.pending, excess + self.stored_each)
            self.done += gone
            self.pending -= gone
            self.most = max(self.most, self.pending)


def test_as_many_publishers_as_the_server_can_hold_back_lose_nothing() -> None:
    for publishers in (1, 2):
        server = Server(publishers)
        server.run(20)
        assert server.given_up == 0
        assert server.most < MAX_PENDING


def test_with_more_publishers_only_what_exceeds_is_given_up_and_nothing_is_cut() -> None:
    for publishers in (4, 6, 12, 20):
        server = Server(publishers)
        server.run(20)
        assert server.most < MAX_PENDING
        excess = (publishers * 10 * MIB - 25 * MIB) * 20
        assert 0 < server.given_up < excess * 1.2 + 64 * MIB


def test_answers_that_come_late_are_enough() -> None:
    server = Server(6, answer_ms=150)
    server.run(20)
    assert server.most < MAX_PENDING


def test_a_server_that_says_nothing_is_read_at_a_rate_and_faster_after_each_cut() -> None:
    server = Server(4, answer_ms=None)
    server.run(4)
    assert server.most < MAX_PENDING
    assert server.overflow.blind_rate_bytes == BLIND_RATE_BYTES
    server.overflow.cut_off()
    assert server.overflow.blind_rate_bytes == 2 * BLIND_RATE_BYTES


def test_nothing_is_given_up_while_there_is_room() -> None:
    overflow = Overflow()
    overflow.heard(60 * MIB, 0, START_NS)
    assert overflow.excess_bytes(False, 0, START_NS + 1) == 0
    overflow.heard(60 * MIB, 0, START_NS + 2)
    assert overflow.excess_bytes(True, 0, START_NS + 3) == 60 * MIB - LIMIT_BYTES


def test_a_write_never_takes_as_long_as_the_servers_deadline() -> None:
    """Nothing is stored at all, and the server holds little: it is read through all the same."""
    server = Server(1, stored_rate=0)
    server.held_each = server.free_each = 0
    server.pending = 40 * MIB
    server.run(8)
    assert server.pending == 0


def test_a_server_with_a_lower_bound_is_believed_after_its_first_cut() -> None:
    overflow = Overflow()
    overflow.cut_at(4 * MIB)
    assert overflow.limit_bytes == 4 * MIB * 13 // 16
    overflow.cut_at(MAX_PENDING)
    assert overflow.limit_bytes == 4 * MIB * 13 // 16


def test_an_answer_that_was_overtaken_counts_for_nothing() -> None:
    overflow = Overflow()
    overflow.heard(10 * MIB, 0, START_NS + 5)
    overflow.heard(63 * MIB, 0, START_NS)
    assert overflow.backlog_bytes == 10 * MIB
