"""FolderLineage: whose memory a raft folder holds, and by which process each other member knows it [S15, M2, M4].

Goal: a folder that was put back from an older copy has forgotten votes and entries that it acknowledged; nobody may count on it before
it has caught up. Constraint: the copy is like the original in all that it holds, its ``member`` marker included.
Algorithm: every process draws a nonce, and stores it with those of the processes before it, before it says hello. A member stores
the nonce of each peer that it hears, before it counts on it. A peer says in its hello which nonces its folder holds: when the one
that it is known by is not among them, the folder has not seen what that process did. Who hears so believes neither its votes nor its
acknowledgements, and the peer finds out by the same rule, as every hello names the nonce that the receiver is known by (of those that
it does not believe itself it takes a majority). Once it has caught up, by a barrier that was committed without it, it counts what it
had missed among its own: from then on it is believed again.

Worked example: process A stops, the folder is copied, process B starts, says hello, acknowledges entry 7. The copy is put back; its
next process C holds C and A. A member that has heard B does not believe C, and tells it "B". C counts for nothing, applies a barrier,
holds C, A and B, and is believed.

What can't be told: that a folder went back behind a process that none of those who are there has ever heard; that all folders went
back together; and a copy of a running folder, as it knows the process that went on after it. A peer of a version without nonces is
believed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import crc32c

from liftpy.errors import CorruptionError, ProtocolError, StorageError, UnknownFormatError
from liftpy.strict_json import load_json, whole_number
from sidecar.disk.files import replace_file

FILE = "lineage"
MAX_EARLIER = 64
"""Nonces of processes before this one that are kept, beside those by which a peer is known to know this folder."""
MAX_MISSED = 16
_FORMAT = 1
_TAIL = struct.Struct("<QQB")
"""Of a hello: nonce of the sender, nonce that it knows of the receiver (0: none), how many others the sender's folder holds."""
_NONCE = struct.Struct("<Q")


class FolderLineage:
    """Of one raft folder, from the start of a process on. ``draw`` gives a random 63-bit number; ``majority``: members that are one."""

    def __init__(self, folder: Path, draw: Callable[[], int], majority: int = 2) -> None:
        self._path = folder / FILE
        self.nonce = 0
        """Of this process; durable."""
        self.earlier: tuple[int, ...] = ()
        """Of the processes whose memory the folder holds besides, oldest first; bounded."""
        self.missed: tuple[int, ...] = ()
        """Nonces by which peers know this member, of processes of which the folder holds nothing: it went back in time."""
        self.known: dict[str, int] = {}
        """Peer -> nonce of the last process that was heard of it, or that its folder has followed."""
        self._known_as: dict[str, int] = {}
        """Peer -> the nonce of this folder by which it last said to know it."""
        self.majority = majority
        self._doubts: dict[str, int] = {}
        """Peer -> the nonce by which it last said to know this folder, where the folder holds nothing of that process."""
        self._changed = True
        self._load()
        if self.nonce:
            self._hold(self.nonce)
        self.nonce = draw() | 1
        self.sync()

    def holds(self, nonce: int) -> bool:
        """Whether the folder holds what that process knew."""
        return nonce == self.nonce or nonce in self.earlier

    def tail_for(self, peer_id: str) -> bytes:
        """What a hello to the peer says behind its frame."""
        tail = _TAIL.pack(self.nonce, self.known.get(peer_id, 0), len(self.earlier))
        return tail + b"".join(map(_NONCE.pack, self.earlier))

    def heard(self, peer_id: str, tail: bytes) -> bool:
        """Take in what the peer's hello to this very process says; whether it is believed.

        Raises ProtocolError for what is no such tail. What is new is durable with the next ``sync``.
        """
        if not tail:
            return True
        nonce, known_as, held = _parse(tail)
        known = self.known.get(peer_id, 0)
        # One that went back itself has no say: it must hear a leader whose folder was emptied since, and caught up.
        trusted = bool(self.missed) or known in (0, nonce) or known in held
        if trusted and known != nonce:
            self.known[peer_id], self._changed = nonce, True
        if known_as:
            self._heard_of_itself(peer_id, known_as, trusted)
        return trusted

    def _heard_of_itself(self, peer_id: str, nonce: int, trusted: bool) -> None:
        if self.holds(nonce):
            self._doubts.pop(peer_id, None)
            if self._known_as.get(peer_id) != nonce:
                self._known_as[peer_id], self._changed = nonce, True
            return
        self._doubts[peer_id] = nonce
        # A folder that went back may know a process that was forgotten, and made up for, long ago; but so may this one of the peer.
        if (trusted or len(self._doubts) >= self.majority) and nonce not in self.missed:
            self.missed, self._changed = (*self.missed, nonce)[-MAX_MISSED:], True

    def caught_up(self) -> None:
        """Make durable that the folder holds everything that those processes knew of which it held nothing. What it knew of the
        peers was as old as the rest of it: they say who they are with their next hello."""
        if self.missed:
            self._hold(*self.missed)
            self.missed, self._changed = (), True
            self.known.clear()
        self.sync()

    def _hold(self, *nonces: int) -> None:
        """One more each; those that a peer knows it by stay, however many have come since."""
        every = (*self.earlier, *nonces)
        told = set(self._known_as.values())
        self.earlier = tuple(n for n in every[:-MAX_EARLIER] if n in told) + every[-MAX_EARLIER:]
        self._changed = True

    # ---- disk ----------------------------------------------------------------------------------------------------------
    def sync(self) -> None:
        """Make durable what has changed: before anything leaves that follows from it."""
        if not self._changed:
            return
        said = {
            "format": _FORMAT,
            "nonce": self.nonce,
            "earlier": self.earlier,
            "missed": self.missed,
            "known": self.known,
            "known_as": self._known_as,
        }
        body = json.dumps(said, sort_keys=True).encode()
        replace_file(self._path, f"{crc32c.crc32c(body):08x}\n".encode() + body)
        self._changed = False

    def _load(self) -> None:
        """What is stored; nothing on a new folder, and on one of a version without nonces."""
        try:
            crc, _, body = self._path.read_bytes().partition(b"\n")
            if int(crc, 16) != crc32c.crc32c(body):
                raise ValueError("checksum")
            said = load_json(body)
            version = said["format"]
            if version == _FORMAT:
                self.nonce = _nonce(said["nonce"])
                self.earlier, self.missed = tuple(map(_nonce, said["earlier"])), tuple(map(_nonce, said["missed"]))
                self.known = {str(peer): _nonce(nonce) for peer, nonce in said["known"].items()}
                self._known_as = {str(peer): _nonce(nonce) for peer, nonce in said["known_as"].items()}
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"read {self._path}: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptionError(
                f"{self._path} can't be trusted ({error}): where other controllers run, remove {self._path.parent}, and this one "
                "catches up from them before it votes; a single controller goes on without this file alone"
            ) from None
        if version != _FORMAT:
            raise UnknownFormatError(f"{self._path} has format version {version}, this version reads {_FORMAT}")


def _nonce(value: object) -> int:
    return whole_number(value, 1, (1 << 64) - 1)


def _parse(tail: bytes) -> tuple[int, int, tuple[int, ...]]:
    """(nonce of the sender, nonce that it knows of the receiver, the other nonces that the sender holds)."""
    if len(tail) < _TAIL.size:
        raise ProtocolError(f"a hello with {len(tail)} bytes behind it")
    nonce, known_as, count = _TAIL.unpack_from(tail)
    if not nonce or len(tail) != _TAIL.size + count * _NONCE.size:
        raise ProtocolError(f"a hello with {len(tail)} bytes for {count} nonces behind it, its own {nonce}")
    return nonce, known_as, tuple(found for (found,) in _NONCE.iter_unpack(tail[_TAIL.size :]))
