"""Decodes NATS messages into the columns of a record batch: plain bytes, headers, and the enveloped ``Message``.

``liftpy.core.wire.batch.encode_body`` takes the columns. Consecutive plain messages are processed without a Python loop
per record. A message that looks like an envelope but cannot be decoded is stored as plain bytes [A6].

A record batch that a publisher built (BatchPublish) is validated before it is stored, because readers trust the batches
of a log. The CRC, the sizes, the ends of each column and the header names are checked. The body is stored as it is. The
leader sets offsets, LeaderEpoch and timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np

from liftpy.config import AckPolicy, Codec
from liftpy.core.base.ids import PROBE_STREAM, PartitionKey, is_internal
from liftpy.core.publish import jetstream_headers
from liftpy.core.publish.acks import Envelope, Publishers
from liftpy.core.publish.dedup_window import MAX_ID_BYTES, MESSAGE_ID, ids_of, is_id
from liftpy.core.publish.digest import RollingDigest
from liftpy.core.publish.jetstream_headers import FAST_BATCH_REPLY, PublishConditions, first_refused
from liftpy.core.publish.producer_state import Claim, ProducerRequest
from liftpy.core.publish.quota import Quota
from liftpy.core.wire import envelope, frames
from liftpy.core.wire._pb import client_pb2
from liftpy.core.wire.batch import (
    HEADER_SIZE_BYTES,
    BatchHeader,
    BatchTooLargeError,
    Body,
    RecordBatch,
    encode_body,
    parse_batch,
    sized_body,
)
from liftpy.core.wire.batch_columns import (
    BytesColumn,
    Columns,
    ColumnSet,
    HeadersColumn,
    decode_columns,
    note_column,
    subject_column,
)
from liftpy.core.wire.envelope import MAGIC, FastEnvelope, MessageType
from liftpy.core.wire.headers import ACK, KEY, REPLY_TO, TOMBSTONE, Headers, may_be_enveloped, parse_headers
from liftpy.core.wire.producer_note import MAX_NAME_BYTES, MAX_UID_BYTES, Partitioning, ProducerNote, SourcePosition
from liftpy.core.wire.rejections import Rejection, RejectReason
from liftpy.core.wire.subjects import MAX_REPLY_BYTES, InboxRule, is_protocol_shaped
from liftpy.errors import CorruptionError, LiftError, ProtocolError, UnknownFormatError

MAX_BATCH_RECORDS = 65_536
MAX_HEADERS = 1024
MAX_HEADER_BYTES = 64 * 1024
"""Maximum size of the headers of a record, in bytes."""
_ALLOWED = Columns.KEYS | Columns.HEADERS | Columns.VALUE_NULLS | Columns.KEY_NULLS
MAX_CORRELATION_ID = 1024
"""Maximum length of a correlation id, in characters.

An Ack repeats it. A NATS server closes the connection of a node that sends more than ``max_payload``.
"""
RawMessage = tuple[bytes, bytes, bytes, bytes]
"""(subject, reply or b"", payload, NATS header block or b"")."""
_POLICIES = {client_pb2.LEADER: AckPolicy.LEADER, client_pb2.ALL: AckPolicy.ALL, client_pb2.NONE: AckPolicy.NONE}
_BY_HEADER = {policy.value.encode(): policy for policy in AckPolicy}
TYPE_POSITION = 7
"""Position of the message type in an envelope."""
_PUBLISH, BATCH = bytes([MessageType.PUBLISH]), bytes([MessageType.BATCH_PUBLISH])
_TEXT = ("utf-8", "surrogateescape")
_TOO_MANY_HEADERS = Rejection(RejectReason.TOO_LARGE, f"The message has more than {MAX_HEADERS} headers. Send fewer.")
_LONG_CORRELATION_ID = Rejection(
    RejectReason.TOO_LARGE, f"The correlation id has more than {MAX_CORRELATION_ID} characters. Use a shorter one."
)
_TOO_LARGE = "message size exceeds maximum allowed"
_NO_OFFSET = Rejection(
    RejectReason.INCORRECT_OFFSET,
    "wrong last sequence: each publish to this stream must have the header Nats-Expected-Last-Sequence. Add it.",
)
_NO_PRODUCERS = "internal. Only the cluster publishes to it: use another stream."
_NO_TOMBSTONE = Rejection(
    RejectReason.MALFORMED, "A tombstone (header Lift-Tombstone: 1) must have an empty value. Remove the value or the header."
)
_SHOWN = 80
"""Maximum length of a name from outside in a rejection, in characters."""
_KIND = slice(TYPE_POSITION, TYPE_POSITION + 1)


# ---- published batches -----------------------------------------------------------------------------------------------


class InvalidBatchError(LiftError):
    """Raised if a published batch cannot be stored. ``reason`` and the text are sent to the publisher."""

    code = "INVALID_BATCH"

    def __init__(self, text: str, reason: RejectReason = RejectReason.MALFORMED) -> None:
        super().__init__(text)
        self.reason = reason


class DecodedBatch(NamedTuple):
    """A valid batch that a producer has published.

    ``body``: as it will be stored. ``ids``: record index -> message id. ``columns``: as received. ``note``: fields of its
    producer.
    """

    body: Body
    ids: dict[int, bytes]
    header: BatchHeader
    columns: ColumnSet
    note: bytes = b""


def body_to_store(published: memoryview, subject: str, codec: Codec, note: bytes = b"") -> DecodedBatch:
    """Return the body of a published batch as it is stored: with ``subject``, the producer's ``note`` and the ``codec`` of the stream.

    ``published``: the batch as received. Raises InvalidBatchError. Raises BatchTooLargeError if the subject makes the body too
    large.
    """
    batch = _parse(published)
    header = batch.header
    if header.codec is not Codec.NONE or header.control or header.column_bits & ~_ALLOWED.value:
        raise InvalidBatchError(
            "a published batch must be uncompressed, must not be a control batch, and can have only values, keys and headers. "
            "Check the version of the client."
        )
    if not header.producer_id and (header.base_sequence or header.producer_epoch):
        raise InvalidBatchError("the batch has a sequence or an epoch, but no producer id. Check the version of the client.")
    if not 0 < header.record_count <= MAX_BATCH_RECORDS:
        raise InvalidBatchError(
            f"a published batch must have 1 to {MAX_BATCH_RECORDS} records, not {header.record_count}. Send smaller batches.",
            RejectReason.TOO_LARGE,
        )
    present = Columns(header.column_bits)
    body = batch.view[HEADER_SIZE_BYTES:]
    try:
        columns = decode_columns(body, header.record_count, present, exact=True)
    except CorruptionError as error:
        raise InvalidBatchError(str(error)) from None
    _check(columns)
    pieces, stored_columns = [bytes(body), *subject_column(subject)], present | Columns.SUBJECTS
    if note:
        pieces, stored_columns = [*pieces, *note_column(note)], stored_columns | Columns.NOTE
    stored = sized_body(pieces, stored_columns, header.record_count, codec)
    return DecodedBatch(stored, ids_of(columns.headers), header, columns, note)


def body_after(published: DecodedBatch, first: int, subject: str, codec: Codec) -> Body:
    """Return the body of a published batch without its first ``first`` records, which are stored already.

    ``subject``: subject of all records. ``codec``: compression of the stream.
    """
    columns = published.columns
    values = columns.values.to_list()[first:]
    keys = None if columns.keys is None else columns.keys.to_list()[first:]
    headers = None if columns.headers is None else columns.headers.to_list()[first:]
    return encode_body(values, keys=keys, headers=headers, subjects=[subject] * len(values), codec=codec, note=published.note)


def _parse(published: memoryview) -> RecordBatch:
    try:
        batch = parse_batch(published)
    except (CorruptionError, UnknownFormatError) as error:
        raise InvalidBatchError(str(error)) from None
    if batch.header.size_bytes != len(published):
        raise InvalidBatchError(
            f"the message has {len(published)} bytes, but its batch has {batch.header.size_bytes}. Check "
            "the version of the client."
        )
    return batch


def _check(columns: ColumnSet) -> None:
    for column in (columns.values, columns.keys):
        if column is not None and column.validity is not None and bool(_sizes(column)[~column.valid()].any()):
            raise InvalidBatchError("a null value has bytes, but a tombstone must be empty. Check the version of the client.")
    if columns.headers is not None:
        _check_sizes(columns.headers)
        names = {name.decode("utf-8", "surrogateescape") for name in _distinct_names(columns.headers)}
        refused_name = first_refused(names)
        if refused_name:
            raise InvalidBatchError(
                f"A record of a batch must not have the header {refused_name[:_SHOWN]!r}. Remove it, or publish the record alone.",
                RejectReason.UNSUPPORTED,
            )
        wrong = next((name for name in sorted(names) if not may_be_enveloped(name)), None)
        if wrong is not None:
            raise InvalidBatchError(
                f"Invalid header name {wrong[:_SHOWN]!r}. Use names that are not empty and do not start with Lift-."
            )


def _sizes(column: BytesColumn) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    sizes = column.ends.astype(np.int64)
    sizes[1:] -= sizes[:-1].copy()
    return sizes


def largest_record_bytes(columns: ColumnSet, first: int = 0) -> int:
    """Return an upper bound for the size of value, key and headers of any record of a batch, in bytes.

    Records below index ``first`` do not count.
    """
    sizes = _sizes(columns.values)
    if columns.keys is not None:
        sizes = sizes + _sizes(columns.keys)
    if columns.headers is not None:
        sizes = sizes + _header_bytes(columns.headers)
    return int(sizes[first:].max())


def _header_bytes(headers: HeadersColumn) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    size_bytes = np.concatenate(([0], headers.names.ends.astype(np.int64) + headers.values.ends))[headers.ends.astype(np.int64)]
    return np.diff(size_bytes, prepend=0)


def _check_sizes(headers: HeadersColumn) -> None:
    if np.diff(headers.ends.astype(np.int64), prepend=0).max() > MAX_HEADERS or _header_bytes(headers).max() > MAX_HEADER_BYTES:
        raise InvalidBatchError(
            f"a record has more than {MAX_HEADERS} headers, or more than {MAX_HEADER_BYTES} bytes of headers. Use fewer or "
            "shorter headers.",
            RejectReason.TOO_LARGE,
        )


def _distinct_names(headers: HeadersColumn) -> set[bytes]:
    """Return the distinct header names of a batch.

    Most records have the same names in the same order. These are compared as one piece of memory.
    """
    names, count = headers.names, len(headers.ends)
    width = int(headers.ends[0])
    if width and len(names.ends) == width * count:
        sizes, data = _sizes(names), bytes(names.data)
        first_bytes = int(names.ends[width - 1])
        same = data == data[:first_bytes] * count and bool((sizes.reshape(count, width) == sizes[:width]).all())
        if same and bool((np.diff(headers.ends, prepend=0) == width).all()):
            names = BytesColumn(names.ends[:width], names.data[:first_bytes])
    return {name or b"" for name in names.to_list()}


# ---- single messages -------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class MessageColumns:
    """Decoded messages as columns of equal length. None as column: the column is absent. None as value: a tombstone.

    ``expected``: record index -> expected offset. The value is -1, which no record has, if the header is no offset [A7].
    """

    values: list[bytes | None]
    publishers: Publishers
    subjects: list[str]
    keys: list[bytes | None] | None = None
    headers: list[Headers | None] | None = None
    replies: list[str | None] | None = None
    expected: dict[int, int] = field(default_factory=dict)
    of_others: dict[int, PublishConditions] = field(default_factory=dict)
    """Record index -> its other conditions."""
    ids: dict[int, bytes] = field(default_factory=dict)
    """Record index -> message id, ascending."""
    batch: DecodedBatch | None = None
    """The batch, if the only message is a whole batch. Then the other columns are empty."""
    claim: Claim | None = None
    """Producer and sequence numbers that the producer has set. None: the batch has no producer."""
    producer_request: ProducerRequest | None = None
    """The request, if the only message asks how a process may continue a producer. Then nothing is stored."""
    whole_batches: list[int] = field(default_factory=list)
    """Indexes of whole batches among several messages. Each of them is then decoded alone, and no other column is set."""
    rejections: dict[int, Rejection] = field(default_factory=dict)
    """Record index -> rejection of a message that cannot be stored, ascending. Its other columns are incomplete."""
    rejections_after_sequence: dict[int, Rejection] = field(default_factory=dict)
    """Record index -> rejection of a message that is rejected only if its expected offset is correct, ascending."""


class MessageDecoder:
    """Decodes the raw messages of one partition into MessageColumns.

    ``own_subject``: subject of most messages. An envelope that is addressed to another stream, uid or partition is
    rejected [A9]. A stream without acks stores it, because its subject may overlap the subjects of other streams.
    """

    def __init__(
        self, key: PartitionKey, own_subject: str, policy: AckPolicy, inboxes: InboxRule, codec: Codec = Codec.NONE
    ) -> None:
        self._key = key
        self._own_subject = own_subject.encode()
        self.subject = own_subject
        self._policy = policy
        self._inboxes = inboxes
        self.codec = codec
        self.refused_replies = 0
        """Number of reply subjects that the inbox rule forbids. Nodes never answer on them [A5]."""
        self.protocol_frames = 0
        """Number of protocol frames of another cluster that arrived on subjects of the stream.

        They are stored as plain bytes and never answered [A8].
        """
        self.max_message_bytes = 0
        """Maximum size of payload and headers of one record, in bytes. 0: the stream sets no limit."""
        self.quota: Quota | None = None
        """Quota of the stream. None: no quota."""
        self.wants_offsets = False
        """True if a publish without an expected offset is rejected (optimistic concurrency)."""
        self._takes_plain = not is_internal(key.stream) or key.stream == PROBE_STREAM
        """True if plain NATS messages are records.

        An internal stream accepts only commands and records of the cluster itself [A22].
        """
        self._own_is_protocol = is_protocol_shaped(own_subject)
        self._forms: list[FastEnvelope] = []
        """Common forms of envelopes. The most recent one comes first. They are made for the first envelope."""
        self._alike: dict[tuple[bytes, AckPolicy, bool], Envelope] = {}
        """Envelope values that publishers with equal options share, within one ``read``."""
        self.poison_envelopes = 0
        """Number of payloads that begin like an envelope and are none. They are stored as plain bytes."""
        self.mark_changed: Callable[[], None] = _do_nothing
        """Called after each ``read`` and for publishes that are rejected unread, because counters may have changed."""

    @property
    def answers(self) -> bool:
        return self._policy is not AckPolicy.NONE

    def publishers_of(self, replies: Sequence[bytes]) -> Publishers:
        self.mark_changed()
        return Publishers(self._policy, self._allowed_replies(list(replies))[0])

    def read(self, messages: Sequence[RawMessage], now_wall_ns: int) -> MessageColumns:
        self.mark_changed()
        values: list[bytes | None] = [message[2] for message in messages]
        replies = [message[1] for message in messages]
        requested_replies: list[bytes] = []
        fast_batches: list[int] = []
        if any(replies):
            replies, fast_batches = self._allowed_replies(replies)
            if self._policy is AckPolicy.NONE:
                requested_replies, replies, fast_batches = replies, [b""] * len(replies), []
        subjects = self._subjects(messages)
        columns = MessageColumns(
            values=values,
            publishers=Publishers(self._policy, replies),
            subjects=subjects,
        )
        if any(requested_replies):  # the node does not answer. A service that reads the record may answer
            columns.replies = [reply.decode() if reply else None for reply in requested_replies]
        magic = envelope.MAGIC
        self._alike = {}
        special = [i for i, m in enumerate(messages) if m[3] or m[2].startswith(magic)]
        if special and len(messages) > 1 and (whole_batches := self._whole_batches(messages, special)):
            columns.whole_batches = whole_batches
            return columns
        if fast_batches:
            columns.rejections = dict.fromkeys(fast_batches, jetstream_headers.FAST_BATCH)
            special = [index for index in special if index not in columns.rejections]
        if special and self._policy is not AckPolicy.NONE:
            special = self._decode_common(columns, messages, special, now_wall_ns)
        if not self._takes_plain:
            plain = [index for index, message in enumerate(messages) if not message[2].startswith(magic)]
            columns.rejections.update(dict.fromkeys(plain, self._plain_rejection()))
            special = [index for index in special if index not in columns.rejections]
        opened_count = len(columns.ids)
        for index in special:
            opened = self._decode_batch(messages[index]) if len(messages) == 1 else None
            if opened is None:
                self._inspect(columns, index, messages[index], now_wall_ns)
            else:
                self._inspect_batch(columns, messages[index], *opened, now_wall_ns)
        if 0 < opened_count < len(columns.ids):
            columns.ids = dict(sorted(columns.ids.items()))
        if not self._takes_plain or (fast_batches and len(columns.rejections) > len(fast_batches)):
            columns.rejections = dict(sorted(columns.rejections.items()))
        if self.max_message_bytes or self.wants_offsets:
            self._check_settings(columns, messages)
        return columns

    def _check_settings(self, columns: MessageColumns, messages: Sequence[RawMessage]) -> None:
        rejections: dict[int, Rejection] = {}
        most = self.max_message_bytes
        if columns.batch is not None:
            sizes = [largest_record_bytes(columns.batch.columns)]
        else:
            sizes = [len(payload) + len(block) for _, _, payload, block in messages]
        if 0 < most < max(sizes):
            for index, size_bytes in enumerate(sizes):
                if size_bytes > most:
                    rejections[index] = Rejection(
                        RejectReason.TOO_LARGE,
                        f"{_TOO_LARGE}: {size_bytes} bytes, this stream accepts {most}. Send smaller messages.",
                    )
        if self.wants_offsets:
            bound = columns.expected.keys() | columns.of_others.keys()
            if len(bound) < len(messages):
                rejections.update((index, _NO_OFFSET) for index in range(len(messages)) if index not in bound)
        if rejections:
            columns.rejections_after_sequence = dict(sorted((rejections | columns.rejections_after_sequence).items()))

    def is_command(self, columns: MessageColumns, index: int) -> bool:
        """Return whether the record at ``index`` is a command for a replicated service.

        A repeated command is stored again. The service detects its id and sends the reply again
        (``liftpy/core/services/replies.py``).
        """
        return columns.replies is not None and columns.replies[index] is not None

    def _allowed_replies(self, replies: list[bytes]) -> tuple[list[bytes], list[int]]:
        """Return the reply subjects with b"" for those on which the node may not answer, and indexes of messages of a fast batch.

        A fast batch is a JetStream feature that streams do not support.
        """
        if len(replies) > 1 and self._inboxes.allows_all(replies, jetstream_headers.FAST_BATCH_REPLY):
            return replies, []
        allows = self._inboxes.allows
        allowed_replies = [reply if reply and allows(reply) else b"" for reply in replies]
        self.refused_replies += sum(1 for before, after in zip(replies, allowed_replies, strict=True) if before and not after)
        suffix = jetstream_headers.FAST_BATCH_REPLY
        return allowed_replies, [index for index, reply in enumerate(replies) if reply.endswith(suffix)]

    def _subjects(self, messages: Sequence[RawMessage]) -> list[str]:
        own = self._own_subject
        if all(message[0] == own for message in messages):
            return [self.subject] * len(messages)
        return [message[0].decode(*_TEXT) for message in messages]

    def _inspect(self, columns: MessageColumns, index: int, message: RawMessage, now_wall_ns: int) -> None:
        _, _, payload, block = message
        published: client_pb2.Message | None = None
        if payload.startswith(envelope.MAGIC):
            if self._is_protocol(message):
                self.protocol_frames += 1
                assert isinstance(columns.publishers.replies, list)
                columns.publishers.replies[index] = b""
            elif (published := self._open_envelope(payload)) is not None:
                self._note_publisher(columns, index, message, published, now_wall_ns)
        if published is None and not self._takes_plain:
            columns.rejections[index] = self._plain_rejection()
            return
        if len(block) > jetstream_headers.MAX_BLOCK_BYTES:
            columns.rejections[index] = jetstream_headers.BLOCK_TOO_LARGE
            return
        if block.count(b"\n") > MAX_HEADERS + 2:  # status line and end of the header block
            columns.rejections[index] = _TOO_MANY_HEADERS
            return
        headers = parse_headers(block) if block else []
        has_conditions = jetstream_headers.asks(block)
        if published is not None:
            rejection = self._why_not(published, headers)
            if rejection is not None:
                columns.rejections[index] = rejection
                return
            self._add_message(columns, index, published)
            headers += [(header.name, header.value) for header in published.headers]
            has_conditions = has_conditions or bool(published.headers)
        if has_conditions and self._policy is not AckPolicy.NONE:
            rejection = jetstream_headers.rejection_before_sequence(headers, self._key.stream, self._key.partition)
            if rejection is not None:
                columns.rejections[index] = rejection
                return
            rejection = jetstream_headers.rejection_after_sequence(headers)
            if rejection is not None:
                columns.rejections_after_sequence[index] = rejection
            expected = jetstream_headers.expected_in(headers)
            if expected is not None:
                columns.of_others[index] = expected
        for name, value in headers:
            if name == KEY:
                _column(columns, "keys")[index] = value
            elif name == ACK and value in _BY_HEADER:
                self._policies(columns)[index] = _BY_HEADER[value]
            elif name == REPLY_TO:
                if self._inboxes.allows(value):
                    _column(columns, "replies")[index] = value.decode()
                else:
                    self.refused_replies += 1
            elif name == TOMBSTONE:
                if value != b"1" or columns.values[index]:
                    columns.rejections[index] = _NO_TOMBSTONE
                    return
                columns.values[index] = None
            elif name == MESSAGE_ID:
                if is_id(value):
                    columns.ids.setdefault(index, value)
                elif len(value) > MAX_ID_BYTES and self._policy is not AckPolicy.NONE:
                    columns.rejections[index] = jetstream_headers.ID_TOO_LONG
                    return
            elif name == jetstream_headers.EXPECTED_LAST_SEQUENCE and value:  # if there are several, the first one counts
                columns.expected.setdefault(index, jetstream_headers.number_of(value))
        if headers:
            _column(columns, "headers")[index] = headers

    def _decode_common(
        self, columns: MessageColumns, messages: Sequence[RawMessage], special: list[int], now_wall_ns: int
    ) -> list[int]:
        """Decode the messages at the indexes ``special`` that are envelopes of the most frequent form. Return the other indexes."""
        if not self._forms:
            self._forms = self._make_forms()
        form, left = self._forms[0], list[int]()
        opened = form.opened
        for index in special:
            subject, _, payload, block = messages[index]
            content = None if block else opened(payload)
            if content is None and not block:
                form = self._form_of(payload, form)
                opened = form.opened
                content = opened(payload)
            if content is None:
                left.append(index)
                continue
            columns.values[index], message_id = content
            if message_id:
                columns.ids[index] = message_id
                _column(columns, "headers")[index] = [(MESSAGE_ID, message_id)]
            policy = form.uid_and_policy[1]
            alike = self._alike.get((subject, policy, form.runs))
            self._policies(columns)[index] = policy
            self._envelopes(columns)[index] = alike or self._shared_envelope(subject, policy, form.runs, now_wall_ns)
        return left

    def _make_forms(self) -> list[FastEnvelope]:
        key = self._key
        return [
            FastEnvelope(key.stream, key.partition, key.uid, ack, runs=runs)
            for runs in (True, False)
            for ack in (AckPolicy.ALL, AckPolicy.LEADER)
        ]

    def _form_of(self, payload: bytes, otherwise: FastEnvelope) -> FastEnvelope:
        for form in self._forms[1:]:
            if form.opened(payload) is not None:
                self._forms.remove(form)
                self._forms.insert(0, form)
                return form
        return otherwise

    def _shared_envelope(self, subject: bytes, policy: AckPolicy, runs: bool, now_wall_ns: int) -> Envelope:
        alike = self._alike.get((subject, policy, runs))
        if alike is None:
            alike = Envelope("", "", _shown_subject(subject), policy, now_wall_ns, takes_runs=runs)
            self._alike[subject, policy, runs] = alike
        return alike

    def _is_protocol(self, message: RawMessage) -> bool:
        """Return whether the message is a protocol frame of another cluster. The node must not answer it."""
        kind = message[2][TYPE_POSITION : TYPE_POSITION + 1]
        return kind not in (_PUBLISH, BATCH) and (self._own_is_protocol or message[0] != self._own_subject)

    def _open_envelope(self, payload: bytes) -> client_pb2.Message | None:
        try:
            return frames.decode(payload, client_pb2.Message)
        except ProtocolError:
            self.poison_envelopes += 1
            return None

    def _note_publisher(
        self, columns: MessageColumns, index: int, message: RawMessage, published: client_pb2.Message, now_wall_ns: int
    ) -> None:
        subject, _, _, block = message
        policy = _POLICIES.get(published.ackPolicy, self._policy)
        if published.runs and not (block or published.correlationId or published.ackInbox):
            wanted = self._shared_envelope(subject, policy, True, now_wall_ns)
        else:
            wanted = _envelope_of(published, subject, policy, now_wall_ns)
        self._note_wanted(columns, index, wanted)

    def _note_wanted(self, columns: MessageColumns, index: int, wanted: Envelope) -> None:
        publishers = columns.publishers
        replies = publishers.replies
        inbox = wanted.ack_inbox.encode()
        if inbox and self._policy is not AckPolicy.NONE and self._inboxes.allows(inbox):
            assert isinstance(replies, list)
            replies[index] = inbox
        self._policies(columns)[index] = wanted.policy
        self._envelopes(columns)[index] = wanted

    def _why_not(self, published: client_pb2.Message, beside: Headers) -> Rejection | None:
        if not self._takes_plain and not published.stream:
            return self._plain_rejection()
        if (self._policy is not AckPolicy.NONE or not self._takes_plain) and not self._is_addressed_here(published):
            return self._address_rejection(published)
        if len(published.correlationId) > MAX_CORRELATION_ID and self._policy is not AckPolicy.NONE:
            return _LONG_CORRELATION_ID
        if published.tombstone and published.value:
            return _NO_TOMBSTONE
        if len(published.headers) > MAX_HEADERS:
            return _TOO_MANY_HEADERS
        for name in (*(header.name for header in published.headers), *(name for name, _ in beside)):
            if not may_be_enveloped(name):
                detail = f"a header {name[:_SHOWN]!r} of an envelope: names are not empty, and Lift-* is reserved"
                return Rejection(RejectReason.MALFORMED, detail)
        return None

    # ---- whole batches -------------------------------------------------------------------------------------------------------
    def _whole_batches(self, messages: Sequence[RawMessage], special: list[int]) -> list[int]:
        """Return those of the indexes ``special`` whose messages look like a published record batch.

        A stream without answers stores batches for other streams as plain bytes.
        """
        batch_indexes = [
            index for index in special if messages[index][2][_KIND] == BATCH and messages[index][2].startswith(MAGIC)
        ]
        if batch_indexes and self._policy is AckPolicy.NONE:
            batch_indexes = [index for index in batch_indexes if self._decode_batch(messages[index]) is not None]
        return batch_indexes

    def _decode_batch(self, message: RawMessage) -> tuple[client_pb2.BatchPublish, memoryview] | None:
        """Return header and record batch of a BatchPublish for this partition. None: the message is stored as plain bytes."""
        payload = message[2]
        if payload[TYPE_POSITION : TYPE_POSITION + 1] != BATCH or not payload.startswith(envelope.MAGIC):
            return None
        try:
            head, batch = frames.decode_batch_publish(payload)
        except ProtocolError:
            return None
        return (head, batch) if self._policy is not AckPolicy.NONE or self._is_addressed_here(head) else None

    def _inspect_batch(
        self, columns: MessageColumns, message: RawMessage, head: client_pb2.BatchPublish, batch: memoryview, now_wall_ns: int
    ) -> None:
        subject = message[0].decode(*_TEXT)
        policy = _POLICIES.get(head.ackPolicy, self._policy)
        wanted = _envelope_of(head, message[0], policy, now_wall_ns)
        self._note_wanted(columns, 0, wanted)
        if not self._is_addressed_here(head):
            columns.rejections[0] = self._address_rejection(head)
        elif is_internal(self._key.stream):
            columns.rejections[0] = self._plain_rejection()
        elif len(head.correlationId) > MAX_CORRELATION_ID and self._policy is not AckPolicy.NONE:
            columns.rejections[0] = _LONG_CORRELATION_ID
        elif message[3]:
            detail = "A batch must not have NATS headers. Put the headers into its records."
            columns.rejections[0] = Rejection(RejectReason.MALFORMED, detail)
        elif head.askedProducer:
            if batch:
                columns.rejections[0] = Rejection(
                    RejectReason.MALFORMED,
                    "A request for the state of a producer must not have a batch. Send the batch in its own message.",
                )
            try:
                note = _note(head)
            except InvalidBatchError as error:
                columns.rejections[0] = Rejection(error.reason, str(error))
                return
            request_fields = (head.askedProducer, head.producerInstance, head.producerSequence)
            acked = (head.producerAckedOffset, head.producerAckedEpoch) if head.HasField("producerAckedOffset") else None
            columns.producer_request = ProducerRequest(*request_fields, note.name, note.position, acked)
        else:
            try:
                note = _note(head)
                columns.batch = published = body_to_store(batch, subject, self.codec, note.encode() if any(note) else b"")
                columns.claim = _claim(head, published, note)
            except InvalidBatchError as error:
                columns.rejections[0] = Rejection(error.reason, str(error))
                return
            except BatchTooLargeError as error:
                columns.rejections[0] = Rejection(RejectReason.TOO_LARGE, str(error))
                return
            columns.ids = published.ids
            columns.publishers.batch_records = wanted.record_count = published.body.record_count
            if head.HasField("expectedOffset"):
                columns.expected[0] = head.expectedOffset

    def _plain_rejection(self) -> Rejection:
        return Rejection(RejectReason.UNSUPPORTED, f"stream {self._key.stream} is {_NO_PRODUCERS}")

    def _address_rejection(self, published: client_pb2.Message | client_pb2.BatchPublish) -> Rejection:
        stream, uid = published.stream[:_SHOWN] or "?", published.streamUid[:_SHOWN] or "?"
        wanted = f"{stream}/{published.partition} (uid {uid})"
        detail = f"it is addressed to {wanted}, and {self._key} (uid {self._key.uid}) listens here"
        return Rejection(RejectReason.WRONG_STREAM, detail)

    def _is_addressed_here(self, published: client_pb2.Message | client_pb2.BatchPublish) -> bool:
        """Return whether the envelope names this stream and partition, or none.

        Partition 0 without a uid means that it names none.
        """
        key = self._key
        if published.streamUid:
            return (published.stream or key.stream, published.streamUid, published.partition) == (
                key.stream,
                key.uid,
                key.partition,
            )
        return published.stream in ("", key.stream) and (not published.stream or published.partition in (0, key.partition))

    def _add_message(self, columns: MessageColumns, index: int, published: client_pb2.Message) -> None:
        columns.values[index] = None if published.tombstone else published.value
        if published.key or published.keyed:
            _column(columns, "keys")[index] = published.key
        if published.replySubject:
            _column(columns, "replies")[index] = published.replySubject
        if published.offset > 0:  # a publisher that does not know the field sends 0
            columns.expected[index] = published.offset

    def _envelopes(self, columns: MessageColumns) -> list[Envelope | None]:
        publishers = columns.publishers
        if publishers.envelopes is None:
            publishers.envelopes = [None] * len(columns.values)
        assert isinstance(publishers.envelopes, list)
        return publishers.envelopes

    def _policies(self, columns: MessageColumns) -> list[AckPolicy]:
        publishers = columns.publishers
        if publishers.policies is None:
            publishers.policies = [self._policy] * len(columns.values)
        assert isinstance(publishers.policies, list)
        return publishers.policies


def _do_nothing() -> None: ...


def _shown_subject(subject: bytes) -> str:
    """Return ``subject`` as an Ack contains it. A string of a protobuf message must be UTF-8, but a NATS subject may have any bytes."""
    return subject.decode(errors="replace")


def _envelope_of(
    published: client_pb2.Message | client_pb2.BatchPublish, subject: bytes, policy: AckPolicy, now_wall_ns: int
) -> Envelope:
    """Return the fields of a publish that its Ack repeats, without those that are too long."""
    correlation_id = published.correlationId if len(published.correlationId) <= MAX_CORRELATION_ID else ""
    inbox = published.ackInbox if len(published.ackInbox) <= MAX_REPLY_BYTES else ""
    return Envelope(correlation_id, inbox, _shown_subject(subject), policy, now_wall_ns)


def _note(head: client_pb2.BatchPublish) -> ProducerNote:
    name, position = head.producerName, None
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidBatchError(f"The producer id has more than {MAX_NAME_BYTES} bytes. Use a shorter one.")
    if head.HasField("producerPosition"):
        source = head.producerPosition
        if not source.streamUid or len(source.streamUid.encode()) > MAX_UID_BYTES or source.offset < 0:
            raise InvalidBatchError(
                "The source position needs a stream uid and an offset of 0 or more. Check the version of the client."
            )
        position = SourcePosition(source.streamUid, source.partition, source.offset, source.generation)
    if not head.HasField("producerPartitioning"):
        return ProducerNote(name, position)
    partitioning = Partitioning(head.producerPartitioning.partitions, head.producerPartitioning.method)
    if position is not None or not partitioning.partitions or not 0 <= partitioning.method < 256:
        raise InvalidBatchError(
            "The partitioning needs a number of partitions and a method, and no source position. Check "
            "the version of the client."
        )
    return ProducerNote(name, None, partitioning)


def _claim(head: client_pb2.BatchPublish, published: DecodedBatch, note: ProducerNote) -> Claim | None:
    header = published.header
    if not header.producer_id:
        if head.producerReset or head.producerDigest or head.producerInstance or any(note):
            raise InvalidBatchError("The batch has producer fields, but no producer id. Check the version of the client.")
        return None
    if head.HasField("expectedOffset"):
        raise InvalidBatchError("A batch with a producer id must not have an expected offset. Remove one of them.")
    try:
        digest = RollingDigest.decode(head.producerDigest) if head.producerDigest else None
    except ProtocolError as error:
        raise InvalidBatchError(str(error)) from None
    return Claim(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.record_count,
        head.producerReset,
        digest,
        head.producerInstance,
        note.name,
        note.position,
        note.partitioning,
    )


def _column(columns: MessageColumns, name: str) -> list[object]:
    column = getattr(columns, name)
    if column is None:
        column = [None] * len(columns.values)
        setattr(columns, name, column)
    assert isinstance(column, list)
    return column


def split_at(messages: list[RawMessage], alone: Collection[int]) -> Iterator[list[RawMessage]]:
    """Split ``messages`` in their order: each message whose index is in ``alone`` (ascending) is a list of its own.

    The messages between two of them are a list, too.
    """
    start = 0
    for index in alone:
        if start < index:
            yield messages[start:index]
        yield [messages[index]]
        start = index + 1
    if start < len(messages):
        yield messages[start:]


def runs_of(messages: list[RawMessage], replies: Sequence[bytes]) -> Iterator[list[RawMessage]]:
    """Yield lists of consecutive messages, either all with a reply subject or all without one. ``replies``: reply subject of each."""
    for _, run in groupby(zip(messages, replies, strict=True), key=lambda pair: bool(pair[1])):
        yield [message for message, _ in run]


def split_late(messages: list[RawMessage]) -> tuple[list[list[RawMessage]], list[RawMessage]]:
    """Divide messages into those with a reply subject, which may be rejected as too late, and those without one.

    The first result has lists of messages that can be rejected together. The second result has the messages without a reply
    subject.
    """
    together, alone, others = list[RawMessage](), list[list[RawMessage]](), list[RawMessage]()
    for message in messages:
        _, reply, payload, _ = message
        if not reply:
            others.append(message)
        elif reply.endswith(FAST_BATCH_REPLY) or (payload[_KIND] == BATCH and payload.startswith(MAGIC)):
            alone.append([message])  # together with a batch, the other messages would not be decoded
        else:
            together.append(message)
    return [*([together] if together else []), *alone], others
