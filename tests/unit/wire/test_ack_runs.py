"""Test which messages one ack answers: consecutive reply numbers of one inbox [A8]."""

from __future__ import annotations

import random

from liftpy.core.wire.envelope import run_end, split_numbered_reply
from tests.ack_runs import answered_by
from tests.each import each


def test_batched_ack_ends_at_the_first_gap_in_reply_numbers() -> None:
    replies = [b"_INBOX.x.7", b"_INBOX.x.8", b"_INBOX.y.9", b"_INBOX.x.10", b"_INBOX.x.12", b"", b"_INBOX.x.13"]
    assert [run_end(replies, start, len(replies)) for start in (0, 1, 2, 3, 4, 6)] == [2, 2, 3, 4, 5, 7]
    assert run_end(replies, 0, 1) == 1


def test_batched_ack_of_any_length_includes_all_consecutive_replies() -> None:
    """Looked at in steps that grow: none of their ends may be taken for the run's."""
    replies = [b"a%%d.%d" % number for number in range(95, 400)]
    for end in (*range(1, 24), 84, 85, 86, 305):
        assert run_end(replies, 0, end) == end
        broken = [*replies[:end], b"a%%d.%d" % (95 + end + 1), *replies[end + 1 :]]
        assert run_end(broken, 0, len(broken)) == end


@each("digits", [b"0", b"7", b"10", b"1" * 18])
def test_batched_ack_reply_ends_with_its_number(digits: bytes) -> None:
    assert split_numbered_reply(b"_INBOX.x." + digits) == (b"_INBOX.x", int(digits))


@each("reply", [b"", b"_INBOX", b"_INBOX.", b".7", b"_INBOX.x", b"_INBOX.07", b"_INBOX.+7", b"_INBOX." + b"1" * 19])
def test_batched_ack_excludes_replies_without_a_number(reply: bytes) -> None:
    assert split_numbered_reply(reply) == (b"", -1)
    assert run_end([reply, reply], 0, 2) == 1
    assert answered_by(reply, 5) == [reply]


def test_batched_acks_sent_by_the_node_are_expanded_to_the_same_replies_by_the_client() -> None:
    """Whatever the node takes for a run is what the publisher takes it for."""
    rng = random.Random(7)
    for _ in range(300):
        inboxes = [b"_INBOX.%d" % rng.randrange(2) for _ in range(12)]
        replies = [b"%b.%d" % (inbox, place + rng.choice((98, 98, 98, 99))) for place, inbox in enumerate(inboxes)]
        start, told = 0, list[bytes]()
        while start < len(replies):
            end = run_end(replies, start, len(replies))
            assert end > start
            told += answered_by(replies[start], end - start)
            start = end
        assert told == replies


def test_batched_ack_of_one_record_or_less_answers_only_its_first_reply() -> None:
    assert [answered_by(b"_INBOX.x.7", count) for count in (0, 1, 2)] == [
        [b"_INBOX.x.7"],
        [b"_INBOX.x.7"],
        [b"_INBOX.x.7", b"_INBOX.x.8"],
    ]
