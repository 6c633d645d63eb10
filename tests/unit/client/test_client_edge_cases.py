"""Test rare answers to readers, and failed connects."""

from __future__ import annotations

import asyncio
from typing import Any

import nats.errors
import pytest

from liftpy.client.progress import _MOST_BEHIND, NotServedError, ReadProgress
from liftpy.errors import (
    ConfigError,
    NotAllowedError,
    UnavailableError,
)
from liftpy.nats import transport as transport_module
from liftpy.nats.transport import open_connection
from tests.unit.client.read_answers import answer, batch, offsets


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
    monkeypatch.setattr(transport_module, "StrictConnection", Strict)
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
