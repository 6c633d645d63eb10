"""Test rare answers to readers, message lines, failed connects, and the limits of publish options."""

from __future__ import annotations

import asyncio
from typing import Any

import nats.errors
import pytest

from liftpy.client.progress import _MOST_BEHIND, NotServedError, ReadProgress, check_head, must_agree
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import (
    ConfigError,
    LogTruncatedError,
    NotAllowedError,
    NotFoundError,
    OffsetOutOfRangeError,
    ProtocolError,
    UnavailableError,
)
from liftpy.nats import transport as transport_module
from liftpy.nats.parser import message_fields
from liftpy.nats.transport import open_connection
from tests.each import each
from tests.unit.client.test_read_progress import answer, batch, offsets

_Error = client_pb2.ReadResponse.Error


# ---- what a reader asks and believes -----------------------------------------------------------------------------------------
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


# ---- the parser ---------------------------------------------------------------------------------------------------------------


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
