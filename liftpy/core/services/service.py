"""Service: the class that a replicated application extends [protocol: Replicated services]. Pure.

A service is a deterministic state machine over the committed records of one partition. Every node runs it over the same log, so
every node has the same state; one of them, beside the partition's leader, is LEADER, and only its outputs leave the machine.

Deterministic means: what ``on_record`` and ``on_timer`` do to the state and what they emit follows from the state and the record
alone. No clock but ``now_ns`` (log time: the leader's stamp on the record), no randomness, no I/O, no environment, no order of a
``set``; and not ``role``, which differs between the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import ClassVar, Protocol

from liftpy.core.services.effects import Effect
from liftpy.core.wire.batch import Record
from liftpy.errors import LiftError

Headers = Sequence[tuple[str, bytes]]


class Role(Enum):
    """FOLLOWER: outputs are suppressed. LEADER: they leave, beside the partition's leader and after its promotion."""

    FOLLOWER = "FOLLOWER"
    LEADER = "LEADER"


class ServiceFailedError(LiftError):
    """The service's own code raised, or broke a rule of the framework. Blame: the service. The state is not gone on with."""

    code = "SERVICE_FAILED"


class DivergedError(LiftError):
    """This node's service does not do what its peers did over the same log: it is not deterministic. Blame: the service."""

    code = "SERVICE_DIVERGED"


class Surroundings(Protocol):
    """What drives a service, as the service sees it."""

    now_ns: int
    role: Role
    position: int
    active_version: int

    def emit(self, value: bytes, key: bytes | None, headers: Headers, to: str) -> None:
        """One more output."""

    def reply(self, record: Record, value: bytes) -> None:
        """Answer whoever sent the record."""

    def effect(self, name: str, payload: bytes) -> None:
        """Have something done in the world outside."""

    def offer(self, value: bytes, key: bytes | None) -> None:
        """Have one more record in the input."""

    def set_timer(self, name: str, at_ns: int) -> None:
        """Call ``on_timer(name)`` at a log time."""

    def cancel_timer(self, name: str) -> None:
        """Don't."""


class Service:
    """Extend it. All callbacks are synchronous and in log order. What ``__init__`` takes comes from ``--set`` and ``--settings``, by
    keyword, the same on all nodes."""

    on_error: ClassVar[str] = "stop"
    """What happens when ``on_record`` or ``on_timer`` raises. "stop": the service ends on this node, until an operator passes over the
    record (``liftpy service skip``). "skip": the record is undone, given to the dead-letter stream, and all nodes go on without it."""

    emits: ClassVar[bool | None] = None
    """Whether it has outputs, and so needs an output stream. None: it has if its code names ``emit``
    (``liftpy.core.services.rules``)."""

    version: ClassVar[int] = 1
    """Of the code, from 1 on. Code of version N also does what N - 1 did, while ``active_version`` says so: it is rolled out node by
    node."""

    starts_in_thread: ClassVar[bool] = False
    """Whether ``on_start`` may run in another thread than the other callbacks. A large snapshot does not hold up the event loop then.
    No other callback is called before ``on_start`` has returned. It has no effect where there is an output stream."""

    surroundings: Surroundings
    """Set by the driver before ``on_start``."""

    # ---- to be extended ------------------------------------------------------------------------------------------------
    def on_start(self, snapshot: bytes | None) -> None:
        """Begin with the state of a snapshot that ``take_snapshot`` made, or with none. Called once, first."""

    def on_record(self, record: Record) -> None:
        """The next committed record."""
        raise NotImplementedError

    def on_timer(self, name: str) -> None:
        """Log time has reached the time that ``set_timer`` was given; the timer is not set any more."""

    def on_version(self, version: int) -> None:
        """From here on ``active_version`` is ``version``, on all nodes: change the state to what it needs. Called at the record that
        says so."""

    def on_query(self, query: bytes) -> bytes:
        """Answer a question about the state, and change nothing: a query is no record, and other nodes do not see it.

        Asked on any node, with the state as it is there: by default it holds everything that was committed when the query came
        (``liftpy.core.services.queries``). What it raises is the answer to the query; the service goes on.
        """
        raise NotImplementedError("This service does not support queries. Define on_query in its class.")

    def on_effect(self, effect: Effect) -> bytes | None:
        """Do what ``effect`` was called for, in the world outside; what it returns is the effect's result. May be ``async``.

        Beside the LEADER only, in a thread: it may not look at the state, nor change it; all that it needs is in ``effect.payload``.
        It may run again, also on another node, when its process died meanwhile, or it raised, or took ``effect_timeout_s``:
        ``effect.id`` is the same then, for the other side to tell.
        """
        raise NotImplementedError("This service has no effects. Define on_effect in its class.")

    def on_effect_result(self, effect: Effect, result: bytes) -> None:
        """An effect has its result: a record of the log, as any other. Called once for each effect."""

    def take_snapshot(self) -> bytes | Callable[[], bytes]:
        """The whole state as bytes, the same bytes for the same state. Timers and outputs are kept by the framework.

        Or a function that makes them, called once, in another thread, while heartbeats and queries go on: what it reads must not
        be changed by later records (a copy, a frozen value), nor by queries.
        """
        raise NotImplementedError

    @classmethod
    def check_snapshot(cls, state: bytes) -> None:
        """Raise where ``on_start`` could not begin with ``state``, which ``take_snapshot`` has just made. By default: no check.

        Retention deletes the log below a snapshot. A state that this method rejects is not stored, and the log is kept. It runs in
        another thread, and may not look at the state of an instance. ``ServiceTest.verify`` checks the same in unit tests.
        """

    def on_role_change(self, role: Role, leader_epoch: int) -> None:
        """For what is outside the state (a cache, a log line): the state may not depend on it."""

    # ---- to be called, from on_record and (but for reply) on_timer -------------------------------------------------------------------
    def emit(self, value: bytes, *, key: bytes | None = None, headers: Headers = (), to: str = "") -> None:
        """Give an output to the output stream: written once, in order, by whichever node's service is LEADER. ``to``: the name of a
        route (``--route NAME=STREAM``): it is copied from there to that stream, by key where that has more partitions."""
        self.surroundings.emit(value, key, headers, to)

    def reply(self, record: Record, value: bytes) -> None:
        """Answer whoever sent ``record``, from ``on_record`` of that record, once: ``client.call_service`` returns it.

        It leaves from the LEADER when the record's outputs are written. If the record has a message id (``Nats-Msg-Id``), later
        records of the same id get the same answer, and ``on_record`` does not see them (bounds: ``liftpy.core.services.replies``).
        """
        self.surroundings.reply(record, value)

    def effect(self, name: str, payload: bytes = b"") -> None:
        """Have ``on_effect`` called on the LEADER, at least once, when this record is committed and its outputs are written; then
        ``on_effect_result``, once, on all nodes."""
        self.surroundings.effect(name, payload)

    def offer(self, value: bytes, *, key: bytes | None = None) -> None:
        """Append a record to the service's own input, once: ``on_record`` gets it like any other, later. Other services that read the
        stream do not see it."""
        self.surroundings.offer(value, key)

    def set_timer(self, name: str, at_ns: int) -> None:
        """Have ``on_timer(name)`` called before the first record whose log time is at or past ``at_ns``; replaces its time."""
        self.surroundings.set_timer(name, at_ns)

    def cancel_timer(self, name: str) -> None:
        """Forget a timer; one that is not set is fine."""
        self.surroundings.cancel_timer(name)

    @property
    def now_ns(self) -> int:
        """Log time, ns since 1970; never falls."""
        return self.surroundings.now_ns

    @property
    def active_version(self) -> int:
        """By which version records are applied here: ``version``, or the one before it."""
        return self.surroundings.active_version

    @property
    def role(self) -> Role:
        """What this node's service is; for ``on_role_change`` and status, not for the state."""
        return self.surroundings.role

    @property
    def position(self) -> int:
        """Offset of the next record: everything below it is in the state."""
        return self.surroundings.position
