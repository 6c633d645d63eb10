"""``answered_by``: the requests that one ack answers, as a client reads it."""

from __future__ import annotations

from liftpy.core.wire.envelope import split_numbered_reply


def answered_by(reply: bytes, record_count: int) -> list[bytes]:
    """Return the reply subjects of the requests that one Ack answers.

    ``reply``: subject of the Ack. ``record_count``: number in the Ack. 0: it answers one request.
    """
    inbox, number = split_numbered_reply(reply)
    return [reply] if record_count <= 1 or number < 0 else [b"%b.%d" % (inbox, number + n) for n in range(record_count)]
