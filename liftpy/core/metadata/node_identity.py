"""Detects a data directory that was restored from an older copy [S15, C7, C12], and a second process with one node id.

A copy is equal to the original, including its id and its number of starts. So every process draws a nonce, and stores
it with the number of its start before it registers. The directory keeps earlier nonces. The image has the start and
nonce that registered last. A directory is a successor only if its start is higher and it contains the nonce in the
image.

Example: start 1 (nonce A) registers, and the directory is copied. Start 2 (nonce B) registers and acks. Then the copy
is restored. Its next process is start 2 with nonce C, and knows only A. So it does not follow start 2 (B).

``EarlierProcessCheck`` decides whether a starting process may replace another process with the same node id.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import split_folder
from liftpy.core.metadata.image import NodeImage
from liftpy.core.wire._pb import cluster_pb2 as pb

MAX_EARLIER_NONCES = 16
"""Maximum number of stored nonces. After more failed starts in a row, the node loses its place in the ISR."""
MAX_DAMAGED_LOGS = 16
"""Maximum number of damaged logs that a registration names. With more damaged logs, all logs of the node count as incomplete."""
DEFAULT_WAIT_S = 15.0
"""Default time to wait for an earlier process, in seconds. A node needs less for a clean stop."""
DEFAULT_SILENCES = 3
"""Number of consecutive unanswered probes after which the earlier process counts as hanging."""


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """Number of starts, and nonces of the processes that used a data directory. It is stored in the directory."""

    folder_id: str
    """Random id that was drawn when the data directory was created. An emptied directory gets another id."""
    starts: int = 0
    """Number of process starts on the data directory."""
    nonce: int = 0
    """Nonce of the last started process. 0: none."""
    registered: int = 0
    """Nonce of the last process that knew of its registration. It stays in ``earlier`` until another process registers."""
    earlier: tuple[int, ...] = ()
    """Nonces of the processes before the last one, oldest first, at most MAX_EARLIER_NONCES."""

    def next(self, nonce: int) -> DirectoryIdentity:
        """Return the identity of the directory for its next process. ``nonce``: nonce that this process has drawn."""
        earlier = (*self.earlier, self.nonce) if self.nonce else self.earlier
        nonces = earlier[-MAX_EARLIER_NONCES:]
        if self.registered in earlier and self.registered not in nonces:
            nonces = (self.registered, *nonces[1:])
        return replace(self, starts=self.starts + 1, nonce=nonce, earlier=nonces)

    def after_registration(self) -> DirectoryIdentity:
        return replace(self, registered=self.nonce)

    def write_to(self, request: pb.RegisterNode) -> None:
        request.folderId, request.start, request.nonce = self.folder_id, self.starts, self.nonce
        request.earlierNonces[:] = self.earlier


def stopped_cleanly(*, failed: bool, opened: bool, logs_are_clean: bool, repairs: bool) -> bool:
    """Return whether a process may leave the clean-stop marker at its end [S9].

    Args:
        failed: True if a fatal error occurred.
        opened: True if the process had opened its partitions.
        logs_are_clean: True if all logs were flushed and closed.
        repairs: True if the process stops so that the next start checks damaged data.
    """
    return opened and logs_are_clean and not failed and not repairs


def damaged_logs_to_name(damaged: Collection[str], confined: Collection[str]) -> list[pb.DamagedLog]:
    """Return the damaged logs that a registration names. []: all logs of the node count as incomplete, or none is damaged.

    Args:
        damaged: Names ``<stream>-<uid>/<partition>`` of all logs that may lack acknowledged records.
        confined: Names of the logs whose damage says nothing about other logs.
    """
    if len(set(damaged)) > MAX_DAMAGED_LOGS:
        return []
    named = []
    for name in sorted(set(damaged)):
        folder, _, number = name.rpartition("/")
        split = split_folder(folder)
        if name not in confined or split is None:
            return []
        named.append(pb.DamagedLog(streamUid=split[1], partition=int(number)))
    return named


class ProcessRelation(Enum):
    """Relation of a process that registers to the process that registered last for the same node."""

    FOLLOWS = "follows"
    """The process starts on the data directory of the other process, as far as the controllers know."""
    SAME = "is the same process"
    OUTDATED = "is of a process before that one"
    """The request is older than the registration: a later process has already replaced its sender."""
    OLDER_COPY = "starts on an older copy"
    """The data directory lacks changes of the other process, so it is an older copy."""


def compare_processes(known: NodeImage, request: pb.RegisterNode) -> ProcessRelation:
    """Compare the process of a registration with the registered process ``known``.

    A version that sends no directory id or nonce is judged by the fields that it sends.
    """
    if not (known.folder_id and request.folderId):
        return ProcessRelation.FOLLOWS
    if known.folder_id != request.folderId:
        return ProcessRelation.OLDER_COPY
    both_drew = bool(known.nonce and request.nonce)
    if both_drew and (request.nonce, request.start) == (known.nonce, known.start):
        return ProcessRelation.SAME
    if request.start < known.start and (request.nonce in known.earlier_nonces or not both_drew):
        return ProcessRelation.OUTDATED
    if request.start <= known.start or (known.nonce and known.nonce not in request.earlierNonces):
        return ProcessRelation.OLDER_COPY
    return ProcessRelation.FOLLOWS


class EarlierProcessSign(Enum):
    """Result of one probe over NATS for an earlier process of this node."""

    ABSENT = "nobody listens"
    PRESENT = "it answered"
    SILENT = "no answer in time"
    UNASKED = "the bus could not be asked"


class EarlierProcessStep(Enum):
    """Next step of the check whether an earlier process of this node still runs."""

    ASK = "ask again"
    GO_ON = "take its place"
    GIVE_UP = "it stays: end"


class EarlierProcessCheck:
    """Decides by probes whether an earlier process of this node still runs. ``now_ns`` is monotonic.

    The lock of a data directory [S10] does not detect a copy of the directory. So the starting process asks NATS for the node
    (``<ns>.status.<node>``). "No responders" proves that no process runs. An answer proves that another process runs: ask
    again, and give up after ``wait_s``. No answer proves nothing. After some tries, the other process is treated as hanging,
    and will find itself fenced.
    """

    def __init__(self, now_ns: int, wait_s: float = DEFAULT_WAIT_S, silences: int = DEFAULT_SILENCES) -> None:
        self._deadline_ns = now_ns + round(wait_s * NS_PER_S)
        self._silences = silences
        self._silent = 0
        self.is_present = False
        """True if the earlier process has answered a probe, and no later probe showed that it ended."""

    def record_sign(self, sign: EarlierProcessSign, now_ns: int) -> EarlierProcessStep:
        """Record the result of one probe. Return the next step: probe again, take the place of the earlier process, or give up."""
        if sign is EarlierProcessSign.ABSENT:
            return EarlierProcessStep.GO_ON
        if sign is EarlierProcessSign.UNASKED:
            return EarlierProcessStep.ASK
        if sign is EarlierProcessSign.SILENT:
            self._silent += 1
            return EarlierProcessStep.GO_ON if self._silent >= self._silences else EarlierProcessStep.ASK
        self._silent, self.is_present = 0, True
        return EarlierProcessStep.GIVE_UP if now_ns >= self._deadline_ns else EarlierProcessStep.ASK
