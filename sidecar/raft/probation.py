"""Probation: a member whose folder is new, emptied or was put back from an older copy might have forgotten a vote or an entry, and
so counts for nothing [M2, M4, S15]. That it was put back is found out by what the others know of it (``lineage.py``), at any time.

While it lasts the member casts no vote, acknowledges no append (it asks for what comes next instead, which no leader can count), and
neither campaigns nor raises its term. It ends, for good, when

- the member has applied a barrier that was asked for since probation began in this process: the majority that has it does without
  this member, so everything that was ever committed is in front of it. A leader, ``isReady`` and a snapshot in pieces prove nothing
  of the kind; or
- this is the first start of a group: every member has said, to this process, that its journal has never held anything. With the
  operator's word a majority is enough: whoever gives it says that the others have never been members. One of them that comes later
  finds members that are not new, and waits for the barrier.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from liftpy.cluster.controller_list import ControllerList
from sidecar.disk.files import replace_file
from sidecar.raft.journal import GroupJournal
from sidecar.raft.library import RaftCore
from sidecar.raft.lineage import FolderLineage
from sidecar.raft.sessions import Peer

logger = logging.getLogger("liftpy.raft")

MARKER = "member"
"""Name of the file that says that the folder's journal is that of a member which votes."""


def _draw() -> int:
    return random.SystemRandom().getrandbits(63)


def is_first_start(own_is_new: bool, peers: Collection[Peer], *, majority: bool) -> bool:
    """Whether there has never been a group, as far as can be known. ``majority``: the operator has given the word."""
    heard = [peer for peer in peers if peer.heard]
    if not own_is_new or not all(peer.is_new for peer in heard):
        return False
    return len(heard) == len(peers) or (majority and 2 * (len(heard) + 1) > len(peers) + 1)


def waits_for(own_is_new: bool, peers: Collection[Peer], *, went_back: bool = False) -> str:
    """What a member on probation waits for, and what can be done, for people."""
    missing = ", ".join(peer.node_id for peer in peers if not peer.heard)
    old = ", ".join(peer.node_id for peer in peers if peer.heard and not peer.is_new)
    if old or not own_is_new:
        away = ", ".join(peer.node_id for peer in peers if not peer.up) or "nobody"
        state = "went back in time, as with an older copy put back" if went_back else "is new or emptied, the group is not"
        return (
            f"waits for a leader of the metadata group, without a vote until it has caught up: its folder {state} "
            f"(known: {old or 'its own entries'}; not connected: {away}). A majority of the other controllers has to run"
        )
    return (
        f"waits for {missing or 'the others to begin'}: the first start of the metadata group takes all its controllers. If one "
        "can't come, and has never been a member, start a majority of them with --bootstrap-majority"
    )


class Probation:
    """Of one member, from the opening of its folder on. ``majority``: the operator's word for the first start; ``joins``: the group
    runs, and this node is to become a member of it: whatever its folder holds, nothing begins here."""

    def __init__(
        self,
        folder: Path,
        members: tuple[str, ...],
        *,
        majority: bool = False,
        joins: bool = False,
        draw: Callable[[], int] = _draw,
    ) -> None:
        self._marker = folder / MARKER
        self.lineage = FolderLineage(folder, draw, len(members) // 2 + 1)
        self._alone = len(members) == 1 and not joins
        """It is the only voter there is."""
        self._joins = joins
        self._majority = majority
        self._core: RaftCore | None = None
        self._by_id: Mapping[str, Peer] = {}
        self.has_been_member = self._marker.exists()
        """The folder's journal is that of a member that votes: it must be there, and whole."""
        self.over = (self.has_been_member and not self.lineage.missed) or self._alone
        self.turn = 0
        """How many times it has begun since the opening: a barrier that was asked for in an earlier turn does not end it."""

    def opened(self, journal: GroupJournal) -> None:
        """The journal is open, the library is not made yet. What a member on probation stored as its term was no promise to anybody,
        and an earlier version campaigned: it would never hear a leader again."""
        if not self.over:
            journal.forget_promises()

    def attach(self, core: RaftCore, peers: Mapping[str, Peer]) -> None:
        """The library is made: it obeys from now on."""
        self._core, self._by_id = core, peers
        core.on_probation = not self.over
        self.follow(core.controllers)

    @property
    def _peers(self) -> Collection[Peer]:
        return self._by_id.values()

    def follow(self, controllers: ControllerList) -> None:
        """The log says who the members are."""
        if self._core is not None:
            self._alone = controllers.voters == (str(self._core.selfNode.id),)
            self._joins = self._joins or controllers.index > 0
            self.lineage.majority = controllers.majority

    def heard(self, peer_id: str, tail: bytes) -> bool:
        """A peer's hello: whether it is believed. It may tell that the own folder went back: ``FolderLineage.heard``."""
        trusted = self.lineage.heard(peer_id, tail)
        if self.lineage.missed and self.over and not self._alone:
            assert self._core is not None
            self.over = False
            self.turn += 1
            self._core.begin_probation()
            logger.error(
                "the raft folder went back in time: %s knows a later process on it than the folder does, as with an older copy put "
                "back. This controller neither votes nor leads until it has caught up with the others",
                peer_id,
            )
        return trusted

    def look(self) -> None:
        """After a tick that is flushed: a first start may be complete."""
        if self.over and not self.has_been_member:
            self._end()  # the only member there is
        elif not (self.over or self._joins) and is_first_start(self._own_is_new, self._peers, majority=self._majority):
            assert self._core is not None
            # A vote that this member gave before its folder was lost was in one of the terms that its peers know.
            self._core.vote_is_spent_up_to(max((peer.term for peer in self._peers), default=0))
            self._end()

    def barrier_applied(self, turn: int) -> None:
        """A barrier that was asked for by this process in ``turn`` is applied here."""
        if not self.over and turn == self.turn:
            self._end()

    def waits_for(self) -> str:
        """What it waits for, for people; '' when it is over."""
        return "" if self.over else waits_for(self._own_is_new, self._peers, went_back=self.has_been_member)

    @property
    def _own_is_new(self) -> bool:
        assert self._core is not None
        return self._core.log.last_index <= 1

    def _end(self) -> None:
        assert self._core is not None
        self._core.log.sync()
        self.lineage.caught_up()
        replace_file(self._marker, f"{self._core.selfNode.id}\n".encode())
        self.over = self.has_been_member = True
        self._core.end_probation()
        logger.info("%s is a voting member of the metadata group", self._core.selfNode.id)
