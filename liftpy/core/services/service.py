"""``Service``: the base class of a replicated service. Pure.

A service is a deterministic state machine over the committed records of one partition. Every node runs it over the same
log, so every node has the same state. The instance next to the partition's leader is LEADER: only its outputs are
written.

Deterministic means: the state and the outputs follow from the state and the record alone. Use ``now_ns`` (log time) as
the clock. Do not use random numbers, I/O, the environment, the order of a ``set``, or ``role``, because they differ
between nodes.
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
    """Role of a service instance. The outputs of a LEADER are written, those of a FOLLOWER are only compared."""

    FOLLOWER = "FOLLOWER"
    LEADER = "LEADER"


class ServiceFailedError(LiftError):
    """The code of the service raised an error or broke a rule. The instance stops until the service is fixed."""

    code = "SERVICE_FAILED"


class DivergedError(LiftError):
    """This instance of the service computed another result than the other instances from the same log.

    The service is not deterministic. Its code must be fixed.
    """

    code = "SERVICE_DIVERGED"


class ServiceContext(Protocol):
    """The methods that the framework offers to a service. The methods of ``Service`` with the same names call them."""

    now_ns: int
    role: Role
    position: int
    active_version: int

    def emit(self, value: bytes, key: bytes | None, headers: Headers, to: str) -> None: ...

    def reply(self, record: Record, value: bytes) -> None: ...

    def effect(self, name: str, payload: bytes) -> None: ...

    def offer(self, value: bytes, key: bytes | None) -> None: ...

    def set_timer(self, name: str, at_ns: int) -> None: ...

    def cancel_timer(self, name: str) -> None: ...


class Service:
    """Base class of a replicated service. Override ``on_start``, ``on_record`` and ``take_snapshot``.

    All callbacks are synchronous and run in log order. ``on_record`` and ``on_timer`` must be deterministic: no clock
    except ``now_ns``, no random numbers, no I/O. Arguments of ``__init__`` come from ``--set`` and ``--settings``, by
    keyword, and must be the same on all nodes.

    Example:
        from liftpy.service import Service

        class Counter(Service):
            def on_start(self, snapshot):
                self.count = int(snapshot or 0)

            def on_record(self, record):
                self.count += 1
                self.reply(record, b"%d" % self.count)

            def take_snapshot(self):
                return b"%d" % self.count
    """

    on_error: ClassVar[str] = "stop"
    """What happens if ``on_record`` or ``on_timer`` raises an error.

    ``stop``: the service stops on this node until an operator skips the record (``liftpy service skip``). ``skip``: all
    nodes undo the record, write it to the dead-letter stream and continue.
    """

    emits: ClassVar[bool | None] = None
    """True if the service has outputs, so that it needs an output stream. None: it has if its code calls ``emit``."""

    version: ClassVar[int] = 1
    """Version of the code, from 1. Code of version N must also behave like version N - 1 while ``active_version`` is N -
    1. So you can roll out the code node by node.
    """

    starts_in_thread: ClassVar[bool] = False
    """True if ``on_start`` may run in another thread, so that a large snapshot does not block the event loop. No other
    callback runs before ``on_start`` returns. Ignored with an output stream.
    """

    surroundings: ServiceContext
    """Framework interface of the instance. It is set before ``on_start``."""

    # ---- callbacks to override-----------------------------------------------------------------------------------------
    def on_start(self, snapshot: bytes | None) -> None:
        """Start with the state of a snapshot, or with an empty state. Called once, first.

        Args:
            snapshot: Bytes that ``take_snapshot`` returned. None: start with an empty state.
        """

    def on_record(self, record: Record) -> None:
        """Apply the next committed record to the state. Must be deterministic.

        Args:
            record: The record.
        """
        raise NotImplementedError

    def on_timer(self, name: str) -> None:
        """Handle a timer that is due. The timer is no longer set. Must be deterministic.

        Args:
            name: Name of the timer.
        """

    def on_version(self, version: int) -> None:
        """Convert the state to a new active version. All nodes call it at the same record.

        Args:
            version: The new active version.
        """

    def on_query(self, query: bytes) -> bytes:
        """Answer a question about the state. Do not change the state.

        A query may run on any node. By default the state contains every record that was committed before the query. An
        error is returned to the caller, and the service continues.

        Args:
            query: Bytes of the query.

        Returns:
            Bytes of the answer.
        """
        raise NotImplementedError("This service does not support queries. Define on_query in its class.")

    def on_effect(self, effect: Effect) -> bytes | None:
        """Do an action outside the state machine, such as an HTTP request. May be ``async``.

        It runs only on the LEADER, in a thread. Do not use the state: ``effect.payload`` must have everything that it
        needs. It may run again, also on another node, if its process died, it raised an error or it took longer than
        ``effect_timeout_s``. ``effect.id`` is the same then, so that the other side can detect the repetition.

        Args:
            effect: The effect.

        Returns:
            The result of the effect.
        """
        raise NotImplementedError("This service has no effects. Define on_effect in its class.")

    def on_effect_result(self, effect: Effect, result: bytes) -> None:
        """Apply the result of an effect to the state. Called once per effect, on all nodes.

        Args:
            effect: The effect.
            result: Bytes that ``on_effect`` returned.
        """

    def take_snapshot(self) -> bytes | Callable[[], bytes]:
        """Return the whole state as bytes. The same state must give the same bytes.

        The framework saves timers and outputs itself. You may return a function instead. It is called once, in another
        thread, while heartbeats and queries continue. Later records and queries must not change the data that it reads.

        Returns:
            The state, or a function that returns the state.
        """
        raise NotImplementedError

    @classmethod
    def check_snapshot(cls, state: bytes) -> None:
        """Raise an error if ``on_start`` could not start with ``state``. By default there is no check.

        Retention deletes the log below a snapshot. A rejected state is not stored, and the log is kept. The method runs
        in another thread and must not use the state of an instance. ``ServiceTest.verify`` calls it in unit tests.

        Args:
            state: Bytes that ``take_snapshot`` just returned.
        """

    def on_role_change(self, role: Role, leader_epoch: int) -> None:
        """React to a new role outside the state, for example with a log line or a cache.

        Args:
            role: The new role.
            leader_epoch: LeaderEpoch of the partition.
        """

    # ---- methods to call in on_record and on_timer (reply: only in on_record) -------------------------------------------
    def emit(self, value: bytes, *, key: bytes | None = None, headers: Headers = (), to: str = "") -> None:
        """Add an output. It is written to the output stream once and in order, across failovers.

        Args:
            value: Payload.
            key: Key of the record. Default None: no key.
            headers: Pairs of name and value. Default (): none.
            to: Name of a route (``--route NAME=STREAM``) that also copies the output to another stream. Default '':
                none.
        """
        self.surroundings.emit(value, key, headers, to)

    def reply(self, record: Record, value: bytes) -> None:
        """Reply to the sender of a record. ``client.services.call`` returns the reply.

        Call it once, in ``on_record`` of that record. The LEADER sends the reply after the record's outputs are
        written. Later records with the same message id get the same reply, and ``on_record`` does not see them (limits:
        ``liftpy.core.services.replies``).

        Args:
            record: The record.
            value: Bytes of the reply.
        """
        self.surroundings.reply(record, value)

    def effect(self, name: str, payload: bytes = b"") -> None:
        """Schedule ``on_effect`` on the LEADER, at least once.

        It runs after this record is committed and its outputs are written. Then ``on_effect_result`` is called once on
        all nodes.

        Args:
            name: Name of the effect.
            payload: Everything that ``on_effect`` needs. Default: empty.
        """
        self.surroundings.effect(name, payload)

    def offer(self, value: bytes, *, key: bytes | None = None) -> None:
        """Append a record to the service's own input, once.

        ``on_record`` receives it later like any other record. Other services that read the stream do not see it.

        Args:
            value: Payload.
            key: Key of the record. Default None: no key.
        """
        self.surroundings.offer(value, key)

    def set_timer(self, name: str, at_ns: int) -> None:
        """Set a timer. ``on_timer`` runs before the first record at or after the time.

        Args:
            name: Name of the timer. An existing timer of this name is replaced.
            at_ns: Log time in nanoseconds since 1970.
        """
        self.surroundings.set_timer(name, at_ns)

    def cancel_timer(self, name: str) -> None:
        """Cancel a timer. Does nothing if the timer is not set.

        Args:
            name: Name of the timer.
        """
        self.surroundings.cancel_timer(name)

    @property
    def now_ns(self) -> int:
        """Log time in nanoseconds since 1970. It never decreases."""
        return self.surroundings.now_ns

    @property
    def active_version(self) -> int:
        """Version of the code that applies to the current record: ``version`` or the one before."""
        return self.surroundings.active_version

    @property
    def role(self) -> Role:
        """Role of this instance. Use it for logs and status, not for the state."""
        return self.surroundings.role

    @property
    def position(self) -> int:
        """Offset of the next record. The state contains every record below it."""
        return self.surroundings.position
