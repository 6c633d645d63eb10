"""Test the record writer of a service: what it sends, and which acks and errors end a try."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.errors import ConfigError, ProtocolError, PublishRejectedError, UnavailableError
from liftpy.service.bad_record_writer import RecordWriter


class Log:
    """A client of one stream. Each publish returns ``ack``."""

    def __init__(self, **stream: Any) -> None:
        self.found = SimpleNamespace(
            **({"uid": "u9", "subject": "a.*.b.>", "answers": True, "partitions": [None] * 2} | stream)
        )
        self.transport = SimpleNamespace(request=self._request)
        self.asked: list[tuple[Any, ...]] = []
        self.ack = client_pb2.Ack(stream="s", partition=1, offset=33)

    async def stream(self, name: str) -> Any:
        return self.found

    async def _request(self, *given: Any) -> bytes:
        self.asked.append(given)
        return frames.encode(self.ack)


@pytest.mark.parametrize(
    ("ack", "said"),
    [
        ({"stream": "other", "partition": 1}, "s/1 rejected the decision: 0. Retry later."),
        ({"stream": "s", "partition": 0}, "s/1 rejected the decision: 0. Retry later."),
        (
            {"stream": "s", "partition": 1, "ackError": client_pb2.Ack.NOT_LEADER, "detail": "n2 leads"},
            "s/1 rejected the decision: n2 leads. Retry later.",
        ),
    ],
)
async def test_service_record_writer_without_a_matching_ack_raises_unavailable(ack: dict[str, Any], said: str) -> None:
    log: Any = Log()
    log.ack = client_pb2.Ack(**ack)
    with pytest.raises(UnavailableError) as raised:
        await RecordWriter(log).append("s", 1, b"v", None, [])
    assert str(raised.value) == said
    assert log.asked[0][2] == 3.0


async def test_service_record_writer_raises_publish_rejected_for_a_record_that_no_retry_would_store() -> None:
    log: Any = Log()
    for error, reason in ((client_pb2.Ack.TOO_LARGE, "TOO_LARGE"), (client_pb2.Ack.MALFORMED, "MALFORMED")):
        log.ack = client_pb2.Ack(stream="s", partition=1, ackError=error, detail="65536 bytes are allowed")
        with pytest.raises(PublishRejectedError, match=f"s/1 rejected the record: {reason} 65536 bytes are allowed") as raised:
            await RecordWriter(log).append("s", 1, b"v", None, [])
        assert raised.value.reason == reason

    async def request(*given: Any) -> bytes:
        raise ProtocolError("more than the NATS server accepts")

    log.transport.request = request
    with pytest.raises(PublishRejectedError, match="s/1: more than the NATS server accepts"):
        await RecordWriter(log).append("s", 1, b"v", None, [])


@pytest.mark.parametrize(
    ("stream", "uid", "said"), [({}, "u8", "was deleted and created again"), ({"answers": False}, "u9", "ack policy none")]
)
async def test_service_record_writer_with_a_recreated_stream_or_without_acks_raises_config_error(
    stream: dict[str, Any], uid: str, said: str
) -> None:
    log: Any = Log(**stream)
    with pytest.raises(ConfigError, match=said):
        await RecordWriter(log).append("s", 1, b"v", None, [], uid)
    assert log.asked == []


async def test_service_record_writer_after_a_failed_append_uses_the_new_description_of_the_stream() -> None:
    log: Any = Log()
    writer = RecordWriter(log)
    assert await writer.append("s", 1, b"v", None, []) == 33
    log.found = SimpleNamespace(**vars(log.found) | {"subject": "new.*"})
    log.ack = client_pb2.Ack(stream="s", partition=1, ackError=client_pb2.Ack.WRONG_STREAM)
    with pytest.raises(UnavailableError):
        await writer.append("s", 1, b"v", None, [])
    log.ack = client_pb2.Ack(stream="s", partition=1, offset=34)
    assert await writer.append("s", 1, b"v", None, []) == 34
    assert [asked[0].partition(".")[0] for asked in log.asked] == ["a", "a", "new"]


async def test_service_record_writer_uses_the_known_description_while_the_metadata_group_is_silent() -> None:
    log: Any = Log()
    writer = RecordWriter(log, timeout_s=0.05)
    assert await writer.append("s", 1, b"v", None, []) == 33

    async def never(name: str) -> Any:
        await asyncio.Event().wait()

    describe, log.stream = log.stream, never
    log.ack = client_pb2.Ack(stream="s", partition=1, ackError=client_pb2.Ack.NOT_LEADER)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            await writer.append("s", 1, b"v", None, [])
    log.ack = client_pb2.Ack(stream="s", partition=1, offset=34)
    assert await writer.append("s", 1, b"v", None, []) == 34
    log.stream, log.found = describe, SimpleNamespace(**vars(log.found) | {"subject": "new.*"})
    assert await writer.append("s", 1, b"v", None, []) == 34
    assert log.asked[-1][0].startswith("new.")
