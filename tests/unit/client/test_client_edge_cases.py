"""Test limits and rare answers of readers, parsers, iterations, publishers and connections."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from liftpy.client.admin import Admin
from liftpy.client.encode_publish import Address
from liftpy.client.in_flight import InFlight, PublishOptions
from liftpy.client.iteration import Iteration, LastItem
from liftpy.client.progress import _MOST_BEHIND, NotServedError, ReadProgress, check_head, must_agree
from liftpy.client.publisher import Publisher
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import (
    ConfigError,
    LogTruncatedError,
    NotAllowedError,
    NotFoundError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    ProtocolError,
    UnavailableError,
)
from liftpy.nats import transport as transport_module
from liftpy.nats.parser import LONGEST_LINE_BYTES, StrictParser, message_fields
from liftpy.nats.transport import open_connection
from tests.each import each
from tests.unit.client.test_read_progress import answer, batch, offsets

_Error = client_pb2.ReadResponse.Error


# ---- what a reader asks and believes -----------------------------------------------------------------------------------------
def test_read_request_contains_position_stream_uid_and_known_high_watermark() -> None:
    progress = ReadProgress("s", 3, 0, uid="u1", floor_high_watermark=2)
    assert progress.request(100, 7, 55) == client_pb2.ReadRequest(
        stream="s",
        partition=3,
        requestId=55,
        offset=0,
        position=0,
        maxBytes=100,
        waitMs=7,
        streamUid="u1",
        minHighWatermark=2,
        lastOffset=-1,
    )
    progress.accept(answer(batch(0, 5, epoch=4), hw=9, partition=3, stream="s", requestId=55))
    assert progress.request(100, 7, 56) == client_pb2.ReadRequest(
        stream="s", partition=3, requestId=56, offset=5, position=0, maxBytes=100, waitMs=7, streamUid="u1", minHighWatermark=4,
        lastOffset=4, lastEpoch=4,
    )  # fmt: skip


def test_partition_reader_accepts_a_lower_high_watermark_after_several_equal_answers() -> None:
    progress = ReadProgress("s", 0, 5, high_watermark=10)
    for _ in range(3 * _MOST_BEHIND):
        with pytest.raises(NotServedError, match="although offset 10 is committed"):
            progress.accept(answer(hw=5))
    for _ in range(_MOST_BEHIND - 1):
        with pytest.raises(NotServedError):
            progress.accept(answer(hw=4))
    assert progress.high_watermark == 10
    assert progress.accept(answer(hw=4)) == []
    assert (progress.high_watermark, progress.next_offset) == (4, 5)
    assert progress.accept(answer(hw=4)) == [], "there is nothing more"


def test_partition_reader_answer_with_records_resets_the_count_of_lagging_answers() -> None:
    progress = ReadProgress("s", 0, 5, high_watermark=10)
    for _ in range(_MOST_BEHIND - 1):
        with pytest.raises(NotServedError):
            progress.accept(answer(hw=4))
    assert offsets(progress.accept(answer(batch(5, 1), hw=10))) == [5]
    for _ in range(_MOST_BEHIND - 1):
        with pytest.raises(NotServedError):
            progress.accept(answer(hw=4))


def test_partition_reader_reports_a_damaged_answer_once() -> None:
    progress = ReadProgress("s", 0, 5, uid="u1")
    assert progress.complaint() is None
    progress.suspect = ("n2", 7)
    assert progress.complaint() == client_pb2.ReadRequest(boundsOnly=True, streamUid="u1", minHighWatermark=-1, badOffset=7)
    assert progress.complaint() is None


@each(
    ("fields", "last", "right"),
    [
        ({"node": "n1", "leader": "n2", "streamUid": "u"}, (5, 1), True),
        ({"streamUid": "u"}, (5, 1), True),
        ({"node": "n1.x", "streamUid": "u"}, (5, 1), False),
        ({"leader": ">", "streamUid": "u"}, (5, 1), False),
        ({"streamUid": "other"}, (5, 1), False),
        ({"streamUid": "other", "error": _Error.NOT_READY}, (5, 1), True),
        ({"streamUid": "u", "error": _Error.WRONG_STREAM}, (5, 1), False),
        ({"streamUid": "other", "error": _Error.WRONG_STREAM}, (5, 1), True),
        ({"error": _Error.CUT, "cutEndOffset": 5}, (5, 1), True),
        ({"error": _Error.CUT, "cutEndOffset": 0}, (5, 1), True),
        ({"error": _Error.CUT, "cutEndOffset": 6}, (5, 1), False),
        ({"error": _Error.CUT, "cutEndOffset": -1}, (5, 1), False),
        ({"error": _Error.CUT, "cutEndOffset": 5}, (5, 0), False),
        ({"streamUid": "u", "highWatermark": -1}, (5, 1), True),
        ({"streamUid": "u", "highWatermark": -2}, (5, 1), False),
        ({"streamUid": "u", "logStartOffset": -1}, (5, 1), False),
    ],
)
def test_read_answer_with_contradictory_fields_raises_protocol_error(
    fields: dict[str, Any], last: tuple[int, int], right: bool
) -> None:
    head = client_pb2.ReadResponse(**fields)
    if right:
        must_agree(head, "u", *last)
    else:
        with pytest.raises(ProtocolError, match="The answer of a node is invalid"):
            must_agree(head, "u", *last)


@pytest.mark.parametrize(
    ("error", "offset", "kind", "text"),
    [
        (
            _Error.WRONG_STREAM,
            5,
            NotFoundError,
            "was deleted and created again",
        ),
        (_Error.OFFSET_OUT_OF_RANGE, 5, OffsetOutOfRangeError, r"Offset 5 is outside 6\.\.10"),
        (_Error.OFFSET_OUT_OF_RANGE, 6, NotServedError, "OFFSET_OUT_OF_RANGE"),
        (_Error.CUT, 5, LogTruncatedError, "records before offset 5 that"),
        (_Error.BAD_REQUEST, 5, ProtocolError, "the read request as malformed"),
        (_Error.NOT_READY, 5, NotServedError, "NOT_READY"),
        (999, 5, NotServedError, "999"),
    ],
)
def test_read_answer_with_an_error_code_raises_the_matching_exception(
    error: Any, offset: int, kind: type[Exception], text: str
) -> None:
    head = client_pb2.ReadResponse(node="n1", error=error, logStartOffset=6, highWatermark=9, cutEndOffset=3, leader="n2")
    with pytest.raises(kind, match=text) as raised:
        check_head(head, "u", "s", 2, offset)
    assert type(raised.value) is kind
    if isinstance(raised.value, LogTruncatedError):
        assert raised.value.args
    if isinstance(raised.value, NotServedError):
        assert raised.value.leader == "n2"


# ---- iterations -------------------------------------------------------------------------------------------------------------
class Ahead:
    """A read-ahead buffer with lists of numbers."""

    def __init__(self, *pieces: list[int]) -> None:
        self.pieces = list(pieces)
        self.ended = False
        self.abandoned = 0

    async def next(self) -> list[int] | None:
        return self.pieces.pop(0) if self.pieces and not self.ended else None

    async def close(self) -> None:
        self.ended = True

    def abandon(self) -> None:
        self.abandoned += 1


class Noted(LastItem):
    """Record every value of ``last``."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "last":
            self.all.append(value)
        super().__setattr__(name, value)


def iteration(*pieces: list[int]) -> tuple[Any, Any, list[int]]:
    ahead: Any = Ahead(*pieces)
    handed = Noted()
    made: Any = Iteration(ahead, iter, handed)  # type: ignore[arg-type]
    return made, ahead, handed.all


async def test_consumer_iteration_marks_each_record_as_delivered_when_returned() -> None:
    made, _, handed = iteration([1, 2], [], [3])
    assert made.alive
    assert await anext(made) == 1
    assert handed == [1]
    assert [item async for item in made] == [2, 3]
    assert handed == [1, 2, 3]
    with pytest.raises(StopAsyncIteration):
        await anext(made)


async def test_consumer_iteration_after_aclose_returns_no_records() -> None:
    made, ahead, handed = iteration([1, 2, 3])
    assert await anext(made) == 1
    await made.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(made)
    assert (handed, ahead.ended, made.alive) == ([1], True, False)


# ---- the parser ---------------------------------------------------------------------------------------------------------------
class Connection:
    """The part of a nats-py connection that the parser uses."""

    def __init__(self) -> None:
        self._subs: dict[int, Any] = {}
        self._pongs: list[asyncio.Future[bool]] = []
        self._pongs_received = 0
        self._pings_outstanding = 2
        self.messages: list[Any] = []
        self.ponged = 0

    async def _process_msg(self, *message: Any) -> None:
        self.messages.append(message)

    async def _process_pong(self) -> None:
        self.ponged += 1


def parser(**options: Any) -> tuple[StrictParser, Any]:
    connection: Any = Connection()
    connection._subs[1] = SimpleNamespace(subject="a.*")
    made = StrictParser(connection, Counter(), **options)
    made.expect(1, "a.*")
    return made, connection


async def test_nats_parser_with_a_partial_line_waits_for_more_bytes_up_to_a_limit() -> None:
    made, _ = parser()
    await made.parse(b"M" * LONGEST_LINE_BYTES)
    with pytest.raises(nats.errors.ProtocolError):
        await made.parse(b"M")
    for fast in (made.feed, None):
        made.reset()
        if fast is not None:
            assert made.feed(b"M" * LONGEST_LINE_BYTES)
            assert not made.feed(b"M"), "somebody has to look at it"


async def test_nats_parser_skips_and_counts_a_message_of_a_subject_without_subscription() -> None:
    made, connection = parser()
    await made.parse(
        b"MSG a.b 1 2\r\nhi\r\nMSG b.b 1 2\r\nhi\r\nMSG a.c 2 2\r\nhi\r\nHMSG a.d 1 r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    )
    assert connection.messages == [(1, b"a.b", b"", b"hi", b""), (1, b"a.d", b"r", b"hi", b"NATS/1.0\r\n\r\n")]
    assert made.errors == {"foreign_subject": 1}, "and what was on its way when we left is none"
    made.forget(1)
    made.forget(1)
    assert not made._patterns
    loose, connection = parser(check_subjects=False)
    await loose.parse(b"MSG b.b 1 2\r\nhi\r\n")
    assert len(connection.messages) == 1


async def test_nats_parser_removes_the_pong_future_of_a_cancelled_ping() -> None:
    made, connection = parser()
    loop = asyncio.get_running_loop()
    given_up, waiting = loop.create_future(), loop.create_future()
    given_up.cancel()
    connection._pongs = [given_up, waiting]
    await made.parse(b"PONG\r\n")
    assert (connection._pongs, connection._pongs_received, connection._pings_outstanding) == ([waiting], 1, 0)
    assert (made.errors, connection.ponged) == ({"late_pong": 1}, 0)
    await made.parse(b"PONG\r\n")
    assert connection.ponged == 1, "somebody waits for that one"


@each(
    ("line", "fields"),
    [
        (b"MSG s 1 5", (b"s", b"1", b"", 0)),
        (b"MSG s 1 r 5", (b"s", b"1", b"r", 0)),
        (b"HMSG s 1 5 5", (b"s", b"1", b"", 5)),
        (b"HMSG s 1 r 4 5", (b"s", b"1", b"r", 4)),
        (b"HMSG s 1 6 5", None),
        (b"HMSG s 1 5", None),
        (b"MSG s 5", None),
        (b"MSG s 1 r x 5", None),
        (b"MSG s  5", None),
        (b"MSG s 1 -5", None),
        (b"PUB s 1 5", None),
    ],
)
def test_nats_parser_accepts_only_well_formed_message_lines(line: bytes, fields: Any) -> None:
    assert message_fields(line.split(b" ")) == fields


async def test_nats_parser_permission_error_reports_the_operation_and_the_subject() -> None:
    made, connection = parser()
    denied: list[tuple[bool, str]] = []
    made.denials.append(lambda *what: denied.append(what))
    told: list[Any] = []

    async def error(err: Any) -> None:
        told.append(err)

    connection._process_err = error
    await made.parse(b"-ERR 'Permissions Violation for Publish to \"A.b\"'\r\n")
    await made.parse(b"-ERR 'Permissions Violation for Subscription to \"C.d\"'\r\n")
    assert denied == [(True, "A.b"), (False, "C.d")]
    assert len(told) == 2


# ---- publishing -----------------------------------------------------------------------------------------------------------------
async def test_publisher_of_a_recreated_stream_resends_rejected_messages_without_delay() -> None:
    loop = asyncio.get_running_loop()
    made: Any = Publisher.__new__(Publisher)
    made._addressing = SimpleNamespace(address=Address("ev", "u2", True))
    made._has_right, made._refused = True, set()

    def message(uid: str, refusal: Any) -> InFlight:
        return InFlight(
            payload=b"",
            uid=uid,
            answer=loop.create_future(),
            give_up=0,
            deadline=0,
            size_bytes=1,
            resend_at=1e12,
            refusal=refusal,
        )

    refusal = UnavailableError("refused")
    made._in_flight = {1: message("u1", refusal), 2: message("u1", None), 3: message("u2", refusal), 4: message("", refusal)}
    before = loop.time()
    made._use_new_address()
    assert made._refused == {1}, "what may be stored is not sent twice, and what was refused by this one waits on"
    assert before <= made._in_flight[1].resend_at <= loop.time()
    assert [made._in_flight[n].resend_at for n in (2, 3, 4)] == [1e12] * 3
    assert not made._has_right


# ---- connecting -----------------------------------------------------------------------------------------------------------------
class Strict:
    """A replacement of the nats-py connection. Its ``connect`` does what the test sets."""

    error: BaseException | None = None
    last: Any = None
    heard = ""

    def __init__(self) -> None:
        self.on_reconnected: list[Any] = []
        self.options: dict[str, Any] = {}
        self.closed = 0
        Strict.last = self

    async def connect(self, **given: Any) -> None:
        self.given = given
        if self.heard:
            await given["error_cb"](nats.errors.Error(self.heard))
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        self.closed += 1

    is_connected = is_closed = False


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> type[Strict]:
    monkeypatch.setattr(transport_module, "ClientConnection", Strict)
    monkeypatch.setattr(Strict, "error", None)
    monkeypatch.setattr(Strict, "heard", "")

    async def close(connection: Strict) -> None:
        await connection.close()

    monkeypatch.setattr(transport_module, "_close", close)
    return Strict


async def test_nats_reconnect_calls_internal_callbacks_and_the_application_callback(strict: type[Strict]) -> None:
    told: list[str] = []

    async def also() -> None:
        told.append("the application")

    made: Any = await open_connection(" nats://a:1 ,nats://b:2", name="me", reconnected_cb=also, ping_interval=9)
    made.on_reconnected.append(lambda: told.append("ours"))
    await made.given["reconnected_cb"]()
    assert told == ["ours", "the application"]
    assert (made.given["servers"], made.given["name"], made.given["ping_interval"]) == (["nats://a:1", "nats://b:2"], "me", 9)
    assert (made.given["max_reconnect_attempts"], made.options["max_reconnect_attempts"]) == (1, -1)
    assert made.closed == 0
    without: Any = await open_connection("nats://a:1")
    await without.given["reconnected_cb"]()


@pytest.mark.parametrize(
    ("error", "heard", "kind", "text"),
    [
        (nats.errors.NoServersError(), "", UnavailableError, "Cannot connect to NATS at nats://a:1"),
        (nats.errors.NoServersError(), "odd thing", UnavailableError, "odd thing"),
        (OSError("refused"), "", UnavailableError, "refused"),
        (TimeoutError(), "", UnavailableError, "Cannot connect to NATS at"),
        (
            nats.errors.NoServersError(),
            "NATS server error: 'Authorization Violation'",
            NotAllowedError,
            "rejected the credentials",
        ),
        (nats.errors.AuthorizationError(), "", NotAllowedError, "rejected the credentials"),
    ],
)
async def test_nats_connection_that_fails_to_open_is_closed(
    strict: type[Strict], error: Exception, heard: str, kind: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict, "error", error)
    monkeypatch.setattr(strict, "heard", heard)
    with pytest.raises(kind, match=text):
        await open_connection("nats://a:1")
    assert strict.last.closed == 1


async def test_connect_cancelled_leaves_no_open_connection(strict: type[Strict], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict, "error", asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await open_connection("nats://a:1")
    assert strict.last.closed == 1
    monkeypatch.setattr(strict, "error", ValueError("odd"))
    with pytest.raises(ConfigError, match="the NATS URL nats://a:1: odd"):
        await open_connection("nats://a:1")


@pytest.mark.parametrize("may_read", [True, False])
async def test_stream_readiness_wait_ends_when_all_leaders_answer(may_read: bool) -> None:
    asked: list[Any] = []
    made: Any = Admin.__new__(Admin)

    class Reader:
        async def bounds(self, uid: str) -> None:
            asked.append(("bounds", uid))
            if not may_read:
                raise NotAllowedError("not a reader")

    def reader(name: str, partition: int, options: Any) -> Reader:
        asked.append(("reader", name, partition, options.patience_s))
        return Reader()

    async def as_nodes_say(stream: Any, partition: int, ready_s: float) -> None:
        asked.append(("nodes", stream.name, partition, ready_s))

    made._streams, made._check_leader_status = SimpleNamespace(reader=reader), as_nodes_say
    stream: Any = SimpleNamespace(name="s", uid="u1")
    await made._wait_for_leader(stream, 3, 7.0)
    said = [("reader", "s", 3, 7.0), ("bounds", "u1")]
    assert asked == (said if may_read else [*said, ("nodes", "s", 3, 7.0)])


@each(
    ("is_publish", "subject", "concerns"),
    [(True, "ev", True), (True, "inbox.*", False), (False, "inbox.*", True), (False, "ev", False), (True, "other", False)],
)
@each("had_right", [True, False])
async def test_publisher_permission_denial_fails_only_messages_of_the_denied_subject(
    is_publish: bool, subject: str, concerns: bool, had_right: bool
) -> None:
    failed: list[tuple[int, Exception]] = []
    made: Any = Publisher.__new__(Publisher)
    made._addressing = SimpleNamespace(address=Address("ev", "u1", True))
    made._inbox, made._has_posted, made._denied, made._subscription = "inbox", True, None, "listens"
    made._in_flight, made._has_right = {1: None, 2: None}, had_right
    made._fail = lambda number, error: failed.append((number, error))
    made._on_denial(is_publish, subject)
    assert [number for number, _ in failed] == ([1, 2] if concerns else [])
    assert all(isinstance(error, OutcomeUnknownError if had_right else NotAllowedError) for _, error in failed)
    assert made._subscription == (None if concerns and not is_publish else "listens")
    if not concerns:
        made._raise_denied()
        return
    what = "publish on ev" if is_publish else "subscribe for acks on inbox.*"
    with pytest.raises(
        NotAllowedError,
        match=re.escape(
            f"The NATS permissions of this user do not allow it to {what}. Change the permissions: `liftpy permissions --role publisher` prints them."  # noqa: E501
        ),
    ):
        made._raise_denied()
    made._raise_denied()  # it is said once


def test_publish_options_with_values_out_of_range_raise_config_error() -> None:
    wrong_times = ({"timeout_s": 0.0}, {"patience_s": -1.0}, {"overload_patience_s": 3601})
    for wrong in ({"window": 0}, *wrong_times, {"window_bytes": 0}, {"window": (1 << 20) + 1}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} = .* is outside"):
            PublishOptions(**wrong)
    assert PublishOptions(window=1, timeout_s=0.01, patience_s=0, window_bytes=1).window == 1
    assert PublishOptions(window=1 << 20, timeout_s=600, patience_s=3600, window_bytes=1 << 30).patience_s == 3600
