"""``traceparent`` of W3C Trace Context: who has sent a message, within which trace. Pure.

Whatever is not one exactly is none: the message it came with is stored and handed on as it is, and no span is made for it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TRACEPARENT = "traceparent"
"""The header's name, in this case alone: as OpenTelemetry's propagators write it."""
TRACEPARENT_BYTES = 55
"""Of a header of version 00; of a later one at least."""
MAX_TRACEPARENT_BYTES = 512
SAMPLED = 0x01
_FIELDS = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class TraceContext(NamedTuple):
    """``trace_id``: of 16 bytes, ``span_id``: of 8, neither 0. ``flags``: 8 bits."""

    trace_id: int
    span_id: int
    flags: int

    @property
    def sampled(self) -> bool:
        """Whether its sender records it."""
        return bool(self.flags & SAMPLED)


def parse_traceparent(value: bytes) -> TraceContext | None:
    """What ``value`` says; None where it is malformed."""
    size, fields = len(value), _FIELDS.match(value)
    if fields is None or size > MAX_TRACEPARENT_BYTES:
        return None
    version, trace_id, span_id, flags = [int(digits, 16) for digits in fields.groups()]
    if version == 0xFF or not trace_id or not span_id:
        return None
    if size > TRACEPARENT_BYTES and (version == 0 or value[TRACEPARENT_BYTES] != 0x2D):
        return None
    return TraceContext(trace_id, span_id, flags)


def traceparent(context: TraceContext) -> bytes:
    """The header of ``context``, of version 00."""
    return b"00-%032x-%016x-%02x" % context
