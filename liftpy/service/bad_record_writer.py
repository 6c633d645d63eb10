"""Writes skipped records to the dead-letter stream, and decisions to the log (``liftpy.core.services.bad_records``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from liftpy.client import Client
from liftpy.client.in_flight import ack_reason
from liftpy.client.stream_info import StreamInfo
from liftpy.core.services.bad_records import MAX_ERROR_BYTES, SkipDecision, dead_letter_headers
from liftpy.core.services.effects import NumberingDecision
from liftpy.core.services.outbox import EXPECTED_HEADER
from liftpy.core.services.snapshot import Identity
from liftpy.core.services.versions import VersionDecision
from liftpy.core.wire import frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import Record
from liftpy.core.wire.subjects import data_subject
from liftpy.errors import ConfigError, OutcomeUnknownError, ProtocolError, PublishRejectedError, UnavailableError

logger = logging.getLogger("liftpy.service")

_FILLED_IN = "service"
"""Token that replaces a wildcard in the subject of the dead-letter stream."""
_PERMANENT = (client_pb2.Ack.TOO_LARGE, client_pb2.Ack.MALFORMED, client_pb2.Ack.UNSUPPORTED)
"""Errors of an ack that a retry of the same record would get again."""

_SHORTER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("", {}),
    ("its value", {"value": b""}),
    ("its value and headers", {"headers": ()}),
    ("its value, headers and key", {"key": None}),
)
"""Parts that are missing in a dead letter that would be too large, and the change of the record that removes them."""


class RecordWriter:
    """Appends the records that a service host itself writes, such as dead letters, to a stream.

    ``timeout_s``: maximum wait for each ack.
    """

    def __init__(self, client: Client, timeout_s: float = 3.0) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._streams: dict[str, StreamInfo] = {}
        """Name -> last known description of the stream."""
        self._doubtful: set[str] = set()
        """Streams whose description may be out of date, because an append has failed. It is requested again."""

    async def append(
        self,
        name: str,
        partition: int,
        value: bytes,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        uid: str = "",
        *,
        first: bool = False,
    ) -> int:
        """Append one record to a partition of the stream ``name``, and return its offset.

        The metadata group is asked only before the first append and after a failure. So a service also gets ticks and results of
        effects while no controller answers.

        ``uid``: uid of the stream, '' for any. ``first``: True to append it only if the partition is empty. Raises ConfigError if
        the stream cannot be used. Raises PublishRejectedError if the stream or NATS never accepts this record, such as a record
        that is too large. Raises UnavailableError if the record is not acknowledged for another reason.
        """
        stream = await self._description(name)
        try:
            return await self._append_to(name, stream, partition, value, key, headers, uid, first=first)
        except BaseException:
            self._doubtful.add(name)
            raise

    async def _description(self, name: str) -> StreamInfo:
        """Return the description of the stream. If the metadata group does not answer in time, return the last known one."""
        known = self._streams.get(name)
        if known is not None and name not in self._doubtful:
            return known
        self._doubtful.discard(name)
        try:
            async with asyncio.timeout(None if known is None else self._timeout_s):
                stream = self._streams[name] = await self._client.stream(name)
        except (UnavailableError, OutcomeUnknownError, TimeoutError):
            self._doubtful.add(name)
            if known is None:
                raise
            return known
        return stream

    async def _append_to(
        self,
        name: str,
        stream: StreamInfo,
        partition: int,
        value: bytes,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        uid: str,
        *,
        first: bool,
    ) -> int:
        if uid and stream.uid != uid:
            raise ConfigError(f"Stream {name} was deleted and created again. Restart the service.")
        if not stream.answers:
            raise ConfigError(
                f"Stream {name} has the ack policy none, so the decision cannot be confirmed. Use a stream with the "
                "ack policy leader or all."
            )
        partition = partition if partition < len(stream.partitions) else 0
        subject = ".".join(_FILLED_IN if token in ("*", ">") else token for token in stream.subject.split("."))
        message = client_pb2.Message(
            offset=-1,
            value=value,
            key=key or b"",
            keyed=key is not None,
            stream=name,
            streamUid=stream.uid,
            partition=partition,
            headers=[client_pb2.Header(name=header, value=content) for header, content in headers],
            ackPolicy=client_pb2.ALL,
        )
        expected = {EXPECTED_HEADER: "0"} if first else None
        try:
            answer = await self._client.transport.request(
                data_subject(subject, partition), frames.encode(message), self._timeout_s, expected
            )
        except ProtocolError as error:  # it is larger than max_payload of the NATS server
            raise PublishRejectedError(f"{name}/{partition}: {error}", "TOO_LARGE") from None
        ack = frames.decode(answer, client_pb2.Ack)
        is_from_partition = (ack.stream, ack.partition) == (name, partition)
        if is_from_partition and ack.ackError in _PERMANENT:
            reason = ack_reason(ack)
            raise PublishRejectedError(f"{name}/{partition} rejected the record: {reason} {ack.detail}".rstrip(), reason)
        if not is_from_partition or ack.ackError != client_pb2.Ack.OK:
            raise UnavailableError(f"{name}/{partition} rejected the decision: {ack.detail or ack.ackError}. Retry later.")
        return ack.offset


class DecisionWriter(RecordWriter):
    """Appends decisions about one service to its input log, and skipped records to the dead-letter stream.

    ``dead_letter_stream``: name of this stream, '' for none.
    """

    def __init__(self, client: Client, dead_letter_stream: str, timeout_s: float = 3.0) -> None:
        super().__init__(client, timeout_s)
        self._dead_letters = dead_letter_stream

    async def pass_over(
        self,
        identity: Identity,
        decision: SkipDecision,
        record: Record,
        error: str,
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> int:
        """Write ``record`` to the dead-letter stream, append the decision to skip it to the log, and return the decision's offset.

        A retry may store the record twice. A record is never skipped without being in the dead-letter stream. Raises
        the errors of ``append`` if either is not stored. ``error``: text for the dead letter. ``check``: called directly before the
        decision is appended. It raises an error if the record must not be skipped.
        """
        source = f"{identity.stream}/{identity.uid}/{identity.partition}"
        if self._dead_letters:
            await self._store_dead_letter(identity, source, error, record)
        if check is not None:
            await check()
        # the service's code may have raised an error with any text
        error_bytes = error.encode(errors="replace")[:MAX_ERROR_BYTES]
        offset = await self.append(identity.stream, identity.partition, error_bytes, None, decision.headers(), identity.uid)
        text = error_bytes.decode(errors="replace")
        logger.warning("record skipped service=%s unit=%s decision_offset=%d error=%s", identity, decision.unit, offset, text)
        return offset

    async def _store_dead_letter(self, identity: Identity, source: str, error: str, record: Record) -> None:
        """Write ``record`` to the dead-letter stream. If it is too large, leave out its value, then its headers and its key."""
        for omitted, change in _SHORTER:
            record = record._replace(**change)
            text = f"The dead letter is too large with {omitted}: they are left out. {error}" if omitted else error
            headers = dead_letter_headers(identity.service, source, text, record)
            try:
                await self.append(self._dead_letters, identity.partition, record.value or b"", record.key, headers)
                return
            except PublishRejectedError as rejected:
                if rejected.reason != "TOO_LARGE" or omitted == _SHORTER[-1][0]:
                    raise

    async def upgrade(self, identity: Identity, decision: VersionDecision, *, first: bool) -> int:
        """Append the decision to activate a version to the input log of the service, and return the decision's offset.

        ``first``: True to append it only as the first record of the log. Raises the errors of ``append``.
        """
        headers = decision.headers()
        offset = await self.append(identity.stream, identity.partition, b"", None, headers, identity.uid, first=first)
        logger.warning("service version activated service=%s version=%d offset=%d", identity, decision.version, offset)
        return offset

    async def change_numbering(self, identity: Identity, decision: NumberingDecision) -> int:
        """Append the decision to number effects in another way to the input log of the service, and return its offset.

        Raises the errors of ``append``.
        """
        offset = await self.append(identity.stream, identity.partition, b"", None, decision.headers(), identity.uid)
        numbering = decision.numbering.value
        logger.info("effect numbering activated service=%s numbering=%s offset=%d", identity, numbering, offset)
        return offset
