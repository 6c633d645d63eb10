"""ServiceMachine: drives one Service over the records of its partition, in log order. Pure: no I/O and no clock.

It has the state that must be equal on every node: position, log time, timers, and the numbers of outputs. It takes a
snapshot at every multiple of ``snapshot_interval_records``: after all records below it, and before the effects of the next
record. So a snapshot is a function of the log alone.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from typing import Any

from liftpy.core.base.ids import is_utf8
from liftpy.core.publish.jetstream_headers import first_refused
from liftpy.core.services.bad_records import (
    BadRecordError,
    DecisionMissedError,
    OnError,
    SkippedUnits,
    Unit,
    decided_unit,
    is_decision,
)
from liftpy.core.services.effects import (
    MAX_NAME_BYTES,
    MAX_PENDING,
    MAX_PENDING_BYTES,
    Effect,
    EffectCause,
    PendingEffects,
    decided_numbering,
    effect_of,
    is_tick,
)
from liftpy.core.services.outbox import EXPECTED_HEADER, MAX_OUTPUT_BYTES, Outbox, Output
from liftpy.core.services.replies import PASSED_OVER, Answer, AnswerTable, Reply, ReplyBuffer, decode_answers, message_id_of
from liftpy.core.services.rules import check_class
from liftpy.core.services.service import DivergedError, Headers, Role, Service, ServiceFailedError
from liftpy.core.services.snapshot import Identity, Section, Snapshot
from liftpy.core.services.versions import FIRST, check_code, decided_version, encode_section, follows, from_section
from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import OUTPUT_TO, Pairs, is_reserved
from liftpy.errors import ConfigError, LiftError, StorageError
from liftpy.renamed import accept_old_keywords

MAX_FIRES_PER_RECORD = 100_000
"""Maximum number of timers that fire before one record. A timer that fires may set further timers."""
MAX_OUTPUTS_PER_CALLBACK = 1000
_NO_STOP = 1 << 63
MAX_TIMERS = 1_000_000
MAX_TIMER_NAME_BYTES = 1024
NEVER = 1 << 63
"""Log time above that of every possible timer."""


@dataclass(frozen=True, slots=True)
class _RequestedEffect:
    """Effect or offer that a running callback has requested."""

    name: str
    payload: bytes
    key: bytes | None
    is_offer: bool


@dataclass(slots=True)
class _Source:
    """The record that is being applied, and the outputs of its callbacks.

    ``index``: number of its outputs so far, including those of timers that fired before it. ``emitted``: outputs of the
    running callback. They are added to the outbox when it returns. ``reply``: reply of the running callback. ``asked``: effects
    and offers that it requested.
    """

    offset: int = -1
    index: int = 0
    emitted: list[Output] = field(default_factory=list)
    reply: bytes | None = None
    asked: list[_RequestedEffect] = field(default_factory=list)


@dataclass(slots=True)
class ApplyResult:
    """Result of ``ServiceMachine.apply``. ``count``: number of applied records. ``snapshots``: snapshots to store in order."""

    count: int = 0
    snapshots: list[Snapshot] = field(default_factory=list)


@accept_old_keywords
class ServiceMachine:
    """Drives a service over the records of its partition.

    Create it with a new Service, call ``start`` once, then ``apply``. ``outbox`` None: the service must not emit.
    """

    def __init__(
        self,
        service: Service,
        identity: Identity,
        *,
        snapshot_interval_records: int,
        outbox: Outbox | None = None,
        parameters_digest: bytes = b"",
    ) -> None:
        self.identity = identity
        self.outbox = outbox
        self._parameters_digest = parameters_digest
        self.replies = ReplyBuffer()
        """Replies of the service. The caller may replace this object before the first record."""
        self._answers = AnswerTable()
        self.routes: Collection[str] | None = None
        """Names of the routes that ``emit`` may use. None: any. The caller sets it before the first record."""
        self.effects = PendingEffects(f"{identity.uid}/{identity.partition}/{identity.service}")
        """Effects without a result."""
        self.position = 0
        """Offset of the next record. The state contains all earlier records."""
        self.last_epoch = 0
        """LeaderEpoch of the last applied record. 0: none."""
        self.now_ns = 0
        """Log time in nanoseconds: the highest timestamp so far. It never falls."""
        self._stamp_ns = 0
        """Timestamp of the last applied record, in nanoseconds."""
        self.role = Role.FOLLOWER
        self.leader_epoch = 0
        """LeaderEpoch for which the current role was set."""
        self.replay_end = 0
        """Offset below which this process has read the log already: an earlier machine, or a search for a decision. 0: it has not."""
        self.rewind_epoch = 0
        """LeaderEpoch in which a LEADER restored this state, to produce outputs again. It stays LEADER in this epoch. 0: none."""
        check_class(type(service))
        self.on_error = OnError(service.on_error)
        self.service = service
        """Service whose callbacks the machine calls."""
        self._snapshot_every = snapshot_interval_records
        self._snapshot_position = 0
        """Last multiple of ``snapshot_interval_records`` that the machine has passed."""
        self._timers = LogTimers()
        self._source: _Source | None = None
        """Record that is being applied. None: outputs and timers are rejected, because no callback is running."""
        self._skips = SkippedUnits()
        self.version = service.version
        """Version of the service's code."""
        self.active_version = FIRST
        """Version by which the machine applies records now."""
        self.failed = False
        """True if a callback has raised an error, or if the state contains a unit that the log decides to skip."""
        self.is_apply_thread: Callable[[], bool] = _yes
        """Returns whether the caller is the thread that applies records."""
        self.on_work: Callable[[], None] | None = None
        """Called after records were applied and effects or timers are waiting. None: no callback."""
        service.surroundings = self

    # ---- start and role------------------------------------------------------------------------------------------------------
    @property
    def starts_in_thread(self) -> bool:
        """True if the service allows that ``start`` runs in another thread. All other calls come after it."""
        return self.service.starts_in_thread

    def start(self, snapshot: Snapshot | None) -> None:
        """Start the service with the state of a snapshot, or with an empty state (None). Its role is FOLLOWER."""
        if snapshot is not None:
            if snapshot.section(Section.PARAMETERS) != self._parameters_digest:
                raise ConfigError(
                    f"{self.identity}: the snapshot at offset {snapshot.position} was made with other parameters. Start "
                    "the service with those parameters. To use the new ones, start it as a new service with another name "
                    "(--name)."
                )
            self.active_version = from_section(snapshot.section(Section.VERSION))
            check_code(self.version, self.active_version, snapshot.position)
            self.position = self._snapshot_position = snapshot.position
            self.last_epoch, self.now_ns = snapshot.last_epoch, snapshot.now_ns
            for at_ns, name in snapshot.timers:
                self._timers.set(name, at_ns)
            self._skips = SkippedUnits(snapshot.skips)
            self._answers = decode_answers(snapshot.section(Section.ANSWERS))
            self.effects.load(snapshot.section(Section.EFFECTS))
        if self.outbox is not None:
            self.outbox.restart(*((snapshot.output_count, snapshot.output_digest) if snapshot is not None else (0,)))
        with _service_errors("on_start"):
            self.service.on_start(None if snapshot is None else snapshot.whole().state)

    def change_role(self, role: Role, leader_epoch: int) -> bool:
        """Set the role of the service for ``leader_epoch``, and call its ``on_role_change``.

        Return whether the role or the LeaderEpoch has changed.
        """
        if (role, leader_epoch) == (self.role, self.leader_epoch):
            return False
        self.role, self.leader_epoch = role, leader_epoch
        with _service_errors("on_role_change"):
            self.service.on_role_change(role, leader_epoch)
        return True

    @property
    def ahead_ns(self) -> int:
        """Time in ns by which the log time is ahead of the timestamp of the last record. New timers fire later by this time.

        It is above 0 after a leader whose clock was ahead.
        """
        return max(0, self.now_ns - self._stamp_ns) if self._stamp_ns else 0

    @property
    def is_replaying(self) -> bool:
        """True if the log has records that an earlier machine of this process applied, such as results of effects."""
        return self.position < self.replay_end

    def truncate_replay(self, end_offset: int) -> bool:
        """Forget what an earlier machine knew of the log at or above ``end_offset``, because an unclean election has lost it.

        The decisions for units that this machine has not reached may be lost. It forgets all of them. If the log still has one,
        it decides again. Return False if the earlier machine knew nothing there.
        """
        if not self.is_replaying or self.replay_end <= end_offset:
            return False
        self.replay_end = end_offset
        self._skips.forget_from(self.position)
        return True

    @property
    def skipped_units(self) -> tuple[Unit, ...]:
        """Units that the log decides to skip, as far as the machine knows them."""
        return tuple(self._skips)

    @property
    def waits_for_outputs(self) -> bool:
        """True if the outbox of a LEADER is full, so that it must wait until outputs are written.

        A follower never waits, because it drops its oldest outputs.
        """
        return self.outbox is not None and self.role is Role.LEADER and self.outbox.full

    # ---- records ---------------------------------------------------------------------------------------------------------
    def apply(self, records: Iterable[Record], stop_position: int | None = None) -> ApplyResult:
        """Apply records to the service in order. Records below ``position`` are skipped.

        The method ends early while ``waits_for_outputs``.

        Args:
            records: Committed records in ascending order.
            stop_position: Offset before which it stops. None: no end.

        Returns:
            The snapshots to store, and the number of applied records.

        Raises:
            BadRecordError: The service's code raised an error. The caller must not use the machine any more.
            DecisionMissedError: A record decides to skip a record that was applied. The caller must not use the machine any
                more.
        """
        done = ApplyResult()
        stop = _NO_STOP if stop_position is None else stop_position
        may_wait = self.outbox is not None and self.role is Role.LEADER
        boundary = self.boundary
        source = self._source = _Source()
        can_do = self.active_version >= self.version - 1
        try:
            for record in records:
                offset = record.offset
                if offset < self.position:
                    continue
                if offset >= stop or (may_wait and self.waits_for_outputs):
                    break
                if offset >= boundary:
                    boundary = self._snapshot_through(offset, done)
                source.offset, source.index = offset, 0
                if not can_do:
                    can_do = self._may_begin(record)
                self._apply(record)
                done.count += 1
                self._stamp_ns = record.timestamp_ns
                if offset + 1 >= boundary:
                    boundary = self._snapshot_through(offset + 1, done)
        finally:
            self._source = None
        if self.on_work is not None and (len(self.effects) or self.next_timer_ns is not None):
            self.on_work()
        return done

    def skip_to(self, position: int) -> list[Snapshot]:
        """Continue at the offset ``position``, because compaction has removed the records below it.

        Return the snapshots to store that are due on the way.
        """
        done = ApplyResult()
        if position > self.position:
            self.position = position
            self._snapshot_through(position, done)
        return done.snapshots

    def skip(self, unit: Unit) -> None:
        """Skip ``unit`` when the machine comes to its record, because a later record of the log decides so."""
        self._skips.add(unit, self.position)

    def _apply(self, record: Record) -> None:
        """Apply one record: fire the timers that are due before it, then call ``on_record``, unless the record must be skipped."""
        now_ns = max(self.now_ns, record.timestamp_ns)
        passed_over, number = self._inspect(record) if record.headers else (False, None)
        if self._timers.due_ns <= now_ns:
            self._fire(now_ns, record)
        self.now_ns = now_ns
        if self._skips and not passed_over:
            passed_over = Unit(record.offset) in self._skips
            if passed_over:
                self._answer(record, b"the service could not apply this record", PASSED_OVER)
        if number is not None:
            self._end(number, record, passed_over=passed_over)
        elif not passed_over:
            self._call(None, record, self.service.on_record, record)
        elif record.headers and Unit(record.offset) not in self._skips:
            self._upgrade(record)
        self.position = record.offset + 1
        self.last_epoch = record.leader_epoch
        if self.outbox is not None:
            if self.outbox.diverged:
                raise DivergedError(f"{self.identity}: {self.outbox.diverged}")
            if self.role is Role.FOLLOWER:
                self.outbox.trim()

    def _inspect(self, record: Record) -> tuple[bool, int | None]:
        """Return (True if ``on_record`` must not get the record, number of the effect whose result the record has).

        The number is None if the record has no result of an effect.
        """
        number = effect_of(record, self.identity.service)
        if number is not None:
            return self.effects.get(number) is None, number  # the effect has a result already, or belongs to another service
        return self._is_decided_by(record) or is_tick(record) or self._is_repeated(record), None

    def _end(self, number: int, record: Record, *, passed_over: bool) -> None:
        effect = self.effects.get(number)
        if effect is not None and not passed_over:
            callback = self.service.on_record if effect.is_offer else partial(self._result, effect)
            self._call(None, record, callback, record)
        self.effects.end(number)

    def _result(self, effect: Effect, record: Record) -> None:
        self.service.on_effect_result(effect, record.value or b"")

    def _may_begin(self, record: Record) -> bool:
        """Check that the code supports the version of a log that begins with ``record``. Return True.

        Raises VersionError if it does not.
        """
        version = decided_version(record, self.identity.service) if record.offset == 0 else None
        check_code(self.version, version or self.active_version, record.offset)
        return True

    def _upgrade(self, record: Record) -> None:
        """Activate another version of the code, or another numbering of effects, from ``record`` on, if the record decides so.

        Raises VersionError if the code does not support the version.
        """
        numbering = decided_numbering(record, self.identity.service)
        if numbering is not None:
            self.effects.change_numbering(numbering)
        version = decided_version(record, self.identity.service)
        if version is None or not follows(version, self.active_version, record.offset):
            return
        check_code(self.version, version, record.offset)
        self.active_version = version
        self._call(None, record, self.service.on_version, version)

    def _is_decided_by(self, record: Record) -> bool:
        """Return whether the record is a decision to skip a unit or to activate a version. ``on_record`` does not get it.

        Raises DecisionMissedError if it decides to skip a unit that the service has applied. It does not if a later record
        withdraws the decision.
        """
        if not is_decision(record):
            return False
        unit = decided_unit(record, self.identity.service)
        if unit is not None and unit not in self._skips and Unit(record.offset) not in self._skips:
            self.failed = True
            raise DecisionMissedError(unit, record.offset)
        return True

    def _is_repeated(self, record: Record) -> bool:
        """Return whether the record is a repeated command. If so, send its first reply again. The caller does not apply it."""
        name = message_id_of(record) if self._answers else ""
        known = self._answers.get(name) if name else None
        if known is None:
            return False
        self._answer(record, known.value)
        return True

    def _answer(self, record: Record, value: bytes, error: str = "") -> None:
        output_count = self.outbox.output_count if self.outbox is not None else 0
        self.replies.add(
            Reply(
                offset=record.offset,
                to=record.reply,
                value=value,
                error=error,
                output_count=output_count,
                at_ns=max(self.now_ns, record.timestamp_ns),
                leader_epoch=record.leader_epoch,
            )
        )

    def _fire(self, now_ns: int, record: Record) -> None:
        limit = len(self._timers) + MAX_FIRES_PER_RECORD  # an error in a timer is no fault of the record
        while (due := self._timers.pop_due(now_ns)) is not None:
            at_ns, name = due
            unit = Unit(record.offset, name)
            limit -= 1
            if limit < 0:
                self.failed = True
                text = f"more than {MAX_FIRES_PER_RECORD} timers that were set meanwhile fire: does {name!r} set itself again?"
                raise BadRecordError(unit, record, text)
            self.now_ns = max(self.now_ns, at_ns)
            if unit not in self._skips:
                self._call(name, record, self.service.on_timer, name)

    def _call(self, timer: str | None, record: Record, callback: Callable[[Any], object], argument: object) -> None:
        """Run one callback of the service with ``argument``: ``on_record``, or ``on_timer`` if ``timer`` is its name.

        When it returns, its outputs are added to the outbox, its effects are scheduled, and its reply is stored.
        """
        source = self._source
        assert source is not None
        try:
            returned = callback(argument)
            if returned is not None and isawaitable(returned):
                getattr(returned, "close", bool)()
                raise ServiceFailedError(
                    "The callback returned a coroutine. Callbacks of a service must be plain functions: remove `async`."
                )
        except Exception as error:
            self.failed = True
            unit = Unit(record.offset, timer or "")
            what = f"on_timer {unit.timer!r}" if unit.timer else "on_record"
            blame = "" if isinstance(error, ServiceFailedError) else f"{getattr(error, 'code', type(error).__name__)}: "
            raise BadRecordError(unit, record, f"{what} failed at offset {unit.offset}: {blame}{error}") from error
        if source.emitted:
            assert self.outbox is not None
            for output in source.emitted:
                self.outbox.add(output)
            source.emitted.clear()
        if source.asked:
            output_count = self.outbox.output_count if self.outbox is not None else 0
            cause = EffectCause(record.offset, record.leader_epoch, timer or "")
            for effect in source.asked:
                self.effects.add(
                    effect.name, effect.payload, effect.key, cause, is_offer=effect.is_offer, output_count=output_count
                )
            source.asked.clear()
        if source.reply is not None:
            value, source.reply = source.reply, None
            self._answer(record, value)
            if name := message_id_of(record):
                self._answers.add(Answer(record.offset, name, value))

    # ---- snapshots -------------------------------------------------------------------------------------------------------
    def _snapshot_through(self, position: int, done: ApplyResult) -> int:
        """Take the snapshot at the last multiple of the interval up to ``position``, unless it was taken. Add it to ``done``.

        Return the next multiple.
        """
        boundary = position // self._snapshot_every * self._snapshot_every
        if boundary > self._snapshot_position:
            self._snapshot_position = boundary
            source, self._source = self._source, None
            done.snapshots.append(self.snapshot(boundary))
            self._source = source
        return boundary + self._snapshot_every

    @property
    def boundary(self) -> int:
        """Offset at which the next regular snapshot is taken."""
        return (self._snapshot_position // self._snapshot_every + 1) * self._snapshot_every

    def snapshot(self, position: int | None = None) -> Snapshot:
        """Return a snapshot of the current state, for the offset ``position``. None: for the machine's position.

        Its bytes may be computed later, in any thread (``Snapshot.whole``).
        """
        if self.failed:
            raise ServiceFailedError(
                f"{self.identity} failed at offset {self.position}. Its state is invalid, so it makes no snapshot. "
                "Fix the error, then restart the service."
            )
        with _service_errors("take_snapshot"):
            state = self.service.take_snapshot()
        make: Callable[[], bytes] | None = None
        if not isinstance(state, bytes):
            make, state = _deferred_state(state), b""
        kind = type(self.service)
        if next(one for one in kind.__mro__ if "check_snapshot" in vars(one)) is not Service:
            make, state = _with_check(kind, make if make is not None else partial(_same, state)), b""
        return Snapshot(
            identity=self.identity,
            position=self.position if position is None else position,
            last_epoch=self.last_epoch,
            now_ns=self.now_ns,
            output_count=self.outbox.output_count if self.outbox is not None else 0,
            timers=self._timers.entries(),
            state=state,
            output_digest=self.outbox.digest if self.outbox is not None else b"",
            skips=self._skips.newest(self.position),
            sections=tuple((kind, content) for kind, content in self._sections() if content),
            make=make,
        )

    def _sections(self) -> Iterator[tuple[Section, bytes]]:
        yield Section.PARAMETERS, self._parameters_digest
        yield Section.EFFECTS, self.effects.encode()
        yield Section.ANSWERS, self._answers.encode()
        yield Section.VERSION, encode_section(self.active_version)

    # ---- queries ---------------------------------------------------------------------------------------------------------
    @property
    def takes_queries(self) -> bool:
        """True if the class of the service overrides ``on_query``."""
        return type(self.service).on_query is not Service.on_query

    def query(self, body: bytes) -> bytes:
        """Return the answer of the service's ``on_query`` to the query ``body``. The state contains all records below ``position``.

        Raises ServiceFailedError if the service raises, or if its state is incomplete (``failed``).
        """
        if self.failed:
            raise ServiceFailedError(
                f"{self.identity} failed at offset {self.position}. Its state is invalid, so it answers no queries. "
                "Fix the error, then restart the service."
            )
        with _service_errors("on_query"):
            answer = self.service.on_query(body)
        if not isinstance(answer, bytes):
            raise ServiceFailedError(f"on_query returned {type(answer).__name__}. Return bytes.")
        return answer

    # ---- methods for the service ------------------------------------------------------------------------------------------
    def emit(self, value: bytes, key: bytes | None, headers: Headers, to: str = "") -> None:
        """Add an output of the current record. It goes to the outbox when the callback returns. ``to``: route, '' for none."""
        source = self._current_source("emit")
        if not isinstance(to, str):
            raise ServiceFailedError(f"Invalid route of type {type(to).__name__}. Use the name of a route (str).")
        if to and self.routes is not None and to not in self.routes:
            raise ServiceFailedError(
                f"emit() was called with the unknown route {to!r}. Start the service with --route {to}=STREAM on all nodes."
            )
        if self.service.emits is False:
            raise ServiceFailedError(
                "emit() was called, but the class sets emits = False. Remove `emits = False`, or do not emit."
            )
        if self.outbox is None:
            raise ServiceFailedError(
                "emit() was called, but the service has no output stream. Start it with --output-stream STREAM."
            )
        count, key = len(source.emitted), _as_bytes(key)
        try:
            pairs: Pairs | None = tuple((name, _as_bytes(content)) for name, content in headers)
        except (TypeError, ValueError):
            pairs = None
        if not isinstance(key, bytes | None) or pairs is None or not all(_is_header(*pair) for pair in pairs):
            raise ServiceFailedError(
                "Invalid output. The key must be bytes or None. The headers must be pairs of a name (str) and a value (bytes)."
            )
        stored_pairs = (*pairs, (OUTPUT_TO, to.encode())) if to else pairs
        output = Output(self.outbox.output_count + count, source.offset, source.index, value, key, stored_pairs)
        if not isinstance(value, bytes) or output.size_bytes > MAX_OUTPUT_BYTES or count >= MAX_OUTPUTS_PER_CALLBACK:
            raise ServiceFailedError(
                f"Invalid output. An output must be bytes of at most {MAX_OUTPUT_BYTES}, and one record or timer can "
                f"emit at most {MAX_OUTPUTS_PER_CALLBACK}."
            )
        names = [name for name, _ in pairs]
        if len(set(names)) != len(names) or EXPECTED_HEADER in names or any(map(is_reserved, names)):
            raise ServiceFailedError(
                "Invalid header of an output. Header names must be unique and not empty. Lift-* and "
                f"{EXPECTED_HEADER} are reserved."
            )
        if reserved_name := first_refused(names):
            raise ServiceFailedError(
                f"An output cannot have the header {reserved_name!r}, because it would apply to the output stream. Remove it "
                "before you emit."
            )
        source.index += 1
        source.emitted.append(output)

    def reply(self, record: Record, value: bytes) -> None:
        """Set the reply to the sender of the current record. The LEADER sends it later, when the outputs of the record are written."""
        source = self._current_source("reply")
        if record.offset != source.offset or source.reply is not None:
            raise ServiceFailedError("reply() was called too late or twice. Call it once, inside on_record, before it returns.")
        if not isinstance(value, bytes) or len(value) > MAX_OUTPUT_BYTES:
            raise ServiceFailedError(f"Invalid reply. A reply must be bytes of at most {MAX_OUTPUT_BYTES}.")
        source.reply = value

    def effect(self, name: str, payload: bytes) -> None:
        """Schedule an effect, which is an action outside of the state machine. The LEADER runs it later."""
        if type(self.service).on_effect is Service.on_effect:
            raise ServiceFailedError("effect() was called, but the class has no on_effect. Define on_effect in the class.")
        if not isinstance(name, str) or not is_utf8(name) or not 0 < len(name.encode()) <= MAX_NAME_BYTES:
            raise ServiceFailedError(f"Invalid name of an effect. Use a text (str) of 1 to {MAX_NAME_BYTES} bytes.")
        self._ask("effect", _RequestedEffect(name, payload, None, is_offer=False))

    def offer(self, value: bytes, key: bytes | None) -> None:
        """Schedule a record that the LEADER appends to the service's own input."""
        self._ask("offer", _RequestedEffect("", value, _as_bytes(key), is_offer=True))

    def _ask(self, what: str, effect: _RequestedEffect) -> None:
        source = self._current_source(what)
        are_bytes = isinstance(effect.payload, bytes) and isinstance(effect.key, bytes | None)
        if not are_bytes or len(effect.payload) + len(effect.key or b"") > MAX_OUTPUT_BYTES:
            raise ServiceFailedError(f"Invalid {what}. It must be bytes of at most {MAX_OUTPUT_BYTES}.")
        if not self.effects.has_room(len(source.asked) + 1, sum(len(other.payload) for other in (effect, *source.asked))):
            raise ServiceFailedError(
                f"Too many pending effects and offers: at most {MAX_PENDING}, or {MAX_PENDING_BYTES} bytes. Wait for "
                "results before you request more."
            )
        source.asked.append(effect)

    def run_effect(self, effect: Effect) -> object:
        """Run ``on_effect`` of the service and return its result: bytes, None, or a coroutine.

        The method runs in a thread of its own and must not use the state.
        """
        return self.service.on_effect(effect)

    @property
    def has_effects(self) -> bool:
        """True if the class of the service defines ``on_effect``, or if the service has requested effects or offers."""
        return type(self.service).on_effect is not Service.on_effect or self.effects.count > 0

    @property
    def timer_count(self) -> int:
        """Number of timers that are set."""
        return len(self._timers)

    @property
    def next_timer_ns(self) -> int | None:
        """Log time of the next timer. None: no timer is set."""
        return self._timers.due_ns if len(self._timers) else None

    def set_timer(self, name: str, at_ns: int) -> None:
        """Set a timer: ``on_timer(name)`` is called at the log time ``at_ns``, in ns since 1970."""
        self._current_source("set_timer")
        try:
            self._timers.set(name, at_ns)
        except ValueError as error:
            raise ServiceFailedError(str(error)) from None

    def cancel_timer(self, name: str) -> None:
        """Cancel a timer."""
        self._current_source("cancel_timer")
        self._timers.cancel(name)

    def _current_source(self, what: str) -> _Source:
        if self._source is None or not self.is_apply_thread():
            raise ServiceFailedError(
                f"{what} is allowed only in on_record and on_timer. In other callbacks the result would differ between nodes."
            )
        return self._source


def _as_bytes(content: Any) -> Any:
    """Return a bytearray or memoryview as bytes, and anything else as it is. Earlier versions accepted these as keys and headers."""
    return bytes(content) if isinstance(content, (bytearray, memoryview)) else content


def _is_header(name: object, content: object) -> bool:
    if not isinstance(name, str) or not isinstance(content, bytes):
        return False
    try:
        name.encode("utf-8", "surrogateescape")  # names that are not UTF-8 come from plain NATS messages
    except UnicodeEncodeError:
        return False
    return True


def effect_result(returned: object) -> bytes:
    """Return the result of an effect from the object that ``on_effect`` has returned.

    Raises ServiceFailedError if it is neither bytes nor None, or if it is too large.
    """
    if returned is not None and not isinstance(returned, bytes):
        raise ServiceFailedError(f"on_effect returned {type(returned).__name__}. Return bytes or None.")
    if returned is not None and len(returned) > MAX_OUTPUT_BYTES:
        raise ServiceFailedError(
            f"on_effect returned {len(returned)} bytes, at most {MAX_OUTPUT_BYTES} are allowed. Return a reference "
            "to larger data."
        )
    return returned or b""


def _deferred_state(make: object) -> Callable[[], bytes]:
    if not callable(make):
        raise ServiceFailedError(
            f"take_snapshot returned {type(make).__name__}. Return bytes, or a function that returns bytes."
        )

    def made() -> bytes:
        with _service_errors("what take_snapshot returned"):
            state = make()
        if not isinstance(state, bytes):
            raise ServiceFailedError(
                f"The function that take_snapshot returned produced {type(state).__name__}. It must return bytes."
            )
        return state

    return made


def _same(state: bytes) -> bytes:
    return state


def _with_check(kind: type[Service], make: Callable[[], bytes]) -> Callable[[], bytes]:
    """Return a function that calls ``make`` to get the state of a service, checks it, and returns it.

    The check is ``check_snapshot`` of the class ``kind`` [S16]. The function raises StorageError if the check fails.
    """

    def made() -> bytes:
        state = make()
        try:
            kind.check_snapshot(state)
        except Exception as error:
            raise StorageError(
                f"restore() cannot read the state that take_snapshot() produced: {error!r}. The snapshot is not "
                "stored. Fix one of the two methods."
            ) from error
        return state

    return made


def _yes() -> bool:
    return True


class _service_errors:
    """Context manager that turns an error of the service's code into a ServiceFailedError with the name of the callback."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ServiceFailedError):
            blame = error.code if isinstance(error, LiftError) else type(error).__name__
            raise ServiceFailedError(f"{self._where}: {blame}: {error}") from error


class LogTimers:
    """Timers of one service by log time. ``set`` moves a timer that is already set.

    Timers are part of a service's replicated state, so only (time, name) orders them. A timer fires before the first record
    whose log time is at or after its own time. That is the same place in the log on every node. On a stream without new
    records, the log time does not advance and no timer fires.
    """

    def __init__(self) -> None:
        self._at_ns: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        """Heap of (log time, name). An entry is outdated if ``_at_ns`` has another time for the name."""

    def __len__(self) -> int:
        return len(self._at_ns)

    def set(self, name: str, at_ns: int) -> None:
        """Set the timer ``name`` to fire at the log time ``at_ns``, in ns since 1970.

        Raises ValueError if the name, the time or the number of timers is not allowed.
        """
        is_name = isinstance(name, str) and is_utf8(name) and 0 < len(name.encode()) <= MAX_TIMER_NAME_BYTES
        if not is_name or not hasattr(at_ns, "__index__") or not -(1 << 63) <= at_ns < 1 << 63:
            raise ValueError(
                f"Invalid timer. Use a name (str) of 1 to {MAX_TIMER_NAME_BYTES} bytes and a time in nanoseconds (int64)."
            )
        at_ns = operator.index(at_ns)  # not a number of NumPy: a snapshot restores an int
        if name not in self._at_ns and len(self._at_ns) >= MAX_TIMERS:
            raise ValueError(f"Too many timers: at most {MAX_TIMERS}. Cancel timers that are no longer needed.")
        self._at_ns[name] = at_ns
        heapq.heappush(self._heap, (at_ns, name))
        if len(self._heap) > 64 + 2 * len(self._at_ns):
            self._heap = sorted((at, name) for name, at in self._at_ns.items())

    def cancel(self, name: str) -> None:
        """Cancel the timer. The call has no effect if the timer is not set."""
        self._at_ns.pop(name, None)

    @property
    def due_ns(self) -> int:
        """Log time before which no timer is due. It may be the time of a canceled timer. ``NEVER``: there are no timers."""
        return self._heap[0][0] if self._heap else NEVER

    def pop_due(self, now_ns: int) -> tuple[int, str] | None:
        """Remove and return (time, name) of the first timer at or before the log time ``now_ns``. None: no timer is due."""
        while self._heap and self._heap[0][0] <= now_ns:
            at_ns, name = heapq.heappop(self._heap)
            if self._at_ns.get(name) == at_ns:
                del self._at_ns[name]
                return at_ns, name
        return None

    def entries(self) -> tuple[tuple[int, str], ...]:
        return tuple(sorted((at, name) for name, at in self._at_ns.items()))
