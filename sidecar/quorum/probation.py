"""Probation: a controller with a new, emptied or restored directory does not vote until it has caught up [M2, M4, S15].

Such a controller may have forgotten a vote or an entry. During probation it casts no vote, acknowledges no entry, and
starts no election. Probation ends in two cases:

- The controller has applied a barrier that was requested after its start. The majority that committed the barrier does
  not need the votes of this controller.
- It is the first start of a group: every controller reports that its journal was never used. With
  ``bootstrap_majority``, a majority is enough.

``DirectoryLineage`` detects a directory that was restored from an older copy. Every process draws a nonce and stores it
with earlier ones. Controllers store the nonce of each peer. If a peer's directory lacks the nonce that other
controllers have stored, its votes and acks are ignored until it has caught up.

Example: process A stops, the directory is copied, process B starts and acks entry 7. The copy is restored. Its next
process C has only the nonce of A. A controller that has the nonce of B ignores C until C has applied a barrier.

Two cases are not detected: all directories were restored together, or a running directory was copied. Peers of versions
without nonces are trusted.
"""

from __future__ import annotations

import logging
import random
import shutil
import struct
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from liftpy.core.base.strict_json import whole_number
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.errors import CorruptionError, ProtocolError, StorageError, UnknownFormatError
from sidecar.disk.files import decode_checked_json, encode_checked_json, replace_file, sync_folder
from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.library import RaftCore
from sidecar.quorum.peer_sessions import Peer

logger = logging.getLogger("liftpy.quorum")

FILE = "lineage"
MAX_EARLIER = 64
"""Maximum number of stored nonces of earlier processes, besides the nonces that peers know."""
MAX_MISSED = 16
_FORMAT = 1
_TAIL = struct.Struct("<QQB")
"""Data after a hello: nonce of the sender, known nonce of the receiver (0: none), number of other nonces in the directory."""
_NONCE = struct.Struct("<Q")
MARKER = "member"
"""Name of the file that marks the journal of a member that votes."""
MARK = "diverged"


class DirectoryLineage:
    """Nonces of all processes that used one Raft directory, to detect that the directory is an older copy.

    ``draw``: returns a random 63-bit number. ``majority``: number of controllers in a majority.
    """

    def __init__(self, folder: Path, draw: Callable[[], int], majority: int = 2) -> None:
        self._path = folder / FILE
        self.nonce = 0
        """Nonce of this process. 0: none yet. It is stored before it is used."""
        self.earlier: tuple[int, ...] = ()
        """Nonces of earlier processes of this directory, oldest first, up to a limit."""
        self.missed: tuple[int, ...] = ()
        """Nonces of this member that peers have stored, but that this directory lacks.

        If there are any, it is an older copy.
        """
        self.known: dict[str, int] = {}
        """Peer -> nonce of the peer's last trusted process."""
        self._known_as: dict[str, int] = {}
        """Peer -> nonce of this member that the peer has stored, by its last hello."""
        self.majority = majority
        self._doubts: dict[str, int] = {}
        """Peer -> nonce of this member that the peer has stored, but that this directory does not have."""
        self._changed = True
        self._load()
        if self.nonce:
            self._hold(self.nonce)
        self.nonce = draw() | 1
        self.sync()

    def holds(self, nonce: int) -> bool:
        """Return whether the process with this nonce has used the directory before its current state."""
        return nonce == self.nonce or nonce in self.earlier

    def tail_for(self, peer_id: str) -> bytes:
        """Return the nonces of this directory as bytes, which a hello to the peer contains at its end."""
        tail = _TAIL.pack(self.nonce, self.known.get(peer_id, 0), len(self.earlier))
        return tail + b"".join(map(_NONCE.pack, self.earlier))

    def process_hello(self, peer_id: str, tail: bytes) -> bool:
        """Process the nonces in a peer's hello. Return whether the peer is trusted: its directory is no older copy.

        Raises ProtocolError for an invalid ``tail``. New nonces are durable with the next ``sync``.
        """
        if not tail:
            return True
        nonce, known_as, nonces = _parse(tail)
        known = self.known.get(peer_id, 0)
        # One that went back itself has no say: it must hear a leader whose folder was emptied since, and caught up.
        trusted = bool(self.missed) or known in (0, nonce) or known in nonces
        if trusted and known != nonce:
            self.known[peer_id], self._changed = nonce, True
        if known_as:
            self._process_own_nonce(peer_id, known_as, trusted)
        return trusted

    def _process_own_nonce(self, peer_id: str, nonce: int, trusted: bool) -> None:
        if self.holds(nonce):
            self._doubts.pop(peer_id, None)
            if self._known_as.get(peer_id) != nonce:
                self._known_as[peer_id], self._changed = nonce, True
            return
        self._doubts[peer_id] = nonce
        # The older copy may be this directory or that of the peer. One peer that is an older copy itself proves nothing.
        if (trusted or len(self._doubts) >= self.majority) and nonce not in self.missed:
            self.missed, self._changed = (*self.missed, nonce)[-MAX_MISSED:], True

    def caught_up(self) -> None:
        """Store that this directory, which was an older copy, has caught up with the newest state that peers have seen.

        The peers accept it again with the next hello.
        """
        if self.missed:
            self._hold(*self.missed)
            self.missed, self._changed = (), True
            self.known.clear()
        self.sync()

    def _hold(self, *nonces: int) -> None:
        """Add nonces of earlier processes to the directory, and drop the oldest ones. A nonce that a peer has stored stays."""
        every = (*self.earlier, *nonces)
        current_nonces = set(self._known_as.values())
        self.earlier = tuple(n for n in every[:-MAX_EARLIER] if n in current_nonces) + every[-MAX_EARLIER:]
        self._changed = True

    # ---- disk ----------------------------------------------------------------------------------------------------------
    def sync(self) -> None:
        """Flush changed nonces to disk. No message that depends on them may be sent before."""
        if not self._changed:
            return
        fields = {
            "format": _FORMAT,
            "nonce": self.nonce,
            "earlier": self.earlier,
            "missed": self.missed,
            "known": self.known,
            "known_as": self._known_as,
        }
        replace_file(self._path, encode_checked_json(fields))
        self._changed = False

    def _load(self) -> None:
        """Load the nonces from the directory. A new directory, or one of an older version, has none."""
        try:
            fields = decode_checked_json(self._path.read_bytes())
            version = fields["format"]
            if version == _FORMAT:
                self.nonce = _nonce(fields["nonce"])
                self.earlier, self.missed = tuple(map(_nonce, fields["earlier"])), tuple(map(_nonce, fields["missed"]))
                self.known = {str(peer): _nonce(nonce) for peer, nonce in fields["known"].items()}
                self._known_as = {str(peer): _nonce(nonce) for peer, nonce in fields["known_as"].items()}
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"Cannot read {self._path}: {error.strerror}. Check the disk and its permissions.") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptionError(
                f"{self._path} is damaged ({error}). If other controllers run, delete {self._path.parent}: this one "
                "then copies the log before it votes. A single controller: delete only this file."
            ) from None
        if version != _FORMAT:
            raise UnknownFormatError(
                f"{self._path} has format version {version}, but this version reads {_FORMAT}. Start the newer "
                "version of liftpy."
            )


def _nonce(value: object) -> int:
    return whole_number(value, 1, (1 << 64) - 1)


def _parse(tail: bytes) -> tuple[int, int, tuple[int, ...]]:
    """Return (nonce of the sender, nonce by which it knows the receiver, other nonces of the sender) from a hello.

    Raises ProtocolError if ``tail``, the nonces at the end of the hello, is invalid.
    """
    if len(tail) < _TAIL.size:
        raise ProtocolError(
            f"Invalid hello of a controller: its nonces have {len(tail)} bytes. Check the versions of the controllers."
        )
    nonce, known_as, count = _TAIL.unpack_from(tail)
    if not nonce or len(tail) != _TAIL.size + count * _NONCE.size:
        raise ProtocolError(
            f"Invalid hello of a controller: {count} nonces in {len(tail)} bytes. Check the versions of the controllers."
        )
    return nonce, known_as, tuple(earlier_nonce for (earlier_nonce,) in _NONCE.iter_unpack(tail[_TAIL.size :]))


def _draw() -> int:
    return random.SystemRandom().getrandbits(63)


def is_first_start(own_is_new: bool, peers: Collection[Peer], *, majority: bool) -> bool:
    """Return whether this is the first start of the group: its members report that their journals were never used.

    ``own_is_new``: True if this member's journal was never used. ``majority``: True if a majority of such members is enough.
    """
    reachable = [peer for peer in peers if peer.heard]
    if not own_is_new or not all(peer.is_new for peer in reachable):
        return False
    return len(reachable) == len(peers) or (majority and 2 * (len(reachable) + 1) > len(peers) + 1)


def waits_for(own_is_new: bool, peers: Collection[Peer], *, went_back: bool = False) -> str:
    """Return a text for operators: what a member on probation waits for, and what they can do.

    ``went_back``: True if its directory is an older copy.
    """
    missing = ", ".join(peer.node_id for peer in peers if not peer.heard)
    old = ", ".join(peer.node_id for peer in peers if peer.heard and not peer.is_new)
    if old or not own_is_new:
        away = ", ".join(peer.node_id for peer in peers if not peer.up) or "nobody"
        state = "went back in time, as with an older copy put back" if went_back else "is new or emptied, the group is not"
        return (
            f"waits for a leader of the metadata group, without a vote until it has caught up: its raft directory {state} "
            f"(known: {old or 'its own entries'}; not connected: {away}). A majority of the other controllers has to run"
        )
    return (
        f"waits for {missing or 'the others to begin'}: the first start of the metadata group takes all its controllers. If one "
        "can't come, and has never been a member, start a majority of them with --bootstrap-majority"
    )


class Probation:
    """Decides whether one controller is on probation, so that it may not vote.

    ``majority``: the setting ``bootstrap_majority``. ``joins``: True if this node joins a running group.
    """

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
        self.lineage = DirectoryLineage(folder, draw, len(members) // 2 + 1)
        self._alone = len(members) == 1 and not joins
        """True if this member is the only voter."""
        self._joins = joins
        self._majority = majority
        self._core: RaftCore | None = None
        self._by_id: Mapping[str, Peer] = {}
        self.has_been_member = self._marker.exists()
        """True if this directory belongs to a member that votes. Then its journal must exist and be complete."""
        self.over = (self.has_been_member and not self.lineage.missed) or self._alone
        self.turn = 0
        """Number of the current probation in this process. A barrier that was requested in an earlier one does not end it."""

    def journal_opened(self, journal: GroupJournal) -> None:
        """Reset the stored term, because a member on probation has promised no vote. Call it when the journal is open."""
        if not self.over:
            journal.forget_promises()

    def attach(self, core: RaftCore, peers: Mapping[str, Peer]) -> None:
        """Connect the probation with the library. ``peers``: session with each other member, by node."""
        self._core, self._by_id = core, peers
        core.on_probation = not self.over
        self.follow(core.controllers)

    @property
    def _peers(self) -> Collection[Peer]:
        return self._by_id.values()

    def follow(self, controllers: ControllerList) -> None:
        """Set the members of the group to the controller list in the log."""
        if self._core is not None:
            self._alone = controllers.voters == (str(self._core.selfNode.id),)
            self._joins = self._joins or controllers.index > 0
            self.lineage.majority = controllers.majority

    def process_hello(self, peer_id: str, tail: bytes) -> bool:
        """Process a peer's hello. Return whether the peer is trusted: its directory is no older copy.

        The hello may show that the own directory is an older copy. Then a new probation begins.
        """
        trusted = self.lineage.process_hello(peer_id, tail)
        if self.lineage.missed and self.over and not self._alone:
            assert self._core is not None
            self.over = False
            self.turn += 1
            self._core.begin_probation()
            logger.error(
                (
                    "older raft directory found known_by=%s: perhaps an older copy was restored. This controller neither "
                    "votes nor leads until it has caught up"
                ),
                peer_id,
            )
        return trusted

    def end_if_complete(self) -> None:
        """End the probation if the first start of the group is complete. Call it after each flushed tick."""
        if self.over and not self.has_been_member:
            self._end()  # the only member there is
        elif not (self.over or self._joins) and is_first_start(self._own_is_new, self._peers, majority=self._majority):
            assert self._core is not None
            # A vote that this member gave before its folder was lost was in one of the terms that its peers know.
            self._core.vote_is_spent_up_to(max((peer.term for peer in self._peers), default=0))
            self._end()

    def barrier_applied(self, turn: int) -> None:
        """End the probation, because a barrier that this process requested is applied.

        ``turn``: number of the probation in which it was requested. A barrier of an earlier probation changes nothing.
        """
        if not self.over and turn == self.turn:
            self._end()

    def waits_for(self) -> str:
        """Return a text for operators: what the probation waits for. '': it has ended."""
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
        logger.info("controller votes node=%s", self._core.selfNode.id)


# ---- directory of a diverged controller ------------------------------------------------------------------------------


def mark_diverged(folder: Path, index: int) -> None:
    """Store durably that this member's image differs from that of a majority, before the process ends.

    ``<data>/raft/diverged`` has the ``index`` at which the difference was found. The directory is no longer used. Raises
    StorageError.
    """
    replace_file(folder / MARK, f"{index}\n".encode())


def quarantine_diverged(folder: Path) -> bool:
    """Quarantine the directory at the next start if it is marked as diverged. Return whether it was. Raises OSError.

    ``<data>/raft-diverged/`` is the last quarantined directory. A later one replaces it.
    """
    if not (folder / MARK).exists():
        return False
    aside = folder.with_name(f"{folder.name}-{MARK}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    sync_folder(folder.parent)
    logger.error("image differs from the majority quarantined_directory=%s: fetching a new image", aside)
    return True
