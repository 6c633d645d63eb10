"""Detects a data directory that was restored from an older copy, when a node registers [S15, C7, C12].

A copy is equal to the original, including its id and its number of starts. So every process draws a nonce, and stores
it with the number of its start before it registers. The directory keeps earlier nonces. The image knows the start and
nonce that registered last. A directory is a successor only if its start is higher and the known nonce is among its own.

Example: start 1 (nonce A) registers, the directory is copied, start 2 (B) registers and acks. The copy is restored. Its
next process is start 2 with nonce C, and knows only A. So it does not follow start 2 (B).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from liftpy.core.metadata.image import NodeImage
from liftpy.core.wire._pb import cluster_pb2 as pb

MAX_EARLIER_NONCES = 16
"""More starts in a row that were taken by the group, but died before they knew, cost the place in the ISR."""


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """Starts and nonces of the processes of a data directory. Durable."""

    folder_id: str
    """Drawn when the folder was made: an emptied folder is another one."""
    starts: int = 0
    """Number of starts."""
    nonce: int = 0
    """Nonce of the last start. 0: none."""
    registered: int = 0
    """Nonce of the last one that knew itself registered; kept among ``earlier`` however many follow that don't get so far."""
    earlier: tuple[int, ...] = ()
    """Nonces of starts before the last one, oldest first; at most MAX_EARLIER_NONCES."""

    def next(self, nonce: int) -> DirectoryIdentity:
        """Return the identity for the next process, which has drawn ``nonce``."""
        earlier = (*self.earlier, self.nonce) if self.nonce else self.earlier
        kept = earlier[-MAX_EARLIER_NONCES:]
        if self.registered in earlier and self.registered not in kept:
            kept = (self.registered, *kept[1:])
        return replace(self, starts=self.starts + 1, nonce=nonce, earlier=kept)

    def taken(self) -> DirectoryIdentity:
        """Return the identity after the last process was registered."""
        return replace(self, registered=self.nonce)

    def tell(self, request: pb.RegisterNode) -> None:
        """Add the identity of the directory to the registration request."""
        request.folderId, request.start, request.nonce = self.folder_id, self.starts, self.nonce
        request.earlierNonces[:] = self.earlier


def stopped_cleanly(*, failed: bool, opened: bool, logs_are_clean: bool, repairs: bool) -> bool:
    """Return whether a process may leave the clean-stop marker at its end [S9].

    ``failed``: a fatal error occurred. ``opened``: it had opened its partitions. ``logs_are_clean``: all logs were flushed and
    closed. ``repairs``: it stops so that recovery checks a damage.
    """
    return opened and logs_are_clean and not failed and not repairs


class ProcessRelation(Enum):
    """Relation of a registering process to the one that registered last."""

    FOLLOWS = "follows"
    """It starts on the directory that the other process has left, as far as known."""
    SAME = "is the same process"
    OUTLIVED = "is of a process before that one"
    """The request outlived its sender, which a later start has replaced."""
    WENT_BACK = "starts on an older copy"
    """The folder has not seen what the other did."""


def descent(known: NodeImage, request: pb.RegisterNode) -> ProcessRelation:
    """Compare a registration with the ``known`` one.

    Versions without directory id or nonce are judged by the fields that they send.
    """
    if not (known.folder_id and request.folderId):
        return ProcessRelation.FOLLOWS
    if known.folder_id != request.folderId:
        return ProcessRelation.WENT_BACK
    both_drew = bool(known.nonce and request.nonce)
    if both_drew and (request.nonce, request.start) == (known.nonce, known.start):
        return ProcessRelation.SAME
    if request.start < known.start and (request.nonce in known.earlier_nonces or not both_drew):
        return ProcessRelation.OUTLIVED
    if request.start <= known.start or (known.nonce and known.nonce not in request.earlierNonces):
        return ProcessRelation.WENT_BACK
    return ProcessRelation.FOLLOWS
