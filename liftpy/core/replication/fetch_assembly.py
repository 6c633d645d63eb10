"""``FetchAssembly``: the received part of a batch that comes in pieces, for the fetches of one (LeaderEpoch, offset) [D16].

The follower repeats the request at one offset and does not count bytes. The shell counts the received bytes here, and detects when
the batch is complete. A late or repeated piece of an earlier request is ignored.
"""

from __future__ import annotations

from liftpy.core.replication.messages import FetchRequest
from liftpy.core.wire.chunking import Assembly, PartialBatch, Piece


class FetchAssembly:
    """Assembles a batch that arrives in pieces, for one replica that fetches."""

    __slots__ = ("_assembly", "_place", "_request_id")

    def __init__(self) -> None:
        self._assembly = Assembly()
        self._place = (0, -1)
        """(LeaderEpoch, offset) of the fetches that the stored pieces belong to."""
        self._request_id = 0
        """Id of the newest fetch."""

    def fetch_sent(self, effect: FetchRequest) -> PartialBatch:
        """Note a new fetch. Return the part of the batch that is already stored, which the fetch names.

        The stored part is dropped if the fetch has another epoch or offset, or reports damage.
        """
        if self._place != (effect.leader_epoch, effect.offset) or effect.bad_offset is not None:
            self._assembly.forget()
            self._place = (effect.leader_epoch, effect.offset)
        self._request_id = effect.request_id
        return self._assembly.held

    def is_newest_request(self, request_id: int) -> bool:
        return request_id == self._request_id

    def add_piece(self, piece: Piece) -> memoryview | None:
        return self._assembly.add_piece(piece)

    @property
    def held_bytes(self) -> int:
        return self._assembly.held.position

    def forget(self) -> None:
        self._assembly.forget()
