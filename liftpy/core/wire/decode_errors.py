"""Under which names frames that are not taken are counted: one row of names, in status and metrics, by reason. Pure.

A node counts into plain counters, and whoever shows them takes the names that begin with ``REFUSED`` apart from the rest. So a frame
that is refused is in exactly one of them, whoever refused it, and a new reason needs no new metric.

Whether a message holds fields that this version does not know: then it says more than was understood. Pure.

protobuf keeps what it does not know, and hands it on unread. Whoever decides by a message, or keeps what is in it, must not go on as
if that had not been said.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import Message

from liftpy.errors import LiftError, ProtocolError

REFUSED = "refused: "
REPLY = f"{REFUSED}reply subject"
"""No inbox, or not the asker's own."""
IMPLAUSIBLE = f"{REFUSED}implausible request id"
"""A fetch whose id can't be its follower's next one: late, or from the future."""


def refused(error: LiftError) -> str:
    """The name under which a frame is counted that raised ``error``."""
    return REFUSED + (error if isinstance(error, ProtocolError) else ProtocolError).reason


def by_reason(counters: Mapping[str, int]) -> dict[str, int]:
    """Return the counters of rejected frames by reason. Prefixes such as ``metadata:`` stay."""
    found = {}
    for name, count in counters.items():
        part, marker, reason = name.partition(REFUSED)
        if marker and part in ("", "metadata: "):
            found[part + reason] = count
    return found


def has_unknown_fields(message: Message) -> bool:
    """Return whether the message, or a message in it, has fields that this version does not know, and remove them.

    It takes about 0.3 us for a request.
    """
    size_bytes = message.ByteSize()
    message.DiscardUnknownFields()
    return bool(message.ByteSize() != size_bytes)
