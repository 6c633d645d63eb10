"""Corrects Raft messages before the library processes them, because the library does not keep these rules:

- Truncate only on a real conflict: entries that the log has already are removed from a message [M3].
- A successful answer never moves ``nextIndex`` back, and counts only in its term.
- A snapshot is assembled and verified before the library writes its file. It is ignored if the log already has its
  entries, and never raises the commit index over unmatched entries [M4].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from liftpy.errors import StorageError
from sidecar.quorum.codec import MAX_NUMBER, Message
from sidecar.quorum.library import Node, RaftCore
from sidecar.quorum.snapshot_file import MAX_SNAPSHOT_BYTES, decode_snapshot_file

Handler = Callable[[Node, Message], None]


class RaftMessageChecks:
    """Corrects the Raft messages of one member's peers before the library gets them."""

    def __init__(self, core: RaftCore, handler: Handler, reply: Callable[[Node, Message], Any], counters: Counter[str]) -> None:
        self._core = core
        self._handler = handler
        self._reply = reply
        self._counters = counters
        self._snapshots: dict[str, bytearray] = {}
        """Sender -> received bytes of an incomplete snapshot, up to MAX_SNAPSHOT_BYTES."""

    def session_ended(self, node_id: str) -> None:
        """Drop the incomplete snapshot from the node, because the session with it has ended."""
        self._snapshots.pop(node_id, None)

    def deliver(self, node: Node, message: Message, term: int) -> bool:
        """Correct ``message`` from ``node`` and pass it to the library. Return False to end the session.

        ``term``: term of the sender, from the frame.
        """
        core = self._core
        match message["type"]:
            case "next_node_idx" if term != core.raftCurrentTerm:
                self._counters["append_answers_of_other_term"] += 1
                return True
            case "next_node_idx" if not 0 < message["next_node_idx"] <= core.log.last_index + 1:
                self._counters["append_answers_beyond_log"] += 1
                return False
            case "next_node_idx" if message["success"] and not message["reset"] and core.leads:
                before = core.next_index(node)
                self._handler(node, message)
                if core.next_index(node) < before:
                    core.set_next_index(node, before)
                return True
            case "append_entries" if "serialized" in message:
                return self._snapshot(node, message)
            case "append_entries" if message["prevLogIdx"] is not None and message["term"] >= core.raftCurrentTerm:
                return self._append(node, message)
        self._handler(node, message)
        return True

    # ---- entries -------------------------------------------------------------------------------------------------------
    def _append(self, node: Node, message: Message) -> bool:
        log = self._core.log
        first, last, previous = self._first(), log.last_index, message["prevLogIdx"]
        if first < previous <= last and self._term_at(previous) != message["prevLogTerm"]:
            if previous > self._core.raftLastApplied:
                # The leader has none of the entries from here on. Without the truncation, the library repeats 'reset' answers
                # that name the same index, and never gets further.
                log.deleteEntriesFrom(previous - first)
                self._counters["conflicting_entries_truncated"] += 1
            self._handler(node, message)
            return True
        if not first <= previous < last or self._term_at(previous) != message["prevLogTerm"]:
            self._handler(node, message)
            return True
        self._strip_known_entries(message, last)
        if not message["entries"] and message["prevLogIdx"] < last:
            self._beat(node, message, min(message["commit_index"], message["prevLogIdx"]))
            self._acknowledge(node, message["prevLogIdx"])
            return True
        self._handler(node, message)
        return True

    def _strip_known_entries(self, message: Message, last: int) -> None:
        entries, count = message["entries"], 0
        while count < len(entries) and entries[count][1] <= last and self._term_at(entries[count][1]) == entries[count][2]:
            count += 1
        if count:
            message["prevLogIdx"], message["prevLogTerm"] = entries[count - 1][1], entries[count - 1][2]
            message["entries"] = entries[count:]
            self._counters["entries_known"] += count

    def _first(self) -> int:
        entry = self._core.log[0]
        assert isinstance(entry, tuple)
        return entry[1]

    def _term_at(self, index: int) -> int:
        entry = self._core.log[index - self._first()]
        assert isinstance(entry, tuple)
        return entry[2]

    def _beat(self, node: Node, message: Message, commit_index: int) -> None:
        """Pass an append message from the leader to the library without its entries, as a heartbeat."""
        self._handler(node, {"type": "append_entries", "term": message["term"], "commit_index": commit_index})

    def _acknowledge(self, node: Node, index: int) -> None:
        self._reply(node, {"type": "next_node_idx", "next_node_idx": index + 1, "reset": False, "success": True})

    # ---- snapshots -----------------------------------------------------------------------------------------------------
    def _snapshot(self, node: Node, message: Message) -> bool:
        if message["term"] < self._core.raftCurrentTerm:
            return True
        piece, known_commit_index = message["serialized"], min(message["commit_index"], self._core.raftCommitIndex)
        if not piece:
            self._beat(node, message, known_commit_index)
            return True
        data, is_first, is_last = piece
        if is_first:
            self._snapshots[node.id] = bytearray()
        parts = self._snapshots.get(node.id)
        if parts is None or len(parts) + len(data) > MAX_SNAPSHOT_BYTES:
            self._counters["snapshot_chunks_out_of_order"] += 1
            return False
        parts += data
        if not is_last:
            self._beat(node, message, known_commit_index)
            return True
        return self._whole_snapshot(node, message, bytes(self._snapshots.pop(node.id)), known_commit_index)

    def _whole_snapshot(self, node: Node, message: Message, data: bytes, known_commit_index: int) -> bool:
        try:
            index, term = decode_snapshot_file(data).last[1:]
        except StorageError:
            self._counters["snapshots_rejected"] += 1
            return False
        if index >= MAX_NUMBER or term > message["term"]:
            self._counters["snapshots_rejected"] += 1
            return False
        log, first = self._core.log, self._first()
        if index <= self._core.raftLastApplied or (first <= index <= log.last_index and self._term_at(index) == term):
            self._counters["snapshots_known"] += 1
            self._beat(node, message, known_commit_index)
            self._acknowledge(node, index)
            return True
        self._counters["snapshots_installed"] += 1
        commit_index = min(message["commit_index"], index)
        install = {"type": "append_entries", "term": message["term"], "commit_index": commit_index}
        self._handler(node, {**install, "serialized": (data, True, True)})
        return True
