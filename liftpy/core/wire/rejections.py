"""Rejections of publishes: the reason, and what the publisher gets to read."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class RejectReason(Enum):
    """Reason for the rejection of a publish. The numbers are those of ``Ack.Error``."""

    UNKNOWN = 1
    INCORRECT_OFFSET = 2
    TOO_LARGE = 3
    READ_ONLY = 5
    BELOW_MIN_ISR = 6
    NO_SPACE = 7
    NOT_LEADER = 8
    MALFORMED = 9
    OVERLOADED = 10
    WRONG_STREAM = 11
    UNSUPPORTED = 12
    PRODUCER_FENCED = 13
    OUT_OF_ORDER = 14
    DIVERGED_PRODUCER = 15
    UNKNOWN_PRODUCER = 16
    PRODUCER_CONFLICT = 17
    PAUSED = 18
    QUOTA = 19
    RECORDS_LOST = 20


class Rejection(NamedTuple):
    """Rejection of a message: reason, text for the publisher, and codes for JetStream clients."""

    reason: RejectReason
    detail: str
    jetstream: tuple[int, int] | None = None
    """(code, err_code) for a JetStream client. None: the codes of ``JETSTREAM_ERRORS``."""
