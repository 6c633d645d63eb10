"""``ServiceInstance``: what the parts of a running service ask it, and what they report to it."""

from __future__ import annotations

from typing import Protocol

from liftpy.core.services.machine import ServiceMachine
from liftpy.errors import LiftError


class ServiceInstance(Protocol):
    """One running instance of a service. ``ServiceHost`` runs next to a sidecar, ``MemoryService`` in an in-memory cluster."""

    machine: ServiceMachine | None
    """The running state machine. None: before the first start."""

    @property
    def leads(self) -> bool:
        """True if the instance is the LEADER, which writes outputs, sends replies and runs effects."""

    @property
    def emitted_end(self) -> int | None:
        """Number of outputs that are written to the output stream. None: the service has no outputs."""

    @property
    def is_fed(self) -> bool:
        """True if the node sends orders and records to the instance."""

    @property
    def has_caught_up(self) -> bool:
        """True if the state has all records that are known to be committed."""

    def fail(self, error: LiftError) -> None:
        """End the service with ``error``."""

    def outputs_known(self) -> None:
        """Process that the end of the output stream is known. Called once."""

    def outputs_written(self) -> None:
        """Process that more outputs are in the output stream."""

    def outputs_disproven(self) -> None:
        """Process that the written outputs show that the current state is wrong."""
