"""Requests and answers of JetStream's stateless read API, as bytes.

Requests have the subjects ``$JS.<domain>.API.`` and JSON bodies, as nats-server 2.15 accepts them. nats-server ignores
an unknown field. This module rejects it by name, because it may request something that is not supported. Answers are
those of nats-server 2.15.

A partition above 0 appears as a stream ``orders:1``. No other stream can have this name, and every client accepts it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from itertools import zip_longest
from typing import Any, NamedTuple

from liftpy.client.positions import Bounds
from liftpy.client.stream_info import StreamInfo
from liftpy.config import NS_PER_S
from liftpy.core.base.ids import check_name, quote
from liftpy.core.base.strict_json import load_json, whole_number
from liftpy.core.publish.jetstream_headers import stream_of
from liftpy.core.wire.batch import Record
from liftpy.core.wire.filters import MAX_SUBJECTS, Filter
from liftpy.core.wire.subjects import data_subject
from liftpy.errors import ConfigError, LiftError

MAX_BODY_BYTES = 64 * 1024
MAX_NUMBER = 1 << 62
MAX_BATCH = 100_000
_PAGES = frozenset({"offset", "subject"})
_INFO = frozenset({"deleted_details", "subjects_filter", "offset"})
_GET = frozenset({"seq", "last_by_subj", "next_by_subj", "start_time"})
_DIRECT = _GET | {"batch", "max_bytes", "multi_last", "up_to_seq", "up_to_time"}
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_LAST_NS = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES_PAGE, LIST_PAGE = 1024, 256
"""Maximum number of streams in one answer: with names only, and with configuration and state."""
API_LEVEL = 1
"""API level of nats-server 2.11: batch gets, and the newest message of several subjects. Higher levels concern writes."""
_TYPE = "io.nats.jetstream.api.v1.{}_response"
_ZERO = "0001-01-01T00:00:00Z"
_KEY = "Lift-Key"
_HEADER_NAME = re.compile(rb"[!-9;-~]+")
"""Header name that NATS clients accept: visible ASCII characters, except the colon."""


class Kind(Enum):
    """Kind of a JetStream request. The value is the type of its answer, '' for an answer that is not JSON."""

    INFO = "account_info"
    NAMES = "stream_names"
    LIST = "stream_list"
    STREAM = "stream_info"
    MESSAGE = "stream_msg_get"
    DIRECT = ""
    CONSUMER_NAMES = "consumer_names"
    CONSUMER_LIST = "consumer_list"
    NEXT = "next message of a consumer"
    """Direct get of the next message of a subject. It is answered like DIRECT, with a message or a status line."""
    OTHER = "api"


@dataclass(unsafe_hash=True)  # not frozen: a traceback is set on it
class JsRejection(Exception):
    """Rejection of a JetStream request.

    ``code``, ``err_code`` and ``text`` are those of JetStream's errors. A rejection of DIRECT is a status line and has
    no ``err_code``.
    """

    code: int
    err_code: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JsRequest:
    """One JetStream read request.

    ``sequence``: first sequence, from 1. 0: none. ``subjects``: subject filter. ``last``: return the newest matching
    record instead of the first one. ``multi``: return the newest record of each matching subject.
    """

    kind: Kind
    stream: str = ""
    partition: int = 0
    page_offset: int = 0
    subject: str = ""
    """Subject filter of NAMES and LIST requests: only streams that store this subject."""
    sequence: int = 0
    subjects: tuple[str, ...] = ()
    last: bool = False
    multi: bool = False
    start_ns: int | None = None
    batch: int = 0
    max_bytes: int = 0
    up_to: int = 0
    up_to_ns: int | None = None


_ALONE = {"INFO": Kind.INFO, "STREAM.NAMES": Kind.NAMES, "STREAM.LIST": Kind.LIST}
_OF_STREAM = {
    "STREAM.INFO.": Kind.STREAM,
    "STREAM.MSG.GET.": Kind.MESSAGE,
    "DIRECT.GET.": Kind.DIRECT,
    "CONSUMER.NAMES.": Kind.CONSUMER_NAMES,
    "CONSUMER.LIST.": Kind.CONSUMER_LIST,
    "CONSUMER.MSG.NEXT.": Kind.NEXT,
}


def kind_of(rest: str) -> tuple[Kind, str]:
    """Return (kind of a request, rest of its subject). The rest is the stream name, and for DIRECT also the record subject."""
    if rest in _ALONE:
        return _ALONE[rest], ""
    prefix = next((start for start in _OF_STREAM if rest.startswith(start)), "")
    return (_OF_STREAM[prefix], rest[len(prefix) :]) if prefix else (Kind.OTHER, "")


def parse_request(rest: str, body: bytes) -> JsRequest:
    """Parse a request on ``$JS.<domain>.API.<rest>`` with a JSON body. Raise JsRejection if it is not valid."""
    kind, tail = kind_of(rest)
    if kind is Kind.OTHER:
        raise JsRejection(
            400, 10003, f"bad request: {rest[:80]} is not supported. liftpy supports only requests that read streams"
        )
    if kind is Kind.NEXT:
        raise JsRejection(503, 0, "No Responders")
    if kind in (Kind.INFO, Kind.CONSUMER_NAMES, Kind.CONSUMER_LIST):
        stream, partition = ("", 0) if kind is Kind.INFO else _stream(kind, tail)
        return JsRequest(kind=kind, stream=stream, partition=partition)
    name, _, subject = tail.partition(".")
    stream, partition = ("", 0) if kind in (Kind.NAMES, Kind.LIST) else _stream(kind, name)
    if kind is Kind.DIRECT and subject:
        return JsRequest(kind=kind, stream=stream, partition=partition, subjects=(_subject(kind, subject),), last=True)
    if subject:
        raise JsRejection(404, 10059, "stream not found")
    fields = _fields(kind, body)
    if kind in (Kind.NAMES, Kind.LIST, Kind.STREAM):
        return _list_request(kind, stream, partition, fields)
    return _get_request(kind, stream, partition, fields)


def _bad(kind: Kind, text: str, status: str = "Bad Request") -> JsRejection:
    return JsRejection(408, 0, status) if kind is Kind.DIRECT else JsRejection(400, 10003, text)


def _stream(kind: Kind, name: str) -> tuple[str, int]:
    stream, _, number = name.partition(":")
    try:
        if number and not re.fullmatch("[1-9][0-9]{0,5}", number, re.ASCII):
            raise ConfigError(
                f"Invalid stream {quote(name)}: after the colon, use a partition from 1 to 999999. Partition 0 has no colon."
            )
        return check_name(stream, "stream"), int(number or 0)
    except LiftError:
        raise not_found(kind) from None


def not_found(kind: Kind) -> JsRejection:
    """Return the rejection of a request for an unknown stream. A request of the kind DIRECT is rejected like one without responders."""
    return JsRejection(503, 0, "No Responders") if kind is Kind.DIRECT else JsRejection(404, 10059, "stream not found")


def _fields(kind: Kind, body: bytes) -> Mapping[str, Any]:
    known = {Kind.NAMES: _PAGES, Kind.LIST: _PAGES, Kind.STREAM: _INFO, Kind.DIRECT: _DIRECT}.get(kind, _GET)
    if not body.strip():
        return {}
    try:
        if len(body) > MAX_BODY_BYTES:
            raise ValueError(f"the request is longer than {MAX_BODY_BYTES} bytes")
        fields = load_json(body)
        if not isinstance(fields, dict):
            raise ValueError("the request must be a JSON object")
    except ValueError as error:
        if kind is Kind.DIRECT:
            raise JsRejection(408, 0, "Malformed Request") from None
        raise JsRejection(400, 10025, f"invalid JSON: {str(error)[:100]}") from None
    unknown = sorted(fields.keys() - known)
    if unknown:
        raise _bad(kind, f"bad request: {unknown[0][:40]!r} is an unknown field")
    return {name: value for name, value in fields.items() if value not in (None, "", 0, False, [])}


def _number(kind: Kind, fields: Mapping[str, Any], name: str) -> int:
    try:
        return whole_number(fields.get(name, 0), 0, MAX_NUMBER)
    except ValueError:
        raise _bad(kind, f"bad request: {name} must be a number from 0 to {MAX_NUMBER}") from None


def _subject(kind: Kind, subject: object) -> str:
    try:
        if not isinstance(subject, str):
            raise ConfigError("The subject must be text.")
        subject.encode()
        return Filter((subject,)).subjects[0]
    except (LiftError, UnicodeEncodeError):
        raise _bad(kind, "bad request: the subject is not a valid NATS subject") from None


def _moment(kind: Kind, text: object) -> int:
    """Return the RFC 3339 time ``text`` as nanoseconds since 1970. Raise JsRejection if it is not valid."""
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise _bad(kind, "bad request: the time is not valid, use a time such as 2026-01-31T10:00:00Z")
    try:
        seconds = (datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00")) - _EPOCH).total_seconds()
    except (ValueError, OverflowError):
        raise _bad(kind, "bad request: the time does not exist in the calendar") from None
    at_ns = int(seconds) * NS_PER_S + int((match[2] or "0").ljust(9, "0"))
    return min(max(at_ns, 0), _LAST_NS)  # years 1 and 9999 are before and after every record


def _list_request(kind: Kind, stream: str, partition: int, fields: Mapping[str, Any]) -> JsRequest:
    if fields.get("subjects_filter") or fields.get("deleted_details"):
        raise _bad(kind, "bad request: subjects_filter and deleted_details are not supported")
    subject = _subject(kind, fields["subject"]) if "subject" in fields else ""
    offset = _number(kind, fields, "offset")
    return JsRequest(kind=kind, stream=stream, partition=partition, page_offset=offset, subject=subject)


def _get_request(kind: Kind, stream: str, partition: int, fields: Mapping[str, Any]) -> JsRequest:
    """Return the record selection in the JSON ``fields`` of a get request.

    As in nats-server, a request must have exactly one kind of selection. Otherwise JsRejection is raised.
    """
    sequence, batch = _number(kind, fields, "seq"), _number(kind, fields, "batch")
    last, following = fields.get("last_by_subj"), fields.get("next_by_subj")
    multi, start = fields.get("multi_last"), fields.get("start_time")
    if not (sequence or last or following or multi or start):
        raise _bad(kind, "bad request", "Empty Request")
    too_many = sum(map(bool, (sequence or (following and not start), last, multi, start))) > 1
    ends = "up_to_seq" in fields or "up_to_time" in fields
    if too_many or (following and (last or multi)) or (batch and last) or ("max_bytes" in fields and not (batch or multi)):
        raise _bad(kind, "bad request")
    if (ends and not multi) or ("up_to_seq" in fields and "up_to_time" in fields):
        raise _bad(kind, "bad request")
    if multi and not (isinstance(multi, list) and len(multi) <= MAX_SUBJECTS):
        raise _bad(kind, "bad request")
    named = multi or [subject for subject in (last, following) if subject]
    return JsRequest(
        kind=kind,
        stream=stream,
        partition=partition,
        sequence=sequence or (1 if following and not start else 0),
        subjects=tuple(_subject(kind, subject) for subject in named),
        last=bool(last or multi),
        multi=bool(multi),
        start_ns=_moment(kind, start) if start else None,
        batch=min(batch, MAX_BATCH),
        max_bytes=_number(kind, fields, "max_bytes"),
        up_to=_number(kind, fields, "up_to_seq"),
        up_to_ns=_moment(kind, fields["up_to_time"]) if "up_to_time" in fields else None,
    )


def overlap(one: str, other: str) -> bool:
    """Return whether there is a subject that matches both filters ``one`` and ``other``, which may have wildcards."""
    pairs = list(zip_longest(one.split("."), other.split(".")))
    for mine, theirs in pairs:
        if ">" in (mine, theirs):
            return mine is not None and theirs is not None
        if mine is None or theirs is None or not (mine == theirs or "*" in (mine, theirs)):
            return False
    return True


class JsAnswer(NamedTuple):
    """One answer message. ``headers`` is the complete header block, b"" for none."""

    payload: bytes
    headers: bytes = b""


class PartitionStream(NamedTuple):
    """One partition that is shown as a JetStream stream.

    ``first_ns``, ``last_ns``: timestamps of the first and the last record, in ns since 1970. None: there are no records.
    """

    stream: StreamInfo
    partition: int
    bounds: Bounds
    first_ns: int | None
    last_ns: int | None


def no_message(kind: Kind) -> JsRejection:
    """Return the rejection of a request for a message that does not exist."""
    return JsRejection(404, 0, "Message Not Found") if kind is Kind.DIRECT else JsRejection(404, 10037, "no message found")


def unavailable(kind: Kind, text: str) -> JsRejection:
    """Return the rejection of a request that cannot be answered now. ``text``: the reason."""
    return JsRejection(408, 0, "Request Timeout") if kind is Kind.DIRECT else JsRejection(503, 10008, f"unavailable: {text}")


def rejection_answer(kind: Kind, rejection: JsRejection) -> JsAnswer:
    """Return the answer message that reports the rejection ``rejection`` of a request of this kind."""
    if kind in (Kind.DIRECT, Kind.NEXT):
        return status(rejection.code, rejection.text)
    error = {"code": rejection.code, "err_code": rejection.err_code, "description": rejection.text}
    return _json(kind, error=error)


def status(code: int, text: str, *more: tuple[str, int]) -> JsAnswer:
    """Return an answer that is a NATS status line without payload. ``more``: additional headers, as (name, number)."""
    lines = "".join(f"{name}: {number}\r\n" for name, number in more)
    return JsAnswer(b"", f"NATS/1.0 {code} {text}\r\n{lines}\r\n".encode())


def _json(kind: Kind, **fields: Any) -> JsAnswer:
    return JsAnswer(json.dumps({"type": _TYPE.format(kind.value), **fields}, separators=(",", ":")).encode())


def account(domain: str, streams: int) -> JsAnswer:
    """Return the answer to a request for account information. It has the number of streams and no limits."""
    limits = dict.fromkeys(("max_memory", "max_storage", "max_streams", "max_consumers", "max_ack_pending"), -1)
    limits |= {"memory_max_stream_bytes": -1, "storage_max_stream_bytes": -1, "max_bytes_required": False}
    nothing = dict.fromkeys(("memory", "storage", "reserved_memory", "reserved_storage"), 0)
    api = {"level": API_LEVEL, "total": 0, "errors": 0}
    return _json(Kind.INFO, **nothing, streams=streams, consumers=0, limits=limits, domain=domain, api=api)


def page(request: JsRequest, total: int, items: Sequence[Any], missing: Sequence[str] = ()) -> JsAnswer:
    """Return the answer with one page of a list of streams or consumers.

    ``missing``: names of the streams on this page whose state is not available now.
    """
    kind = request.kind
    limit = LIST_PAGE if kind in (Kind.LIST, Kind.CONSUMER_LIST) else NAMES_PAGE
    what = "consumers" if kind in (Kind.CONSUMER_NAMES, Kind.CONSUMER_LIST) else "streams"
    numbers = {"total": total, "offset": min(request.page_offset, total), "limit": limit}
    absent = {"missing": list(missing)} if missing else {}
    return _json(kind, **numbers, **{what: list(items)}, **absent)


def stream_info(place: PartitionStream, now_ns: int) -> JsAnswer:
    """Return the answer to a request for information about the stream ``place``. ``now_ns``: current time, in ns since 1970."""
    leader = {"cluster": {"leader": place.bounds.leader}} if place.bounds.leader else {}
    return _json(Kind.STREAM, total=0, offset=0, limit=0, **describe_stream(place, now_ns), **leader)


def describe_stream(place: PartitionStream, now_ns: int) -> dict[str, Any]:
    """Return the JetStream configuration and state of a stream, as a JSON object. ``now_ns``: current time, in ns since 1970.

    ``messages`` includes records that compaction removed. ``bytes`` is always 0, because the size is not known.
    """
    stream, partition, bounds = place.stream, place.partition, place.bounds
    config, count = stream.config, max(bounds.high_watermark + 1 - bounds.log_start_offset, 0)
    return {
        "config": {
            "name": stream_of(stream.name, partition),
            "subjects": [data_subject(stream.subject, partition)],
            "retention": "limits",
            "max_consumers": -1,
            "max_msgs": config.retention_records or -1,
            "max_bytes": config.retention_bytes or -1,
            "max_age": round(config.retention_age_s * NS_PER_S),
            "max_msgs_per_subject": config.max_per_subject or -1,
            "max_msg_size": config.max_message_bytes or -1,
            "discard": "old",
            "storage": "file",
            "num_replicas": max(stream.replica_count, 1),
            "no_ack": config.ack_policy.value == "none",
            "duplicate_window": round(config.dedup_window_s * NS_PER_S),
            "compression": "none",
            "allow_direct": True,
            "mirror_direct": False,
            "sealed": False,
            "deny_delete": True,
            "deny_purge": True,
            "allow_rollup_hdrs": False,
            "consumer_limits": {},
            "allow_msg_ttl": False,
            "metadata": {
                "liftpy.partition": str(partition),
                "liftpy.partitions": str(stream.partition_count),
                "liftpy.read_only": str(config.read_only).lower(),
                "liftpy.uid": stream.uid,
            },
        },
        "created": time_text(stream.created_time_ns),
        "state": {
            "messages": count,
            "bytes": 0,
            "first_seq": bounds.log_start_offset + 1,
            "first_ts": time_text(place.first_ns),
            "last_seq": bounds.high_watermark + 1,
            "last_ts": time_text(place.last_ns),
            "consumer_count": 0,
        },
        "ts": time_text(now_ns),
    }


def message(record: Record, default_subject: str) -> JsAnswer:
    """Return the answer to MSG.GET for a record. ``default_subject``: subject to show if the record has none."""
    block = header_block(record)
    fields: dict[str, Any] = {"subject": record.subject or default_subject, "seq": record.offset + 1}
    if block:
        fields["hdrs"] = base64.b64encode(b"NATS/1.0\r\n" + block + b"\r\n").decode()
    if record.value:
        fields["data"] = base64.b64encode(record.value).decode()
    return _json(Kind.MESSAGE, message={**fields, "time": time_text(record.timestamp_ns)})


def direct(stream: str, record: Record, default_subject: str, numbers: Iterable[tuple[str, int]] = ()) -> JsAnswer:
    """Return the answer to DIRECT.GET for a record."""
    own = [
        ("Nats-Stream", stream),
        ("Nats-Subject", record.subject or default_subject),
        ("Nats-Sequence", str(record.offset + 1)),
        ("Nats-Time-Stamp", time_text(record.timestamp_ns)),
        *((name, str(number)) for name, number in numbers),
    ]
    lines = b"".join(f"{name}: {value}\r\n".encode("utf-8", "surrogateescape") for name, value in own)
    return JsAnswer(record.value or b"", b"NATS/1.0\r\n" + header_block(record) + lines + b"\r\n")


def size_of(record: Record) -> int:
    """Return the size of a record in an answer, in bytes: value, key, subject and headers."""
    headers = sum(len(name) + len(value) for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + len(record.subject) + headers


def header_block(record: Record) -> bytes:
    """Return the headers of a record as a NATS header block. The key is added as ``Lift-Key`` if it fits into a header line.

    Headers that do not fit are left out, because some clients drop the whole block or the connection for one of them.
    """
    pairs = [(name.encode("utf-8", "surrogateescape"), value) for name, value in record.headers]
    if record.key and all(name != _KEY.encode() for name, _ in pairs):
        pairs.append((_KEY.encode(), record.key))
    return b"".join(
        b"%b: %b\r\n" % (name, value)
        for name, value in pairs
        if _HEADER_NAME.fullmatch(name) and b"\r" not in value and b"\n" not in value
    )


def time_text(at_ns: int | None) -> str:
    """Return the time ``at_ns`` (ns since 1970) as RFC 3339 text in UTC. Like Go, it omits a fraction of zero nanoseconds."""
    if at_ns is None or at_ns <= 0:
        return _ZERO
    seconds, rest = divmod(at_ns, NS_PER_S)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"
