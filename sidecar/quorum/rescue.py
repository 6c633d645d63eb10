"""Rescue of a metadata group that has permanently lost its majority, offline, from the remaining journals
(docs/backup.md).

The command reads each surviving journal like its own process would, applies its entries to its snapshot, and shows the
result. It chooses the newest log (by term, then length, as in an election). Every entry in it counts as committed,
because no survivor has more entries. The command builds an image (``rescued_image``) for the new
controllers. Each of them gets an equal snapshot and journal, whose index and term are much higher. So a member that
returns with the old log is behind, even if it has voted since.

No directory is changed before the new one is complete. The old one is kept as ``raft-before-rescue``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from immutables import Map

from liftpy.core.base.ids import check_name
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.base.strict_json import load_json, whole_number
from liftpy.core.metadata.codec import encode_snapshot, image_to_bytes
from liftpy.core.metadata.controller.cluster_events import ClusterEvent, data_loss
from liftpy.core.metadata.controller.state_machine import ClusterFsm
from liftpy.core.metadata.controller_list import MAX_CONTROLLERS, ControllerList
from liftpy.core.metadata.image import RESCUE_LEAP, ClusterImage
from liftpy.errors import ConfigError, CorruptionError, InvariantError
from sidecar.disk.data_folder import DataDirectory
from sidecar.disk.files import make_folder, replace_file, sync_folder
from sidecar.quorum.codec import Entry
from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.library import is_applied
from sidecar.quorum.probation import MARKER
from sidecar.quorum.snapshot_file import SnapshotFile, decode_snapshot_file, encode_snapshot_file

logger = logging.getLogger("liftpy.quorum")

RESCUED = "rescued"
"""Name of the file in a Raft directory that marks it as created by a rescue."""
BEFORE = "raft-before-rescue"
_NEW = "raft-rescued"
_DIGEST_BYTES = 8
_NOTHING = b"\x01"
"""Command of the library for an entry without effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """Log of one controller that can still be read, with the image after its last entry.

    Attributes:
        term: Term of the last entry.
        index: Index of the last entry.
        digest: Digest of the image.
        terms: Index of an entry -> its term.
    """

    data: Path
    node_id: str
    term: int
    index: int
    digest: str
    image: ClusterImage
    terms: dict[int, int]

    def parts_from(self, other: Survivor) -> int:
        """Return the first index at which this log and the log of ``other`` have different entries. 0: no difference is known."""
        both = sorted(self.terms.keys() & other.terms.keys())
        return next((index for index in both if self.terms[index] != other.terms[index]), 0)


@contextmanager
def lock_directories(folders: list[Path]) -> Iterator[list[DataDirectory]]:
    """Lock the data directories, so that no node starts on them. Unlock them at the end of the block.

    Raises ConfigError and DataDirectoryLockedError.
    """
    with ExitStack() as stack:
        directories = []
        for path in folders:
            if not (path / "node").is_file():
                raise ConfigError(f"{path} is not the data directory of a node. Check --data.")
            folder = DataDirectory(path)
            stack.callback(folder.close)
            directories.append(folder)
        yield directories


def read_survivor(folder: DataDirectory) -> Survivor:
    """Read the Raft directory of a controller without changing it.

    Raises ConfigError if it is not the directory of a controller, CorruptionError and IncompatibleVersionError.
    """
    identity = folder.load_identity()
    raft = folder.raft
    if identity is None or not (raft / "journal").is_file():
        hint = " (a rescue has put one aside there)" if (folder.path / BEFORE).is_dir() else ""
        raise ConfigError(
            f"{folder.path} contains no journal of the metadata group{hint}. Give the directory of a former "
            "controller (--data)."
        )
    with tempfile.TemporaryDirectory(prefix="liftpy-rescue-") as copy:
        shutil.copy2(raft / "journal", Path(copy) / "journal")  # opening a journal rewrites it
        journal = GroupJournal(Path(copy) / "journal", flush=False)
        entries = [entry for position in range(len(journal)) if isinstance(entry := journal[position], tuple)]
        journal.close()
    fsm = ClusterFsm()
    term, index = 0, 0
    if (raft / "snapshot").exists():
        snapshot = decode_snapshot_file((raft / "snapshot").read_bytes())
        fsm.restore(snapshot.image)
        index, term = snapshot.last[1], snapshot.last[2]
    for command, at, at_term in entries:
        if at <= index:
            continue
        if at != index + 1:
            raise CorruptionError(
                f"{raft}: entry {at} follows {index}, so a snapshot is missing. This log cannot be used: give another --data."
            )
        if is_applied(command, at):
            fsm.apply(bytes(command[1:]), at)
        index, term = at, at_term
    if not index:
        raise ConfigError(f"The journal in {folder.path} is empty. Give the directory of another controller (--data).")
    digest = hashlib.blake2b(image_to_bytes(fsm.image), digest_size=_DIGEST_BYTES).hexdigest()
    terms = {at: at_term for _, at, at_term in entries}
    return Survivor(
        data=folder.path, node_id=identity.node_id, term=term, index=index, digest=digest, image=fsm.image, terms=terms
    )


def newest(survivors: list[Survivor]) -> Survivor:
    """Return the survivor with the newest log, by term, then length.

    Raises InvariantError if two logs with the same end give different images.
    """
    best = max(survivors, key=lambda one: (one.term, one.index))
    for one in survivors:
        if (one.term, one.index) == (best.term, best.index) and one.digest != best.digest:
            raise InvariantError(
                f"{one.data} and {best.data} end at the same entry with different images. Keep both directories, and "
                "please report it."
            )
    return best


def rescue(
    chosen: Survivor, folders: list[DataDirectory], voters: tuple[str, ...], out: Path | None, now_ns: int
) -> dict[str, Path]:
    """Write new Raft directories for the controllers ``voters``, from the log of the survivor ``chosen``.

    ``folders``: data directories on this machine. ``out``: directory for the files of controllers without one. ``now_ns``:
    wall clock in ns since 1970. Return the new directory of each controller, by node.
    """
    if len(set(voters)) != len(voters) or not voters:
        raise ConfigError("Name the new controllers, each once (--new-controllers).")
    if len(voters) > MAX_CONTROLLERS:
        raise ConfigError(f"{len(voters)} new controllers are too many, the maximum is {MAX_CONTROLLERS} (--new-controllers).")
    ids = {folder.path: identity.node_id for folder in folders if (identity := folder.load_identity()) is not None}
    directory_of = {node_id: path for path, node_id in ids.items()}
    missing = [node for node in voters if check_name(node, "node") not in directory_of]
    if unknown := [node for node in missing if node not in chosen.image.nodes]:
        raise ConfigError(
            f"The cluster has no node {', '.join(unknown)} (--new-controllers). Its nodes are {', '.join(sorted(chosen.image.nodes))}. "
            "Correct the ids. To use a new node, recover with other controllers first. Then start the new node, and make it a "
            "controller with: liftpy controllers add"
        )
    if missing and out is None:
        raise ConfigError(
            f"The data directories of {', '.join(missing)} are not on this machine. Set --output, then copy the "
            "files from there to these nodes."
        )
    homes = {node: directory_of.get(node) or (out or Path()) / node for node in voters}
    for path in (*(path / BEFORE for path in ids), *(homes[node] / "raft" for node in missing)):
        if path.exists():
            raise ConfigError(f"{path} exists from an earlier rescue. Inspect it and move it away.")
    image = rescued_image(chosen.image, voters, now_ns)
    event_fields = {
        "index": image.index,
        "time_ns": now_ns,
        "detail": f"rescued from {chosen.node_id}'s log: what was decided behind entry {chosen.index} of term {chosen.term} is lost",
    }
    for node, home in homes.items():
        make_folder(home)
        _write(home / _NEW, node, image, chosen, event_fields)
    for home in homes.values():
        _quarantine_raft_directory(home / "raft")
        (home / _NEW).rename(home / "raft")
        sync_folder(home)
    for path, node_id in ids.items():
        if node_id not in voters:
            _quarantine_raft_directory(path / "raft")
    return {node: home / "raft" for node, home in homes.items()}


def _quarantine_raft_directory(raft: Path) -> None:
    if raft.exists():
        raft.rename(raft.with_name(BEFORE))
        sync_folder(raft.parent)


def _write(folder: Path, node_id: str, image: ClusterImage, chosen: Survivor, event_fields: dict[str, object]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    term = chosen.term + RESCUE_LEAP
    previous: Entry = (_NOTHING, image.index - 1, term)
    last: Entry = (_NOTHING, image.index, term)
    snapshot = SnapshotFile(last, previous, image.controllers.voters, encode_snapshot(image), image.controllers)
    replace_file(folder / "snapshot", encode_snapshot_file(snapshot))
    journal = GroupJournal(folder / "journal")
    for entry in (previous, last):
        journal.add(*entry)
    journal.setRaftCommitIndex(image.index)
    journal.setCurrentTerm(term, None)
    journal.sync()
    journal.close()
    replace_file(folder / RESCUED, json.dumps(event_fields).encode())
    replace_file(folder / MARKER, f"{node_id}\n".encode())


def rescue_event(folder: Path, index: int) -> ClusterEvent | None:
    """Return the event that reports a rescue with the image at ``index``. None: the directory is not from such a rescue."""
    try:
        event_fields = load_json((folder / RESCUED).read_bytes())
        if whole_number(event_fields["index"], 0, 1 << 62) != index:
            return None
        event = data_loss(index, whole_number(event_fields["time_ns"], 0, 1 << 62), str(event_fields["detail"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    logger.warning("metadata group recovered by force action=%s", event.detail)
    return event


def rescued_image(image: ClusterImage, voters: tuple[str, ...], now_ns: int) -> ClusterImage:
    """Return the image of a rescued metadata group with the controllers ``voters``. ``image``: image of the surviving log.

    All counters (LeaderEpoch, Epoch, incarnations, stream ids) and the index increase by a large step, so that values of lost
    entries are never used again [C1, C2]. No partition has a leader, and all nodes are fenced until they send a heartbeat.
    """
    index, empty = image.index + RESCUE_LEAP, ClusterImage()
    was = image.counters
    epoch, leader_epoch = was.next_epoch + RESCUE_LEAP, was.next_leader_epoch + RESCUE_LEAP
    streams = []
    for name in sorted(image.streams):
        stream = image.streams[name]
        partitions = []
        for partition in stream.partitions:
            partitions.append(_leaderless(partition, leader_epoch, epoch))
            epoch, leader_epoch = epoch + 1, leader_epoch + 1
        streams.append(replace(stream, partitions=tuple(partitions)))
    new_image = replace(  # of the image: a field that is new later is kept, not forgotten
        image,
        index=index,
        time_ns=max(image.time_ns, now_ns),
        nodes=Map((node_id, replace(node, fenced=True)) for node_id, node in image.nodes.items()),
        counters=replace(
            was,
            next_incarnation=was.next_incarnation + RESCUE_LEAP,
            next_stream_uid=was.next_stream_uid + RESCUE_LEAP,
            next_leader_epoch=leader_epoch,
            next_epoch=epoch,
        ),
        controllers=ControllerList(tuple(sorted(voters)), index=index),
        reports=empty.reports,  # of leaders that there are no more
        streams=empty.streams,
        hosted=empty.hosted,
        replica_counts=empty.replica_counts,
        leader_counts=empty.leader_counts,
        answering=empty.answering,
        waiting=empty.waiting,
        trail=empty.trail,
    )
    return new_image.with_streams(streams)


def _leaderless(partition: PartitionState, leader_epoch: int, epoch: int) -> PartitionState:
    return replace(
        partition,
        leader="",
        candidate="",
        passed_over=(),
        deposed="",
        joining="",
        copy_epoch=0,
        status=PartitionStatus.OFFLINE,
        leader_epoch=leader_epoch,
        epoch=epoch,
    )
