"""Encodes a message for publishing, as an envelope (protobuf ``Message``) or as a plain NATS message.

``Addressing`` holds the subject and the uid of a partition. If they may be out of date, it requests them from the
metadata group, at a limited rate.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, ItemsView
from dataclasses import dataclass

from liftpy.client.arguments import check_count, check_text
from liftpy.config import AckPolicy
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.envelope import POLICIES
from liftpy.core.wire.headers import HeadersLike, Pairs, pairs_of
from liftpy.errors import ConfigError, LiftError, NotFoundError

MESSAGE_ID = "Nats-Msg-Id"
EXPECTED_LAST = "Nats-Expected-Last-Sequence"
_LONGEST_ID_BYTES = 255
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""Header name that every NATS client accepts."""


@dataclass(frozen=True, slots=True)
class Address:
    """Address to which messages for one partition are published.

    ``uid``: uid of the stream, '' if unknown. ``answers``: True if the stream sends acks. ``window_s``: deduplication window of the
    stream, in seconds.
    """

    subject: str
    uid: str = ""
    answers: bool = True
    window_s: float = 0.0


class NatsHeaders(dict[str, str]):
    """Headers for nats-py. They keep their order and may repeat a name."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> ItemsView[str, str]:  # type: ignore[override]
        """Return all pairs of name and value in order. nats-py calls this method to write the headers."""
        return self._pairs  # type: ignore[return-value]


def envelope_of(
    stream: str, partition: int, uid: str, value: bytes | None, key: bytes | None, headers: HeadersLike | None, ack: AckPolicy,
    *, runs: bool = False,
) -> bytes:  # fmt: skip
    """Return the envelope of a message. Raise ConfigError if the message is not valid.

    ``uid``: '' for any stream with this name. ``runs``: True if one ack may answer several consecutive messages.
    """
    pairs = pairs_of(headers) if headers else ()
    try:
        message = client_pb2.Message(
            offset=-1,
            key=b"" if key is None else key,
            keyed=key is not None,
            value=b"" if value is None else value,
            tombstone=value is None,
            stream=stream,
            streamUid=uid,
            partition=partition,
            headers=[client_pb2.Header(name=name, value=content) for name, content in pairs] if pairs else None,
            ackPolicy=POLICIES[ack],
            runs=runs,
        )
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(
            f"Cannot encode the message: {error}. value and key must be bytes or None, headers pairs of str and "
            "(str or bytes), ack an AckPolicy."
        ) from error
    return frames.seal(message)


def headers_with_conditions(headers: HeadersLike | None, msg_id: str, expected_last: int | None) -> Pairs:
    """Return ``headers`` with the conditions of a publish, which are headers too. Raise ConfigError if one is invalid.

    ``msg_id``: id for deduplication, '': none. ``expected_last``: offset directly after which the record is stored. -1: only as the
    first record. None: no condition.
    """
    pairs = pairs_of(headers)
    names = {name for name, _ in pairs}
    if msg_id:
        if MESSAGE_ID in names:
            raise ConfigError(
                f"The headers contain {MESSAGE_ID}, but this publish sets the message id itself. Pass the id as msg_id=, or "
                "remove this header, for example from the headers of a record that you copy."
            )
        check_message_id(msg_id)
        pairs += ((MESSAGE_ID, msg_id.encode()),)
    if expected_last is not None:
        check_count("expected_last", expected_last, -1, (1 << 62) - 1)
        pairs += ((EXPECTED_LAST, b"%d" % (expected_last + 1)),)  # sequences start at 1, offsets at 0
    return pairs


def check_message_id(msg_id: str) -> None:
    """Check that ``msg_id`` can be the id of a message. Raises ConfigError if not."""
    check_text("message id", msg_id)
    if msg_id != msg_id.strip() or not msg_id.isprintable() or len(msg_id.encode()) > _LONGEST_ID_BYTES:
        raise ConfigError(
            f"Invalid message id. Use at most {_LONGEST_ID_BYTES} bytes of text, without line breaks and without "
            "spaces at the ends."
        )


def with_new_uid(payload: bytes, uid: str) -> bytes:
    """Return a copy of the envelope ``payload`` that names the stream with the uid ``uid``."""
    message = frames.decode(payload, client_pb2.Message)
    message.streamUid = uid
    return frames.seal(message)


def plain(value: bytes, headers: HeadersLike | None) -> tuple[bytes, NatsHeaders | None]:
    """Return the payload and headers of a plain NATS message. Raise ConfigError if the message needs an envelope."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ConfigError(f"Invalid value of type {type(value).__name__}. A value must be bytes or None.")
    content = bytes(value)
    if content.startswith(envelope.MAGIC):
        raise ConfigError(
            "The value starts with the bytes of a liftpy envelope, so that a node would decode it. Send it with "
            "an ack or with a key."
        )
    pairs = pairs_of(headers)
    return content, NatsHeaders(_as_text(pairs)) if pairs else None


def _as_text(pairs: Pairs) -> list[tuple[str, str]]:
    text_pairs = []
    for name, value in pairs:
        try:
            text = value.decode()
        except UnicodeDecodeError as error:
            raise _not_plain(name, f"it is not UTF-8 ({error})") from None
        if not _NAME.fullmatch(name):
            raise _not_plain(name, "its name has characters that NATS does not allow")
        if text != text.strip() or "\r" in text or "\n" in text:
            raise _not_plain(name, "its value has line breaks, or spaces at its ends")
        text_pairs.append((name, text))
    return text_pairs


def _not_plain(name: str, why: str) -> ConfigError:
    return ConfigError(f"Cannot send header {name!r} as a NATS header: {why}. Send the message with an ack or with a key.")


_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 10.0


class Addressing:
    """Current address of a partition. It is requested again if it may be out of date.

    ``find``: requests the address from the metadata group. Its argument is True to ask the metadata leader, and False to ask any
    controller. None: the address never changes. ``moved``: called after the address has changed. ``lost``: called if the stream or
    partition does not exist.
    """

    def __init__(
        self,
        address: Address,
        find: Callable[[bool], Awaitable[Address]] | None,
        moved: Callable[[], None],
        lost: Callable[[LiftError], None],
    ) -> None:
        self.address = address
        self._find = find
        self._moved = moved
        self._lost = lost
        self.task: asyncio.Task[None] | None = None
        """Background task of the last request. The owner of this object must cancel it at the end."""
        self._ask_at = 0.0
        self._wait_s = _FIRST_WAIT_S
        self._is_wrong = False
        """True if a leader has rejected the address."""
        self.unknown = False
        """True if the metadata group does not know the stream or partition. Call ``refresh`` before the next send."""

    def sure(self) -> None:
        """Note that the partition has answered, so the address is right. Pauses between requests for the address become short again."""
        self._wait_s, self._is_wrong = _FIRST_WAIT_S, False

    def doubt(self, *, is_wrong: bool = False) -> None:
        """Request the address again in the background, because it may be out of date.

        The pause between two requests grows until ``sure`` is called. ``is_wrong``: True if a leader has rejected the address. A
        controller that still knows this address is then behind.
        """
        self._is_wrong = self._is_wrong or is_wrong
        now = asyncio.get_running_loop().time()
        if self._find is None or now < self._ask_at or (self.task is not None and not self.task.done()):
            return
        self._ask_at, self._wait_s = now + self._wait_s, min(self._wait_s * 2, _LONGEST_WAIT_S)
        self.task = asyncio.create_task(self._forget_address(), name="address of a stream")

    async def _forget_address(self) -> None:
        try:
            await self.refresh()
        except (NotFoundError, ConfigError) as error:
            self._lost(error)
        except LiftError:
            pass  # no answer, or no permission to ask: the address stays

    async def refresh(self) -> None:
        """Request the address now and store it. Raises NotFoundError, ConfigError and the errors of requests.

        If a controller answers with another address, or with an address that a leader has rejected, the metadata leader is asked,
        too. The controller, or the stored address, may be out of date.
        """
        assert self._find is not None
        try:
            address = await self._find(False)
            if self._is_wrong or address != self.address:
                address = await self._find(True)
        except (NotFoundError, ConfigError):
            self.unknown = True
            raise
        self.unknown = False
        if address != self.address:
            self.address, self._is_wrong = address, False
            self._moved()
