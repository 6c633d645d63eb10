"""Replicated services: deterministic state machines that run next to every sidecar.

    class Counter(Service):
        def on_start(self, snapshot):
            self.count = int(snapshot or 0)

        def on_record(self, record):
            self.count += 1

        def take_snapshot(self):
            return b"%d" % self.count

Run it on every node with ``python -m liftpy.service counter:Counter --stream orders --node n1 --data DIR``.
"""

from __future__ import annotations

from liftpy.core.services.effects import Effect
from liftpy.core.services.machine import ServiceMachine
from liftpy.core.services.outbox import Outbox, Output, OutputConflictError
from liftpy.core.services.service import DivergedError, Role, Service, ServiceFailedError
from liftpy.core.services.snapshot import Identity, Snapshot
from liftpy.core.wire.batch import Record

__all__ = [
    "DivergedError",
    "Effect",
    "Identity",
    "Outbox",
    "Output",
    "OutputConflictError",
    "Record",
    "Role",
    "Service",
    "ServiceFailedError",
    "ServiceMachine",
    "Snapshot",
]
