"""Activates the version of a service's code without a node, for ``liftpy.testing``. On a node, a record of the log decides it."""

from __future__ import annotations

from liftpy.core.services.machine import ServiceMachine
from liftpy.core.services.versions import FIRST, VersionDecision
from liftpy.core.wire.batch import Record

_LEADER_EPOCH = 1


def activate_newest_version(machine: ServiceMachine, timestamp_ns: int) -> None:
    """Let ``machine``, which has applied no record, apply all records by the version of its code. Call its ``on_version``.

    The decision takes no offset of the log. ``timestamp_ns``: log time of the decision. Raises BadRecordError if ``on_version`` raises
    an error.
    """
    if machine.version > FIRST:
        headers = VersionDecision(machine.identity.service, machine.version, _LEADER_EPOCH).headers()
        machine.apply([Record(0, timestamp_ns, None, b"", headers, "", None, _LEADER_EPOCH)])
        machine.position = 0
