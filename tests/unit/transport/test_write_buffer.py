"""Test the write buffer of a connection: few writes per turn of the event loop, in order, and bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sidecar.transport.connection import TOGETHER_BYTES, WriteCoalescer


@pytest.fixture(autouse=True)
def _one_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "by_default" not in request.node.name:
        monkeypatch.setattr("sidecar.transport.connection.AT_ONCE", 1)


class Transport(asyncio.WriteTransport):
    """Notes each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closing = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.writes.append(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.closing


def outlet() -> tuple[WriteCoalescer, Transport]:
    transport = Transport()
    return WriteCoalescer(transport, asyncio.get_running_loop()), transport


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_write_buffer_sends_the_first_message_of_a_loop_turn_at_once_and_the_rest_at_the_turn_end() -> None:
    out, transport = outlet()
    for number in range(100):
        out.write((b"%d" % number, b" "), 3)
    assert transport.writes == [b"0 "]
    await turn()
    assert transport.writes == [b"0 ", b"".join(b"%d " % number for number in range(1, 100))]
    assert out.waiting_bytes == 0
    out.write((b"next turn",), 9)
    assert transport.writes[2:] == [b"next turn"]


async def test_write_buffer_above_its_bound_or_with_a_large_message_writes_at_once() -> None:
    out, transport = outlet()
    out.write((b"first",), 5)
    piece = b"x" * (TOGETHER_BYTES // 4)
    for _ in range(8):
        out.write((piece,), len(piece))
        assert out.waiting_bytes < TOGETHER_BYTES
    assert [len(write) for write in transport.writes] == [5, TOGETHER_BYTES, TOGETHER_BYTES]
    out.write((b"small",), 5)
    out.write((b"y" * TOGETHER_BYTES,), TOGETHER_BYTES)
    assert transport.writes[3:] == [b"small", b"y" * TOGETHER_BYTES]


async def test_write_buffer_copies_the_given_bytes() -> None:
    out, transport = outlet()
    buffer = bytearray(b"first")
    out.write((buffer,), 5)
    buffer[:] = b"later"
    out.write((memoryview(buffer),), 5)
    buffer[:] = b"spoil"
    await turn()
    assert transport.writes == [b"first", b"later"]


async def test_write_buffer_on_hold_sends_messages_in_one_write_on_release_or_at_turn_end() -> None:
    out, transport = outlet()
    for words in ((b"a", b"b"), (b"c",)):
        out.hold()
        for word in words:
            out.write((word, b" "), 2)
        if words == (b"a", b"b"):
            assert transport.writes == []
            out.release()
            assert transport.writes == [b"a b "]
            await turn()
    await turn()
    assert (transport.writes, out.waiting_bytes) == ([b"a b ", b"c "], 0)
    out.write((b"d",), 1)
    assert transport.writes[2:] == [b"d"], "the hold is over with its turn"


async def test_write_buffer_on_hold_sends_a_large_message_after_the_held_messages() -> None:
    out, transport = outlet()
    out.write((b"first",), 5)
    out.hold()
    out.write((b"a",), 1)
    out.release()
    assert transport.writes == [b"first"], "the turn has had its writes"
    await turn()
    out.hold()
    out.write((b"b",), 1)
    out.write((b"x" * TOGETHER_BYTES,), TOGETHER_BYTES)
    assert [write[:2] for write in transport.writes] == [b"fi", b"a", b"b", b"xx"]
    out.release()
    out.release()
    await turn()
    assert len(transport.writes) == 4
