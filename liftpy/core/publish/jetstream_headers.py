"""Checks the JetStream headers of a publish: which are supported, and which lead to a rejection. Pure.

If a JetStream server would act on a header, then this node acts on it too, or rejects the publish with the code and text of
nats-server. Header names are case-sensitive. A message without a ``Nats-`` header costs one search of its bytes. Checks run
in the order of nats-server.

Example: ``Nats-Rollup: all`` with ``Nats-Expected-Last-Sequence: 7`` on a stream whose last sequence is 9 gets "wrong last
sequence: 9". With 9, it gets "rollup not permitted".

Source: nats-server 2.15, ``jetstream_batching.go``, ``stream.go``, ``errors.json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from liftpy.core.publish.dedup_window import MAX_ID_BYTES, MESSAGE_ID
from liftpy.core.wire.headers import Headers
from liftpy.core.wire.rejections import Rejection, RejectReason

EXPECTED_LAST_SEQUENCE = "Nats-Expected-Last-Sequence"
FAST_BATCH_REPLY = b".$FI"
"""Last token of the reply subject of a fast batch."""
MAX_BLOCK_BYTES = 65_535
"""Maximum size of a NATS header block, in bytes."""
_PREFIX = "Nats-"
_MARK = b"\nNats-"
OF_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
OF_SUBJECT_NAMED = "Nats-Expected-Last-Subject-Sequence-Subject"
LAST_MSG_ID = "Nats-Expected-Last-Msg-Id"
_EXPECTED_STREAM = "Nats-Expected-Stream"
_TTL = "Nats-TTL"
_SCHEDULE = "Nats-Schedule"
_INCR = "Nats-Incr"
_INTEGER = re.compile(rb"[+-]?[0-9]{1,400}")
_UNITS = {b"ns": 1e-9, b"us": 1e-6, b"\xc2\xb5s": 1e-6, b"ms": 1e-3, b"s": 1.0, b"m": 60.0, b"h": 3600.0}
_PART = re.compile(rb"([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(ns|us|\xc2\xb5s|ms|s|m|h)")
_DURATION = re.compile(rb"[+-]?(?:(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:ns|us|\xc2\xb5s|ms|s|m|h)){1,16}")


def _unsupported_rejection(err_code: int, detail: str, code: int = 400) -> Rejection:
    return Rejection(RejectReason.UNSUPPORTED, detail, (code, err_code))


FAST_BATCH = _unsupported_rejection(10205, "batch publish is disabled")
BLOCK_TOO_LARGE = Rejection(RejectReason.TOO_LARGE, "header size exceeds maximum allowed of 64k", (400, 10097))
ID_TOO_LONG = Rejection(
    RejectReason.TOO_LARGE, f"The header {MESSAGE_ID} has more than {MAX_ID_BYTES} bytes. Use a shorter id."
)
_ATOMIC_BATCH = _unsupported_rejection(10174, "atomic publish is disabled")
_OTHER_STREAM = Rejection(RejectReason.WRONG_STREAM, "expected stream does not match")
_NO_SEQUENCE = _unsupported_rejection(10193, "missing sequence for expected last sequence per subject")
_NO_TTL = _unsupported_rejection(10165, "invalid per-message TTL")
_NO_INCR = _unsupported_rejection(10171, "message counter increment is invalid")
_STREAM_SOURCE = "Nats-Stream-Source"
_FIRST = {
    "Nats-Batch-Id": _ATOMIC_BATCH,
    "Nats-Batch-Sequence": _ATOMIC_BATCH,
    "Nats-Batch-Commit": _ATOMIC_BATCH,
    _INCR: _unsupported_rejection(10168, "message counters is disabled"),
    _TTL: _unsupported_rejection(10166, "per-message TTL is disabled"),
}
"""Headers that are checked before the expected sequence. The stream's name is checked before ``Nats-TTL``."""
_THEN = {
    _STREAM_SOURCE: _unsupported_rejection(10227, "message stream source header is not allowed"),
    OF_SUBJECT_NAMED: _NO_SEQUENCE,
    _SCHEDULE: _unsupported_rejection(10188, "message schedules is disabled"),
    "Nats-Rollup": _unsupported_rejection(10111, "rollup not permitted", 500),
}
"""Headers that are checked after the expected sequences of the stream and of the subject."""
_JUDGED = {*_FIRST, *_THEN, _EXPECTED_STREAM, EXPECTED_LAST_SEQUENCE, OF_SUBJECT, LAST_MSG_ID}
_MAX_DIGITS = 19
"""Maximum number of digits of a sequence, which has 63 bits."""


class PublishConditions(NamedTuple):
    """Conditions in the headers of a publish, without the condition on the last sequence of the stream."""

    sequence: int | None
    """Expected last sequence of a subject. None: no condition.

    0: the subject must have no record. -1: the header is no number, so the condition never holds.
    """
    subject: str
    """Subject or filter of the condition. '': the subject of the message itself."""
    last_id: bytes
    """Expected message id of the last record. b"": no condition."""


def asks(block: bytes) -> bool:
    """Return whether the header block of a message may contain a header on which a JetStream server would act."""
    return _MARK in block


def rejection_before_sequence(headers: Headers, stream: str, partition: int) -> Rejection | None:
    """Return the rejection of a message because of headers that nats-server checks before the expected sequence. None: it passes."""
    values = {
        name: value for name, value in reversed(headers) if name.startswith(_PREFIX) and value
    }  # if there are several, the first one counts
    for name, rejection in _FIRST.items():
        if name == _INCR and name in values and not _INTEGER.fullmatch(values[name]):
            return _NO_INCR
        if name in values and name != _TTL:
            return rejection
    expected = values.get(_EXPECTED_STREAM)
    names = stream, stream_of(stream, partition), f"{stream}.{partition}"  # the last one is in acks of earlier builds
    if expected is not None and expected.decode("utf-8", "replace") not in names:
        return _OTHER_STREAM
    return _ttl_refused(values[_TTL]) if _TTL in values else None


def _ttl_refused(value: bytes) -> Rejection | None:
    """Return the rejection of a message with the TTL header ``value``. None: the TTL is 0 or ignored.

    Valid values are ``never``, a Go duration, or whole seconds.
    """
    if value == b"never":
        return _FIRST[_TTL]
    if value != b"0" and value.isdigit():
        return _FIRST[_TTL] if value.strip(b"0") else None
    if not _DURATION.fullmatch(value) or value.startswith(b"-"):
        return _NO_TTL
    parts = _PART.findall(value)
    return _FIRST[_TTL] if sum(float(number) * _UNITS[unit] for number, unit in parts) >= 1 else _NO_TTL


def rejection_after_sequence(headers: Headers) -> Rejection | None:
    """Return the rejection of a message because of headers that nats-server checks after the expected sequence. None: it passes."""
    names = [name for name, value in headers if name.startswith(_PREFIX) and value]
    for name, rejection in _THEN.items():
        if name == OF_SUBJECT_NAMED and OF_SUBJECT in names:
            continue
        if name in names or (name == _SCHEDULE and any(other.startswith(name) for other in names)):
            return rejection
    return None


def expected_in(headers: Headers) -> PublishConditions | None:
    """Return the conditions in the headers of a publish. None: it has none.

    The condition on the last sequence of the stream is not included. If a header occurs several times, the first one counts.
    """
    values = {name: value for name, value in reversed(headers) if name in (OF_SUBJECT, OF_SUBJECT_NAMED, LAST_MSG_ID)}
    sequence, last_id = values.get(OF_SUBJECT), values.get(LAST_MSG_ID, b"")
    if not sequence and not last_id:
        return None
    subject = values.get(OF_SUBJECT_NAMED, b"").decode("utf-8", "surrogateescape")
    return PublishConditions(number_of(sequence) if sequence else None, subject, last_id)


def number_of(text: bytes) -> int:
    """Return the sequence or offset in a header, or -1 if it is not a number."""
    return int(text) if text.isdigit() and len(text) <= _MAX_DIGITS else -1


def wrong_sequence(last: int) -> Rejection:
    """Return the rejection of a publish that expected another last sequence. ``last``: the last sequence in the log."""
    return Rejection(RejectReason.INCORRECT_OFFSET, f"wrong last sequence: {last}")


def wrong_last_id(last: bytes) -> Rejection:
    """Return the rejection of a publish that expected another last message id. ``last``: message id of the last record."""
    return Rejection(RejectReason.INCORRECT_OFFSET, f"wrong last msg ID: {last.decode('utf-8', 'replace')}", (400, 10070))


def asked_for(name: str) -> bool:
    """Return whether the header ``name`` is an instruction for the stream, such as a message id. Records do not contain it."""
    return name in _JUDGED or name.startswith(_SCHEDULE) or name == MESSAGE_ID


def first_refused(names: Iterable[str]) -> str:
    """Return the first of the header ``names`` that a record in a published batch must not have. '': all are allowed."""
    return next((name for name in sorted(names) if name in _JUDGED or name.startswith(_SCHEDULE)), "")


def stream_of(stream: str, partition: int) -> str:
    """Return the name of a partition in answers to JetStream clients: ``orders`` for partition 0, ``orders:1`` for partition 1.

    Each partition is a stream for them, with its own sequence. No other stream can have this name, and it is one token of a
    subject, so that the read API can find it.
    """
    return f"{stream}:{partition}" if partition else stream
