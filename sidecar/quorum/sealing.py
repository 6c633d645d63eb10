"""Frames of the metadata group on the bus: in an envelope with a CRC-32C, which also covers the sender and the receiver. Pure.

Goal: a frame is taken as it was sent, where it was meant to go, or not at all. The sessions above count what they get, and every
member believes the numbers in it; one bit of a term, or the group's own words said back to it in another's name, would be believed.

Layout behind the envelope: size of the names (1 byte) | ``<to>.<from>`` as in the subject | the frame.
"""

from __future__ import annotations

from liftpy.core.wire import envelope
from liftpy.core.wire.envelope import EnvelopeError, MessageType


def seal(to: str, sender: str, frame: bytes) -> bytes:
    """Return the payload for ``<ns>.raft.<to>.<sender>``."""
    names = f"{to}.{sender}".encode()
    return envelope.encode(MessageType.RAFT_FRAME, b"%c%b%b" % (len(names), names, frame), crc=True)


def unseal(to: str, sender: str, data: bytes) -> bytes:
    """Return the frame in a message of that subject. Raise ProtocolError if it is invalid."""
    payload = envelope.sealed_payload(data, MessageType.RAFT_FRAME)
    names = f"{to}.{sender}".encode()
    if payload[:1] != b"%c" % (len(names) & 255) or payload[1 : 1 + len(names)] != names:
        raise EnvelopeError(
            "A message of the metadata group arrived on the wrong subject. Check the NATS subject mappings.", "subject"
        )
    return bytes(payload[1 + len(names) :])
