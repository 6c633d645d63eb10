"""Versions of a service's code: the version by which records are applied, equal on all nodes. Pure.

Goal: new code is rolled out node by node, and no two nodes ever apply a record differently. Constraint: nodes get the code
at different times.

Algorithm: code of version N (``Service.version``) can also behave like version N - 1. A RECORD OF THE LOG DECIDES WHICH
VERSION IS ACTIVE: the records after it are applied by N. A log begins with version 1, or with the version of a decision at
offset 0. The service on the leader's node appends the decision for N when the services on the nodes of all replicas have
reported that their code supports N. The decision counts if it names the version after the active one, and was appended in
the LeaderEpoch in which it was made. Code that is too old, or too new by more than one version, is rejected before it
applies anything. Each snapshot contains the active version.

Worked example: all nodes run 1. n1 and n2 restart with 2 and continue by 1. When n3 has 2, the leader's service appends
``bank/2/5`` at offset 40. Every node applies record 39 by 1 and record 41 by 2, also in replays. n4 starts with 1, reads
40, and is rejected.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from liftpy.config import NS_PER_S
from liftpy.core.base.ids import check_name
from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import SERVICE_VERSION, Pairs
from liftpy.errors import ConfigError, LiftError

FIRST = 1
"""Active version at the start of a log."""
MAX_VERSION = 1 << 31
_BELIEVED_S = 4.0
_MAX_VERSION_REPORTS = 256
_ACTIVE = struct.Struct("<I")


class VersionError(ConfigError):
    """Raised if the code of a service does not support the version of its log. Start another version of the service."""

    code = "SERVICE_VERSION"


class CodeTooNewError(VersionError):
    """Raised if the code of a service is more than one version newer than its state. A later snapshot may have a newer version.

    ``position``: offset of the next record of the state. ``lowest_version``: lowest version that the code supports.
    """

    def __init__(self, text: str, position: int, lowest_version: int) -> None:
        super().__init__(text)
        self.position = position
        self.lowest_version = lowest_version


@dataclass(frozen=True, slots=True)
class VersionDecision:
    """Decision that ``version`` is active from its record on. ``leader_epoch``: LeaderEpoch of the deciding service."""

    service: str
    version: int
    leader_epoch: int

    def headers(self) -> Pairs:
        return ((SERVICE_VERSION, f"{self.service}/{self.version}/{self.leader_epoch}".encode()),)


def decided_version(record: Record, service: str) -> int | None:
    """Return the version that ``record`` activates for ``service``. None: the record is no valid decision."""
    for name, value in record.headers:
        if name != SERVICE_VERSION:
            continue
        try:
            whose, version, epoch = value.decode().split("/")
            check_name(whose, "service")
            number, leader_epoch = int(version), int(epoch)
        except (ValueError, LiftError):
            return None
        counts = whose == service and leader_epoch == record.leader_epoch and FIRST <= number < MAX_VERSION
        return number if counts else None
    return None


def follows(version: int, active: int, offset: int) -> bool:
    """Return whether a decision to activate ``version`` counts.

    ``active``: version that is active before it. ``offset``: offset of the decision. The first record may name any version.
    """
    return version > active and (version == active + 1 or offset == 0)


def check_code(code: int, active: int, position: int) -> None:
    """Check that code of version ``code`` can apply the record at ``position``. Raises VersionError or CodeTooNewError if not.

    ``active``: version that is active there.
    """
    if code < active:
        raise VersionError(
            f"Records before offset {position} need version {active} of the service, but this is version {code}. "
            f"Start version {active}."
        )
    if code > active + 1:
        raise CodeTooNewError(
            f"At offset {position} the service has version {active}. Code of version {code} supports only "
            f"{code - 1} and {code}. Start version {active + 1} on all nodes first.",
            position,
            code - 1,
        )


def encode_section(active: int) -> bytes:
    """Return the bytes of a snapshot section that stores the active version. b"": the first version needs no section."""
    return _ACTIVE.pack(active) if active > FIRST else b""


def from_section(content: bytes) -> int:
    """Return the active version that the bytes of a snapshot section contain. Raises VersionError if they are invalid."""
    if not content:
        return FIRST
    active = int(_ACTIVE.unpack(content)[0]) if len(content) == _ACTIVE.size else 0
    if active <= FIRST:
        raise VersionError(
            f"The snapshot is damaged: its service version cannot be decoded ({content[:16].hex()}). The service "
            "uses an older snapshot."
        )
    return active


@dataclass(slots=True)
class CodeVersions:
    """Versions of service code that the nodes have reported to this sidecar. Times are monotonic ns."""

    _versions: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """(service, node) -> (version of its code, monotonic time of the report)."""

    def note_version(self, service: str, node: str, version: int, now_ns: int) -> None:
        if len(self._versions) >= _MAX_VERSION_REPORTS and (service, node) not in self._versions:
            self._versions = {
                who: version_at
                for who, version_at in self._versions.items()
                if now_ns - version_at[1] <= _BELIEVED_S * NS_PER_S
            }
        if len(self._versions) < _MAX_VERSION_REPORTS or (service, node) in self._versions:
            self._versions[service, node] = (version, now_ns)

    def lowest(self, service: str, nodes: Iterable[str], now_ns: int) -> int:
        """Return the highest version of ``service`` that the code on all ``nodes`` supports.

        0: some node has not reported its version recently.
        """
        reported_versions = [self._versions.get((service, node), (0, 0)) for node in nodes]
        return min(
            (version if now_ns - at_ns <= _BELIEVED_S * NS_PER_S else 0 for version, at_ns in reported_versions), default=0
        )
