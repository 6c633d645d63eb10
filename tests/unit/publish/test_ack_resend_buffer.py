"""Test the buffer of recent acks, which a connection sends again after a server loss."""

from __future__ import annotations

from liftpy.core.publish.acks import AckResendBuffer


def test_ack_resend_buffer_returns_acks_of_the_last_interval_once() -> None:
    unsure = AckResendBuffer(age_ns=100)
    for at_ns, lines in ((0, b"a"), (50, b"bb"), (100, b"c"), (150, b"d")):
        unsure.note(lines, at_ns)
    assert unsure.size_bytes == 4, "what was written 100 before is kept still"
    assert unsure.again(160) == b"cd"
    assert (unsure.again(160), unsure.size_bytes) == (b"", 0)


def test_ack_resend_buffer_above_its_size_limit_drops_the_oldest_acks() -> None:
    unsure = AckResendBuffer(bound_bytes=5)
    for lines in (b"aa", b"bbb", b"c"):
        unsure.note(lines, 0)
    assert (unsure.size_bytes, unsure.again(0)) == (4, b"bbbc")
    unsure.note(b"too large", 0)
    assert (unsure.size_bytes, unsure.again(0)) == (0, b"")
