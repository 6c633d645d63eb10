"""The header block of a NATS message, as nats-server passes it on."""

from __future__ import annotations

Headers = list[tuple[str, bytes]]
"""Names and values, in order; names may repeat."""

_STATUS_LINE = b"NATS/1.0"
_TEXT = ("utf-8", "surrogateescape")


def parse_headers(block: bytes) -> Headers:
    """Names and values of a NATS header block, in order, repeated names kept; a malformed line is left out.
    Blanks before a value are none of it, those behind it are, as nats-server has it."""
    found: Headers = []
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon and name:
            found.append((name.decode(*_TEXT), value.lstrip(b" \t")))
    return found


def is_status(block: bytes, payload: bytes) -> bool:
    """Whether a message is the NATS server's own word (503: no responders) and not a publisher's."""
    return not payload and block[len(_STATUS_LINE) : len(_STATUS_LINE) + 1] == b" "
