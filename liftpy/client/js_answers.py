"""Answers of JetStream's stateless read API, as nats-server 2.15 gives them (measured). Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from liftpy.client.js_requests import JsQuestion, JsRefusal, Kind
from liftpy.client.positions import Bounds
from liftpy.cluster.image import StreamImage
from liftpy.wire.batch import Record
from liftpy.wire.subjects import data_subject

NAMES_PAGE, LIST_PAGE = 1024, 256
"""Streams of one answer."""
API_LEVEL = 1
"""As of nats-server 2.11: direct gets of batches and of the newest of several subjects. The levels above concern writes."""
_TYPE = "io.nats.jetstream.api.v1.{}_response"
_NS = 1_000_000_000
_ZERO = "0001-01-01T00:00:00Z"
_KEY = "Lift-Key"


class JsAnswer(NamedTuple):
    """One message. ``headers``: a whole header block, b"": none."""

    payload: bytes
    headers: bytes = b""


class JsPlace(NamedTuple):
    """A partition as a stream of JetStream. ``first``, ``last``: time stamps of the records at both ends, ns; None: there are none."""

    stream: StreamImage
    partition: int
    bounds: Bounds
    first_ns: int | None
    last_ns: int | None


def name_of(stream: str, partition: int) -> str:
    """Under which a partition appears."""
    return f"{stream}:{partition}" if partition else stream


def refused(kind: Kind, refusal: JsRefusal) -> JsAnswer:
    """Instead of an answer."""
    if kind in (Kind.DIRECT, Kind.NEXT):
        return status(refusal.code, refusal.text)
    said = {"code": refusal.code, "err_code": refusal.err_code, "description": refusal.text}
    return _json(kind, error=said)


def status(code: int, text: str, *more: tuple[str, int]) -> JsAnswer:
    """A status line without a payload. ``more``: headers."""
    lines = "".join(f"{name}: {number}\r\n" for name, number in more)
    return JsAnswer(b"", f"NATS/1.0 {code} {text}\r\n{lines}\r\n".encode())


def _json(kind: Kind, **fields: Any) -> JsAnswer:
    return JsAnswer(json.dumps({"type": _TYPE.format(kind.value), **fields}, separators=(",", ":")).encode())


def account(domain: str, streams: int) -> JsAnswer:
    """What nats-server says of an account: without limits."""
    limits = dict.fromkeys(("max_memory", "max_storage", "max_streams", "max_consumers", "max_ack_pending"), -1)
    limits |= {"memory_max_stream_bytes": -1, "storage_max_stream_bytes": -1, "max_bytes_required": False}
    nothing = dict.fromkeys(("memory", "storage", "reserved_memory", "reserved_storage"), 0)
    api = {"level": API_LEVEL, "total": 0, "errors": 0}
    return _json(Kind.INFO, **nothing, streams=streams, consumers=0, limits=limits, domain=domain, api=api)


def page(kind: Kind, question: JsQuestion, total: int, items: Sequence[Any]) -> JsAnswer:
    """Of a list. ``items``: of this page."""
    limit = LIST_PAGE if kind in (Kind.LIST, Kind.CONSUMER_LIST) else NAMES_PAGE
    what = "consumers" if kind in (Kind.CONSUMER_NAMES, Kind.CONSUMER_LIST) else "streams"
    numbers = {"total": total, "offset": min(question.page_offset, total), "limit": limit}
    return _json(kind, **numbers, **{what: list(items)})


def stream_info(place: JsPlace, now_ns: int) -> JsAnswer:
    """Of one stream."""
    leader = {"cluster": {"leader": place.bounds.leader}} if place.bounds.leader else {}
    return _json(Kind.STREAM, total=0, offset=0, limit=0, **described(place, now_ns), **leader)


def described(place: JsPlace, now_ns: int) -> dict[str, Any]:
    """Configuration and state. ``messages`` counts what compaction has dropped, too; ``bytes`` is not known here."""
    stream, partition, bounds = place.stream, place.partition, place.bounds
    config, count = stream.config, max(bounds.high_watermark + 1 - bounds.log_start_offset, 0)
    return {
        "config": {
            "name": name_of(stream.name, partition),
            "subjects": [data_subject(stream.subject, partition)],
            "retention": "limits",
            "max_consumers": -1,
            "max_msgs": config.retention_records or -1,
            "max_bytes": config.retention_bytes or -1,
            "max_age": round(config.retention_age_s * _NS),
            "max_msgs_per_subject": config.max_per_subject or -1,
            "max_msg_size": config.max_message_bytes or -1,
            "discard": "old",
            "storage": "file",
            "num_replicas": max(stream.replica_count, 1),
            "no_ack": config.ack_policy.value == "none",
            "duplicate_window": round(config.dedup_window_s * _NS),
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
    """Of MSG.GET."""
    block = header_block(record)
    said: dict[str, Any] = {"subject": record.subject or default_subject, "seq": record.offset + 1}
    if block:
        said["hdrs"] = base64.b64encode(b"NATS/1.0\r\n" + block + b"\r\n").decode()
    if record.value:
        said["data"] = base64.b64encode(record.value).decode()
    return _json(Kind.MESSAGE, message={**said, "time": time_text(record.timestamp_ns)})


def direct(stream: str, record: Record, default_subject: str, numbers: Iterable[tuple[str, int]] = ()) -> JsAnswer:
    """Of DIRECT.GET. ``stream``: as it appears. ``numbers``: more headers, of a batch."""
    own = [
        ("Nats-Stream", stream),
        ("Nats-Subject", record.subject or default_subject),
        ("Nats-Sequence", str(record.offset + 1)),
        ("Nats-Time-Stamp", time_text(record.timestamp_ns)),
        *((name, str(number)) for name, number in numbers),
    ]
    lines = b"".join(f"{name}: {value}\r\n".encode("utf-8", "surrogateescape") for name, value in own)
    return JsAnswer(record.value or b"", b"NATS/1.0\r\n" + header_block(record) + lines + b"\r\n")


def header_block(record: Record) -> bytes:
    """The headers of a record as lines, and its key as ``Lift-Key`` where it fits a line."""
    pairs = [(name.encode("utf-8", "surrogateescape"), value) for name, value in record.headers]
    if record.key and all(name != _KEY.encode() for name, _ in pairs):
        pairs.append((_KEY.encode(), record.key))
    lines = (b"%b: %b\r\n" % pair for pair in pairs if not any(end in part for part in pair for end in (b"\r", b"\n")))
    return b"".join(lines)


def time_text(at_ns: int | None) -> str:
    """RFC 3339, UTC, with nanoseconds where they are not zero, as Go writes it."""
    if at_ns is None or at_ns <= 0:
        return _ZERO
    seconds, rest = divmod(at_ns, _NS)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"


def places(streams: Mapping[str, StreamImage] | Iterable[StreamImage]) -> list[tuple[StreamImage, int]]:
    """Every partition, in the order of names."""
    known = streams.values() if isinstance(streams, Mapping) else streams
    return [(stream, p.partition) for stream in sorted(known, key=lambda one: one.name) for p in stream.partitions]
