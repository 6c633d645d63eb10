"""Transfers the derived state to a replica whose copy of the log begins above 0 [A16]. Pure.

The new replica must know producers and message ids whose records are deleted. Before its first fetch it requests the
state from the leader. The state arrives in pieces as the bytes of a state file. The replica stores the file, fetches,
and uses the state when its copy reaches ``end_offset``. That happens before it can be in sync [D19]. If the leader
changes, the transfer restarts with the new leader.

A leader of an earlier version does not answer the request. After ``MAX_REQUESTS`` unanswered requests the replica fetches once,
to see if the leader answers at all. If the leader answers fetches but never the request, the replica continues without
the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from liftpy.config import NS_PER_S
from liftpy.core.log.log import Log
from liftpy.core.publish.log_state import LogState
from liftpy.core.publish.state_file import MAX_STATE_BYTES, decode_state, encode_parts, remove_states, state_name
from liftpy.errors import LiftError

MAX_REQUESTS = 10
"""Number of consecutive requests without an answer after which the replica fetches once."""
_MAX_RETRIES_OF_STATE = 3
"""Number of requests for a state that follow a fetch with an answer."""
_PROBES = 2
"""Number of answered fetches without an answered request, after which the replica continues without the state."""
PIECE_BYTES = 512 * 1024
"""Maximum size of a part of a state in one answer, in bytes."""
HOLD_NS = 30 * NS_PER_S
"""Time for which a replica keeps a state in memory after the last request for a part of it, in nanoseconds."""
FRESH_NS = 2 * NS_PER_S
"""Maximum age of an encoded state that is sent to further replicas, in nanoseconds. Concurrent transfers share one state."""


class StatePieceRequest(NamedTuple):
    """Request of a replica for the next piece of the leader's state. ``position``: number of bytes that the replica already has."""

    end_offset: int = 0
    position: int = 0


class StatePiece(NamedTuple):
    """A piece of the leader's state. ``position``: place of ``data`` in the bytes of the state.

    ``total_bytes``: size of the state. 0: the log alone is enough, so there is no state to send.
    """

    end_offset: int = 0
    total_bytes: int = 0
    position: int = 0
    data: bytes = b""


class StateServer:
    """Sends the derived state of a replica to followers and backups. It stores at most one encoded state.

    ``run(work, then)`` calls ``work`` in any thread, and then ``then`` with its result on the thread of the replica.
    """

    __slots__ = (
        "_data", "_encoded_ns", "_end_offset", "_is_encoding", "_log_state", "_now_ns", "_owner", "_run", "_used_ns", "given",
    )  # fmt: skip

    def __init__(
        self,
        log_state: LogState,
        owner: str,
        now_ns: Callable[[], int],
        run: Callable[[Callable[[], bytes], Callable[[bytes], None]], None] = lambda work, then: then(work()),
    ) -> None:
        self._log_state = log_state
        self._owner = owner
        self._now_ns = now_ns
        self._run = run
        self._end_offset, self._data = 0, b""
        self._used_ns = self._encoded_ns = 0
        self._is_encoding = False
        self.given = 0
        """Number of states whose last piece was sent."""

    def read_piece(self, request: StatePieceRequest, most_bytes: int = PIECE_BYTES) -> StatePiece | None:
        """Return the piece of the state that a replica has requested, of at most ``most_bytes``.

        None: the state is not encoded yet, so the replica retries later. Only a leader gets this request.
        """
        self._log_state.drop_awaited()  # an unclean election can make an incomplete copy the leader
        return self._read_piece(request, most_bytes)

    def _read_piece(self, request: StatePieceRequest, most_bytes: int) -> StatePiece | None:
        log_state = self._log_state
        self._used_ns = self._now_ns()
        has_state = bool(self._data) and not self._is_encoding
        if has_state and request.end_offset != self._end_offset and self._used_ns - self._encoded_ns < FRESH_NS:
            request = StatePieceRequest(self._end_offset)
        elif not has_state or not request.position or request.end_offset != self._end_offset:
            if self._is_encoding:
                return None
            if log_state.is_blank and log_state.is_complete:
                return StatePiece()
            unwritten = log_state.snapshot(self._owner, with_losses=True)
            if unwritten is None:
                log_state.catch_up()
                return None
            self._is_encoding, self._data = True, b""
            self._run(lambda: encode_parts(unwritten), lambda data: self._state_encoded(unwritten.end_offset, data))
            if self._is_encoding:
                return None
            request = StatePieceRequest()
        if len(self._data) > MAX_STATE_BYTES:
            return StatePiece()
        piece = self._data[request.position : request.position + most_bytes]
        self.given += request.position + len(piece) == len(self._data)
        return StatePiece(self._end_offset, len(self._data), request.position, piece)

    def read_piece_below(self, end_offset: int, position: int, most_bytes: int) -> StatePiece | None:
        """Return a piece of the state below ``end_offset`` for a reader, such as a backup. None: the reader retries later.

        ``position``: number of bytes that the reader already has. ``most_bytes``: maximum size of the piece.
        """
        return self._read_piece(StatePieceRequest(end_offset, position), min(most_bytes, PIECE_BYTES))

    def _state_encoded(self, end_offset: int, data: bytes) -> None:
        self._is_encoding, self._end_offset, self._data = False, end_offset, data
        self._encoded_ns = self._now_ns()

    def forget_unused(self) -> None:
        """Drop the encoded state if no replica has requested it for ``HOLD_NS`` nanoseconds."""
        if self._data and self._now_ns() - self._used_ns >= HOLD_NS:
            self._data = b""


class StateFetcher:
    """Requests the derived state from the leader, for a follower whose empty log begins above 0, and stores it as a state file."""

    __slots__ = (
        "_end_offset", "_leader_epoch", "_log", "_log_state", "_owner", "_pieces", "_probes", "_silent", "_total_bytes",
        "is_wanted", "missed", "taken",
    )  # fmt: skip

    def __init__(self, log_state: LogState, log: Log, owner: str) -> None:
        self._log_state = log_state
        self._log = log
        self._owner = owner
        self.is_wanted = log.log_start_offset > 0 and log.log_end_offset == log.log_start_offset and log_state.covered < 0
        """True if the follower needs the complete state before its next fetch."""
        self._leader_epoch = 0
        self._silent = 0
        """Number of consecutive requests without an answer."""
        self._probes = 0
        self._end_offset, self._total_bytes = 0, 0
        self._pieces = bytearray()
        self.taken = 0
        """Number of received states."""
        self.missed = 0
        """Number of times that the follower continued without the state, because its leader does not know the request."""

    def log_was_reset(self) -> None:
        """Note that all records of the log were deleted, so that the state must be requested if the log begins above 0."""
        self.is_wanted = self._log.log_start_offset > 0
        self._begin()

    def _begin(self) -> None:
        self._end_offset, self._total_bytes = 0, 0
        self._pieces.clear()

    def asks(self, leader_epoch: int) -> StatePieceRequest | None:
        """Return the request for the next piece of the state, to send to the leader of ``leader_epoch`` instead of a fetch.

        None: send a fetch.
        """
        if not self.is_wanted:
            return None
        if leader_epoch != self._leader_epoch:
            self._leader_epoch, self._probes = leader_epoch, 0
            self._begin()
        self._silent = self._silent + 1 if self._silent <= MAX_REQUESTS else 1
        if self._silent > MAX_REQUESTS:
            return None
        return StatePieceRequest(self._end_offset, len(self._pieces))

    def note_no_responders(self) -> None:
        """Note that NATS reported no responders for a request. This does not mean that the leader has an earlier version."""
        self._silent = 0

    def fetch_answered(self) -> bool:
        """Note that the leader answered a fetch. Return True if the follower gives up requesting the state.

        It does so if the leader has answered fetches but no request for the state.
        """
        if not self.is_wanted or self._silent <= MAX_REQUESTS:
            return False
        self._probes += 1
        self._silent = MAX_REQUESTS - _MAX_RETRIES_OF_STATE
        if self._probes >= _PROBES:
            self.is_wanted = False
            self.missed += 1
        return not self.is_wanted

    def add_piece(self, piece: StatePiece | None) -> bool:
        """Add a received piece of the state. Return whether the next request can be sent at once. Raises StorageError.

        ``piece``: None if the leader has not encoded the state yet.
        """
        self._silent = self._probes = 0
        if piece is None or not self.is_wanted:
            return piece is not None
        if not piece.total_bytes:
            self.is_wanted = False
            return True
        if piece.position != len(self._pieces) or (piece.position and piece.end_offset != self._end_offset):
            self._begin()
            if piece.position:
                return True
        if not piece.data or piece.total_bytes > MAX_STATE_BYTES or len(self._pieces) + len(piece.data) > piece.total_bytes:
            self._begin()
            return False
        self._end_offset, self._total_bytes = piece.end_offset, piece.total_bytes
        self._pieces += piece.data
        return self._is_whole() if len(self._pieces) == piece.total_bytes else True

    def _is_whole(self) -> bool:
        data, name = bytes(self._pieces), state_name(self._end_offset)
        try:
            state = decode_state(data)
        except LiftError:
            state = None
        self._begin()
        if state is None or state.owner != self._owner or state_name(state.end_offset) != name:
            return False
        if state.end_offset < self._log.log_start_offset:
            return False  # the state is from an earlier leader: ask for a newer one
        self._log.storage.replace(name, data)
        remove_states(self._log.storage, keep=name)
        self._log_state.use_stored_state(state)
        self._log_state.catch_up()
        self.is_wanted = False
        self.taken += 1
        return True
