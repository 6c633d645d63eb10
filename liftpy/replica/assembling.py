"""FetchAssembly: what a follower holds of a batch that comes in pieces, for the fetches of one (LeaderEpoch, offset) [D16].

The core asks again and again at the same offset and knows nothing of bytes; this says how many it holds already, and when they
are a batch. Both shells use it. A late or repeated piece of an earlier request is not taken.
"""

from __future__ import annotations

from liftpy.replica.effects import SendFetch
from liftpy.wire.pieces import Assembly, Held, Piece


class FetchAssembly:
    """Of one replica."""

    def __init__(self) -> None:
        self._assembly = Assembly()
        self._place = (0, -1)
        """(LeaderEpoch, offset) of the fetches that asked for what is held."""
        self._request_id = 0
        """Of the newest fetch."""

    def asks(self, effect: SendFetch) -> Held:
        """A fetch leaves: what it says to hold. In another epoch, at another offset or with a complaint it starts over."""
        if self._place != (effect.leader_epoch, effect.offset) or effect.bad_offset is not None:
            self._assembly.forget()
            self._place = (effect.leader_epoch, effect.offset)
        self._request_id = effect.request_id
        return self._assembly.held

    def is_asked(self, request_id: int) -> bool:
        """Whether an answer to ``request_id`` may be taken."""
        return request_id == self._request_id

    def take(self, piece: Piece) -> memoryview | None:
        """The whole batch, if this was its last piece; then nothing is held any more."""
        return self._assembly.take(piece)

    @property
    def held_bytes(self) -> int:
        """Of the batch that is not whole yet."""
        return self._assembly.held.position

    def forget(self) -> None:
        """Start over."""
        self._assembly.forget()
