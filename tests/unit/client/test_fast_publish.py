"""Test the fast path of a publish: it writes the bytes of nats-py and protobuf. Other messages use the normal path."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from nats.aio.client import Client as NatsConnection

from liftpy.client.encode_publish import envelope_of, headers_with_conditions
from liftpy.config import AckPolicy
from liftpy.core.wire.envelope import FastEnvelope
from liftpy.errors import ConfigError
from liftpy.nats.parser import StrictConnection
from liftpy.nats.transport import ROOM_BYTES, Transport
from tests.each import each


# ---- envelopes -----------------------------------------------------------------------------------------------------------------
@each("uid", ["u1", ""])
@each("partition", [0, 7, 300])
@each("ack", [AckPolicy.ALL, AckPolicy.LEADER])
@each("runs", [True, False])
def test_fast_envelope_encoder_writes_the_same_bytes_as_protobuf(uid: str, partition: int, ack: AckPolicy, runs: bool) -> None:
    ordinary = FastEnvelope("orders", partition, uid, ack, runs=runs)
    assert ordinary.uid_and_policy == (uid, ack)
    for value in (b"x", b"\0\1\2", b"a" * 127, b"a" * 128, b"b" * 16_384, b"c" * 70_000):
        for msg_id in ("", "m", "abc.17", "q" * 100):
            headers = headers_with_conditions(None, msg_id, None) if msg_id else None
            wanted = envelope_of("orders", partition, uid, value, None, headers, ack, runs=runs)
            assert ordinary.envelope(value, msg_id.encode()) == wanted
            assert ordinary.opened(wanted) == (value, msg_id.encode())


def test_fast_envelope_encoder_rejects_an_invalid_ack_policy() -> None:
    with pytest.raises(ConfigError, match=r"ack 'all'\. Use an AckPolicy"):
        FastEnvelope("orders", 0, "u", "all")  # type: ignore[arg-type]


# ---- lines ---------------------------------------------------------------------------------------------------------------------
def connected(connection: Any, max_payload: int = 100) -> Any:
    connection._status = NatsConnection.CONNECTED
    connection._flush_queue = asyncio.Queue()
    connection._flusher_task = asyncio.get_running_loop().create_future()
    connection._max_payload = max_payload
    return connection


async def test_fast_publish_writes_the_same_bytes_as_nats_py() -> None:
    ours, theirs = connected(StrictConnection()), connected(NatsConnection())
    for subject, reply, payload in (("a.b", "_INBOX.x.1", b"v"), ("a.b", "", b""), ("\u00e4.c", "_INBOX.x.2", b"12345")):
        assert ours.try_write(subject, reply, payload, ROOM_BYTES)
        await theirs.publish(subject, payload, reply=reply)
    assert b"".join(ours._pending) == b"".join(theirs._pending)
    assert ours._pending_data_size == theirs._pending_data_size == len(b"".join(ours._pending))
    assert (ours.stats["out_msgs"], ours.stats["out_bytes"]) == (3, 6)
    assert ours._flush_queue.qsize() == 1, "the flusher is woken once for all"


async def test_fast_publish_of_an_invalid_subject_or_into_a_full_buffer_returns_false() -> None:
    ours = connected(StrictConnection())
    for subject in ("", "a b", "a\r\nPUB evil", "a\tb", "a\x7f"):
        assert not ours.try_write(subject, "", b"v", ROOM_BYTES)
    assert not ours.try_write("a", "", b"x" * 101, ROOM_BYTES)
    assert ours.try_write("a", "", b"x" * 100, ROOM_BYTES)
    ours._status = NatsConnection.RECONNECTING
    assert not ours.try_write("a", "", b"v", ROOM_BYTES)
    ours._status = NatsConnection.CONNECTED
    ours._flusher_task.set_result(None)
    assert not ours.try_write("a", "", b"v", ROOM_BYTES)
    assert not StrictConnection().try_write("a", "", b"v", ROOM_BYTES)
    assert len(ours._pending) == 1
    ours._flusher_task = asyncio.get_running_loop().create_future()
    assert not ours.try_write("a", "", b"v", ours._pending_data_size - 1)
    assert ours.try_write("a", "", b"v", ours._pending_data_size)


async def test_nats_transport_uses_fast_publish_only_without_headers_on_its_own_connection() -> None:
    ours = connected(StrictConnection(), max_payload=ROOM_BYTES)
    taken: list[tuple[Any, ...]] = []

    async def publish(subject: str, payload: bytes, reply: str = "", headers: Any = None) -> None:
        taken.append((subject, len(payload), reply, headers))

    ours.publish = publish
    transport = Transport(ours)
    await transport.write("a", b"v", "_INBOX.1", None, 0.0)
    assert (len(ours._pending), taken) == (1, [])
    later = asyncio.get_running_loop().time() + 30
    await transport.write("a", b"v", "", {"h": "x"}, later)
    await transport.write("a", b"v" * (ROOM_BYTES // 2), "_INBOX.2", None, later)
    ours._status = NatsConnection.RECONNECTING
    await transport.write("a", b"v", "_INBOX.3", None, later)
    assert taken == [("a", 1, "", {"h": "x"}), ("a", ROOM_BYTES // 2, "_INBOX.2", None), ("a", 1, "_INBOX.3", None)]
    theirs: Any = SimpleNamespace(publish=publish)
    other = Transport(theirs)
    await other.write("a", b"v", "_INBOX.4", None, later)
    assert taken[-1] == ("a", 1, "_INBOX.4", None), "a connection of somebody else"
