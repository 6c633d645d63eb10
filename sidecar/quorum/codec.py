"""Encodes the messages of the Raft library as protobuf. Unknown messages, keys or types are errors [M13].

It also limits the values of terms and indexes.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from liftpy.core.metadata.state_checksum import DIGEST_SIZE, Checkpoint
from liftpy.core.wire import envelope
from liftpy.core.wire._pb import raft_pb2 as pb
from liftpy.core.wire.envelope import EnvelopeError, MessageType
from liftpy.errors import ProtocolError

MAX_NUMBER = 1 << 62
"""Exclusive upper limit of terms and indexes. No group reaches it. A larger value is damaged or forged."""


Message = dict[str, Any]
Entry = tuple[bytes, int, int]
"""Log entry of the library: (command, index, term)."""


_VOTE_FIELDS = {"term": "term", "last_log_index": "lastLogIndex", "last_log_term": "lastLogTerm"}
_ELECTION_MESSAGES = {
    "request_vote": ("requestVote", {**_VOTE_FIELDS, "transfer": "transfer"}),
    "response_vote": ("responseVote", {"term": "term"}),
    "pre_vote": ("preVote", _VOTE_FIELDS),
    "pre_vote_granted": ("preVoteGranted", {"term": "term"}),
    "timeout_now": ("timeoutNow", {"term": "term"}),
}
"""Type of a message -> (field of RaftMessage, {key of the message: field of the protobuf message})."""
_TYPE_OF_FIELD = {field: kind for kind, (field, _) in _ELECTION_MESSAGES.items()}


def _invalid(what: str) -> ProtocolError:
    return ProtocolError(f"{what}. All controllers must run versions of liftpy that work together.")


def encode(message: Message) -> bytes:
    """Encode a message of the Raft library as bytes. Raise ProtocolError for a message that is not in the protocol."""
    return _to_protobuf(message).SerializeToString()


def _to_protobuf(message: Message) -> pb.RaftMessage:
    match message["type"]:
        case "append_entries" if "serialized" in message:
            chunk = pb.RaftSnapshotChunk(term=message["term"], commitIndex=message["commit_index"])
            chunk.sentNs = message.get("sent_ns", 0)
            if message["serialized"]:
                data, first, last = message["serialized"]
                chunk.present, chunk.data, chunk.first, chunk.last = True, data, first, last
            return pb.RaftMessage(snapshotChunk=chunk)
        case "append_entries" if "entries" in message:
            return pb.RaftMessage(appendEntries=_append_to_protobuf(message))
        case "next_node_idx":
            step = pb.RaftNextIndex(nextIndex=message["next_node_idx"], reset=message["reset"], success=message["success"])
            step.appliedIndex = message.get("applied_index", 0)
            step.echoNs = message.get("echo_ns", 0)
            step.minLevel, step.maxLevel = message.get("levels", (0, 0))
            step.digestIndex, step.digest = message.get("checkpoint", (0, b""))
            return pb.RaftMessage(nextIndex=step)
        case kind if kind in _ELECTION_MESSAGES:
            field, names = _ELECTION_MESSAGES[kind]
            given = {"transfer": False, **message}
            return pb.RaftMessage(**{field: {name: given[key] for key, name in names.items()}})
    raise _invalid(f"Invalid message {message['type']!r} of the metadata group, with the fields {sorted(message)}")


def _append_to_protobuf(message: Message) -> pb.RaftAppendEntries:
    append = pb.RaftAppendEntries(term=message["term"], commitIndex=message["commit_index"], sentNs=message.get("sent_ns", 0))
    if message["prevLogIdx"] is not None:
        append.previousIndex, append.previousTerm = message["prevLogIdx"], message["prevLogTerm"]
    append.digestIndex, append.digest = message.get("checkpoint", (0, b""))
    append.entries.extend(pb.RaftEntry(command=c, index=i, term=t) for c, i, t in message["entries"])
    return append


_NUMBERS = (
    "term",
    "commit_index",
    "prevLogIdx",
    "prevLogTerm",
    "next_node_idx",
    "applied_index",
    "last_log_index",
    "last_log_term",
)


def decode(data: bytes) -> Message:
    """Decode a message of the Raft library.

    Raise ProtocolError if it is invalid, or if it has an impossibly large term or index.
    """
    message = _parse(data)
    if any((message.get(name) or 0) >= MAX_NUMBER for name in _NUMBERS):
        raise _invalid("Invalid message of the metadata group: a term or an index is too large")
    if any((message.get(name) or 0) > message.get("term", 0) for name in ("prevLogTerm", "last_log_term")):
        raise _invalid("Invalid message of the metadata group: an entry has a later term than its sender")
    return message


def _parse(data: bytes) -> Message:
    try:
        message = pb.RaftMessage.FromString(data)
    except DecodeError as error:
        raise _invalid(f"Cannot decode a message of the metadata group: {error}") from None
    match message.WhichOneof("message"):
        case "appendEntries":
            return _append_from_protobuf(message.appendEntries)
        case "snapshotChunk":
            chunk = message.snapshotChunk
            piece = (chunk.data, chunk.first, chunk.last) if chunk.present else None
            head = {"type": "append_entries", "term": chunk.term, "commit_index": chunk.commitIndex}
            return {**head, "serialized": piece, "sent_ns": chunk.sentNs}
        case "nextIndex":
            step = message.nextIndex
            return {
                "type": "next_node_idx",
                "next_node_idx": step.nextIndex,
                "reset": step.reset,
                "success": step.success,
                "applied_index": step.appliedIndex,
                "echo_ns": step.echoNs,
                "levels": (step.minLevel, step.maxLevel),
                "checkpoint": _checkpoint(step),
            }
        case str(field):
            kind = _TYPE_OF_FIELD[field]
            values = getattr(message, field)
            return {"type": kind} | {key: getattr(values, name) for key, name in _ELECTION_MESSAGES[kind][1].items()}
    raise _invalid("Invalid message of the metadata group: it is empty")


def _append_from_protobuf(append: pb.RaftAppendEntries) -> Message:
    known = append.HasField("previousIndex")
    if known != append.HasField("previousTerm"):
        raise _invalid("Invalid append message: it has a previous index or a previous term, but not both")
    entries: list[Entry] = []
    for entry in append.entries:
        follows = entry.index == (entries[-1][1] if entries else append.previousIndex if known else entry.index - 1) + 1
        in_bounds = 0 < entry.index < MAX_NUMBER and entry.term <= append.term
        if not entry.command or not follows or not in_bounds:
            raise _invalid(f"Invalid append message: entry {entry.index} is empty or out of order")
        entries.append((entry.command, entry.index, entry.term))
    return {
        "type": "append_entries",
        "term": append.term,
        "commit_index": append.commitIndex,
        "entries": entries,
        "prevLogIdx": append.previousIndex if known else None,
        "prevLogTerm": append.previousTerm if known else None,
        "sent_ns": append.sentNs,
        "checkpoint": _checkpoint(append),
    }


def _checkpoint(message: pb.RaftNextIndex | pb.RaftAppendEntries) -> Checkpoint:
    if message.digestIndex >= MAX_NUMBER or (len(message.digest) == DIGEST_SIZE) != bool(message.digestIndex):
        raise _invalid("Invalid digest in a message of the metadata group: wrong size or position")
    return message.digestIndex, message.digest


# ---- frames on the bus -----------------------------------------------------------------------------------------------


def seal(to: str, sender: str, frame: bytes) -> bytes:
    """Return the payload of a NATS message that carries ``frame`` from the controller ``sender`` to the controller ``to``.

    It is an envelope with a CRC-32C, which also covers the sender and the receiver. So a member accepts a frame only unchanged,
    from its sender, and at its receiver. Members trust the numbers in a frame: a changed bit of a term, or a frame that returns
    under another name, could do harm.

    Layout behind the envelope: size of the names (1 byte) | ``<to>.<from>`` as in the subject | the frame.
    """
    names = f"{to}.{sender}".encode()
    return envelope.encode(MessageType.RAFT_FRAME, b"%c%b%b" % (len(names), names, frame), crc=True)


def unseal(to: str, sender: str, data: bytes) -> bytes:
    """Return the frame in ``data``, a message from the controller ``sender`` to the controller ``to``.

    Raise ProtocolError if it is invalid.
    """
    payload = envelope.sealed_payload(data, MessageType.RAFT_FRAME)
    names = f"{to}.{sender}".encode()
    if payload[:1] != b"%c" % (len(names) & 255) or payload[1 : 1 + len(names)] != names:
        raise EnvelopeError(
            "A message of the metadata group arrived on the wrong subject. Check the NATS subject mappings.", "subject"
        )
    return bytes(payload[1 + len(names) :])
