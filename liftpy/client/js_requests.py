"""Requests of JetStream's stateless read API: what is asked, or why it is no question. Pure.

Subjects are those behind ``$JS.<domain>.API.``; bodies are JSON, as nats-server 2.15 takes them (measured). A field that is not known
here asks for something that would not be given: it is refused by its name, where nats-server ignores it.

A partition above 0 appears as a stream of its own, ``orders:1``: a name that no stream of ours can have, and every client takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from itertools import zip_longest
from typing import Any

from liftpy.dataclass import dataclass
from liftpy.errors import ConfigError, LiftError
from liftpy.ids import check_name
from liftpy.strict_json import load_json, whole_number
from liftpy.wire.filters import MAX_SUBJECTS, Filter

MAX_BODY_BYTES = 64 * 1024
MOST = 1 << 62
MAX_BATCH = 100_000


class Kind(Enum):
    """What is asked. The value: the type of its answer, '': it is no JSON."""

    INFO = "account_info"
    NAMES = "stream_names"
    LIST = "stream_list"
    STREAM = "stream_info"
    MESSAGE = "stream_msg_get"
    DIRECT = ""
    CONSUMER_NAMES = "consumer_names"
    CONSUMER_LIST = "consumer_list"
    NEXT = "next message of a consumer"
    """Its answer is a message or a status line, as of DIRECT."""
    OTHER = "api"


@dataclass(unsafe_hash=True)  # not frozen: a traceback is set on it
class JsRefusal(Exception):
    """No question. ``code``, ``err_code``, ``text``: as JetStream's errors; of DIRECT a status line, and no ``err_code``."""

    code: int
    err_code: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JsQuestion:
    """One request. ``sequence``: from 1; 0: none is named. ``subjects``: that a record has to fit. ``last``: the newest such record,
    and of ``multi`` the newest of each subject; else the first from ``sequence``, or from ``start_ns`` (since 1970), on. ``batch``: so
    many at most, 0: one, without an end. ``up_to``: no record above, 0: to the end."""

    kind: Kind
    stream: str = ""
    partition: int = 0
    page_offset: int = 0
    subject: str = ""
    """Of NAMES and LIST: streams that take it."""
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
_PAGES = frozenset({"offset", "subject"})
_INFO = frozenset({"deleted_details", "subjects_filter", "offset"})
_GET = frozenset({"seq", "last_by_subj", "next_by_subj", "start_time"})
_DIRECT = _GET | {"batch", "max_bytes", "multi_last", "up_to_seq", "up_to_time"}
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_LAST_NS = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def kind_of(rest: str) -> tuple[Kind, str]:
    """(what ``rest`` of a subject asks, what follows: a stream's name, and of DIRECT maybe a subject)."""
    if rest in _ALONE:
        return _ALONE[rest], ""
    found = next((start for start in _OF_STREAM if rest.startswith(start)), "")
    return (_OF_STREAM[found], rest[len(found) :]) if found else (Kind.OTHER, "")


def parse_question(rest: str, body: bytes) -> JsQuestion:
    """The request on ``$JS.<domain>.API.<rest>``. Raises JsRefusal."""
    kind, tail = kind_of(rest)
    if kind is Kind.OTHER:
        raise JsRefusal(400, 10003, f"bad request: {rest[:80]} is not answered here, only reads of streams are")
    if kind is Kind.NEXT:
        raise JsRefusal(503, 0, "No Responders")
    if kind in (Kind.INFO, Kind.CONSUMER_NAMES, Kind.CONSUMER_LIST):
        stream, partition = ("", 0) if kind is Kind.INFO else _stream(kind, tail)
        return JsQuestion(kind=kind, stream=stream, partition=partition)
    name, _, subject = tail.partition(".")
    stream, partition = ("", 0) if kind in (Kind.NAMES, Kind.LIST) else _stream(kind, name)
    if kind is Kind.DIRECT and subject:
        return JsQuestion(kind=kind, stream=stream, partition=partition, subjects=(_subject(kind, subject),), last=True)
    if subject:
        raise JsRefusal(404, 10059, "stream not found")
    fields = _fields(kind, body)
    if kind in (Kind.NAMES, Kind.LIST, Kind.STREAM):
        return _listing(kind, stream, partition, fields)
    return _get(kind, stream, partition, fields)


def _bad(kind: Kind, text: str, status: str = "Bad Request") -> JsRefusal:
    return JsRefusal(408, 0, status) if kind is Kind.DIRECT else JsRefusal(400, 10003, text)


def _stream(kind: Kind, name: str) -> tuple[str, int]:
    stream, _, number = name.partition(":")
    try:
        if number and not re.fullmatch("[1-9][0-9]{0,5}", number, re.ASCII):
            raise ConfigError("no partition")
        return check_name(stream, "stream"), int(number or 0)
    except LiftError:
        raise not_found(kind) from None


def not_found(kind: Kind) -> JsRefusal:
    """The stream is not there. DIRECT answers as NATS does where nobody listens."""
    return JsRefusal(503, 0, "No Responders") if kind is Kind.DIRECT else JsRefusal(404, 10059, "stream not found")


def _fields(kind: Kind, body: bytes) -> Mapping[str, Any]:
    known = {Kind.NAMES: _PAGES, Kind.LIST: _PAGES, Kind.STREAM: _INFO, Kind.DIRECT: _DIRECT}.get(kind, _GET)
    if not body.strip():
        return {}
    try:
        if len(body) > MAX_BODY_BYTES:
            raise ValueError(f"it is longer than {MAX_BODY_BYTES} bytes")
        fields = load_json(body)
        if not isinstance(fields, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        if kind is Kind.DIRECT:
            raise JsRefusal(408, 0, "Malformed Request") from None
        raise JsRefusal(400, 10025, f"invalid JSON: {str(error)[:100]}") from None
    unknown = sorted(fields.keys() - known)
    if unknown:
        raise _bad(kind, f"bad request: {unknown[0][:40]!r} is not known here")
    return {name: value for name, value in fields.items() if value not in (None, "", 0, False, [])}


def _number(kind: Kind, fields: Mapping[str, Any], name: str, high: int = MOST) -> int:
    try:
        return whole_number(fields.get(name, 0), 0, high)
    except ValueError:
        raise _bad(kind, f"bad request: {name} is no number from 0 to {high}") from None


def _subject(kind: Kind, subject: object) -> str:
    try:
        if not isinstance(subject, str):
            raise ConfigError("no text")
        subject.encode()
        return Filter((subject,)).subjects[0]
    except (LiftError, UnicodeEncodeError):
        raise _bad(kind, "bad request: no subject") from None


def _moment(kind: Kind, text: object) -> int:
    """RFC 3339, to the nanosecond -> ns since 1970."""
    found = _TIME.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise _bad(kind, "bad request: a time as 2026-01-31T10:00:00Z is needed")
    try:
        seconds = (datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00")) - _EPOCH).total_seconds()
    except (ValueError, OverflowError):
        raise _bad(kind, "bad request: there is no such time") from None
    at_ns = int(seconds) * 1_000_000_000 + int((found[2] or "0").ljust(9, "0"))
    return min(max(at_ns, 0), _LAST_NS)  # years 1 and 9999 are before and after every record


def _listing(kind: Kind, stream: str, partition: int, fields: Mapping[str, Any]) -> JsQuestion:
    if fields.get("subjects_filter") or fields.get("deleted_details"):
        raise _bad(kind, "bad request: subjects and deleted sequences are not listed here")
    subject = _subject(kind, fields["subject"]) if "subject" in fields else ""
    offset = _number(kind, fields, "offset")
    return JsQuestion(kind=kind, stream=stream, partition=partition, page_offset=offset, subject=subject)


def _get(kind: Kind, stream: str, partition: int, fields: Mapping[str, Any]) -> JsQuestion:
    """Of the ways to say what is wanted exactly one, as nats-server has it."""
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
    return JsQuestion(
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
    """Whether some subject fits both, wildcards included."""
    pairs = list(zip_longest(one.split("."), other.split(".")))
    for mine, theirs in pairs:
        if ">" in (mine, theirs):
            return mine is not None and theirs is not None
        if mine is None or theirs is None or not (mine == theirs or "*" in (mine, theirs)):
            return False
    return True
