"""``ServiceTest``: runs a replicated service without a cluster, for unit tests, and checks that it is deterministic.

    test = ServiceTest(Bank)
    test.send(b'{"id": "1", "do": "open", "account": "a"}').advance(60).send(b'{"id": "2", ...}')
    assert [json.loads(output.value)["ok"] for output in test.outputs] == [True, True]
    test.verify()

It uses ``ServiceMachine``, as a node does: timers by log time, outputs, snapshots, rejections.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from liftpy.config import NS_PER_S
from liftpy.core.services.effects import Effect, EffectNumbering, result_headers, tick_headers
from liftpy.core.services.machine import ServiceMachine, effect_result
from liftpy.core.services.outbox import Outbox, Output
from liftpy.core.services.replies import Reply, ReplyBuffer
from liftpy.core.services.service import DivergedError, Role, Service, ServiceFailedError
from liftpy.core.services.snapshot import Identity, Snapshot, decode
from liftpy.core.wire.batch import Record
from liftpy.core.wire.headers import HeadersLike, encoded_pairs
from liftpy.errors import ConfigError
from liftpy.service.initial_version import activate_newest_version

_IDENTITY = Identity("tested", "input", "test", 0)
_BEGIN_NS = 1_700_000_000 * NS_PER_S
_STEP_NS = 1_000_000
_NO_SNAPSHOTS = 1 << 62
_MAX_OUTPUTS = 1 << 40
_CHILD_TIMEOUT_S = 300.0
_SHOWN_BYTES = 200
_HEADERS = Record._fields.index("headers")


class ServiceTest:
    """Runs one instance of a service without a cluster. Feed it records by hand.

    Its role is LEADER. An error of the service is raised by ``send`` as ServiceFailedError, and ends the test instance. Methods
    that feed records return this object.

    Args:
        factory: The service class, or a function that returns an instance.

    Example:
        from liftpy.testing import ServiceTest

        test = ServiceTest(Counter).send(b"one").send(b"two")
        assert test.service.count == 2
        test.verify(hash_seeds=0)
    """

    def __init__(self, factory: Callable[[], Service]) -> None:
        self._factory = factory
        self._records: list[Record] = []
        self._now_ns = _BEGIN_NS
        self._run = _Run(factory, Role.LEADER)
        self._failed = False

    @property
    def service(self) -> Service:
        """The running instance. ``restart`` replaces it."""
        return self._run.service

    @property
    def outputs(self) -> list[Output]:
        """All outputs so far, in order. ``offset`` of each is the record that it came from, from 0."""
        return self._run.outputs

    @property
    def replies(self) -> list[Reply]:
        """All replies so far, in order, including replies to records without a reply subject.

        ``offset`` is that of the record. ``error`` is an error code.
        """
        return self._run.replies.all

    @property
    def effects(self) -> list[Effect]:
        """Effects and offers that have no result yet, in order."""
        return list(self._run.machine.effects)

    def result(self, effect: Effect, result: bytes = b"") -> ServiceTest:
        """Feed the record with the result of an effect, as a LEADER appends it after it has run the effect.

        Args:
            effect: The effect. For an offer, its own record is fed.
            result: Result of the effect. Default: empty.
        """
        value = effect.payload if effect.is_offer else result
        return self.send(value, key=effect.key, headers=result_headers(_IDENTITY.service, effect.number))

    def run_effects(self, limit: int = 1000) -> ServiceTest:
        """Run the handlers of all effects and feed their results, until none is left.

        Args:
            limit: Maximum number of effects. Default 1000.

        Raises:
            ServiceFailedError: There are still effects after ``limit``, or ``on_effect`` returned an object that is no
                result.
        """
        for _ in range(limit):
            waiting = self.effects
            if not waiting:
                return self
            with ThreadPoolExecutor(1) as pool:  # a thread as on a node, where no event loop runs
                done = None if waiting[0].is_offer else pool.submit(self._run_handler, waiting[0]).result()
            self.result(waiting[0], effect_result(done))
        raise ServiceFailedError(
            f"More than {limit} effects ran. Does each effect request another one? Increase limit if this is intended."
        )

    def _run_handler(self, effect: Effect) -> Any:
        done: Any = self._run.machine.run_effect(effect)
        return asyncio.run(done) if inspect.iscoroutine(done) else done

    def tick(self) -> ServiceTest:
        """Feed a record that only advances log time, as a LEADER with ``tick_interval_s`` appends it."""
        return self.send(b"", headers=tick_headers(_IDENTITY.service))

    @property
    def now_ns(self) -> int:
        """Log time of the next record, in nanoseconds since 1970."""
        return self._now_ns

    def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike | None = None,
        subject: str = "input",
        reply: str | None = None,
    ) -> ServiceTest:
        """Feed one committed record, 1 ms after the one before. Due timers fire first.

        Args:
            value: Payload. None is a tombstone.
            key: Key of the record. Default None: no key.
            headers: A mapping, or pairs of name and value. Default None.
            subject: Subject of the record. Default ``input``.
            reply: Reply subject of the record. Default None: none.

        Raises:
            ServiceFailedError: The service raised an error or broke a rule.
            ConfigError: The record is not valid.
        """
        if not isinstance(value, bytes | None) or not isinstance(key, bytes | None):
            raise ConfigError("Invalid record. value and key must be bytes or None: encode text first.")
        pairs = encoded_pairs(headers)
        if self._failed:
            raise ServiceFailedError("The service has failed, so this ServiceTest cannot continue. Create another ServiceTest.")
        record = Record(
            offset=len(self._records),
            timestamp_ns=self._now_ns,
            key=key,
            value=value,
            headers=pairs,
            subject=subject,
            reply=reply,
            leader_epoch=1,
        )
        self._records.append(record)
        self._now_ns += _STEP_NS
        self._failed = True
        self._run.feed([record])
        self._failed = False
        return self

    def query(self, query: bytes) -> bytes:
        """Return the answer of ``on_query``.

        Args:
            query: Bytes of the query.

        Raises:
            DivergedError: ``on_query`` changed the state.
        """
        before = self.snapshot()
        answer = self._run.machine.query(query)
        if self.snapshot() != before:
            raise DivergedError(
                "on_query changes the state. A query is not a record, so other nodes would not see the change. Make "
                "on_query read-only."
            )
        return answer

    def advance(self, seconds: float) -> ServiceTest:
        """Advance log time for the next record. No timer fires before that record.

        Args:
            seconds: Time to add, in seconds.
        """
        self._now_ns += round(seconds * NS_PER_S)
        return self

    def snapshot(self) -> bytes:
        """Return the state that ``take_snapshot`` makes now."""
        return self._run.machine.snapshot().whole().state

    def restart(self) -> ServiceTest:
        """Take a snapshot and continue with a new instance from it, as after a crash."""
        self._run = self._run.restart_from_snapshot()
        return self

    def verify(self, *, hash_seeds: int = 2, restarts: int = 50) -> None:
        """Check that the records so far always give the same outputs and snapshots.

        The records run again as FOLLOWER, from snapshots, and in other processes with other hash seeds.

        Args:
            hash_seeds: Number of other processes. They import the factory by name. Default 2. 0: none.
            restarts: Maximum number of records after which to restart from a snapshot. Default 50.

        Raises:
            DivergedError: A result differs.
            ConfigError: ``hash_seeds`` is not 0, and the factory is not in a module.
        """
        count = len(self._records)
        places = sorted({count * number // restarts for number in range(1, restarts + 1)} - {0}) if restarts else []
        reference_run = _run_records(self._factory, Role.LEADER, self._records, places)
        _compare(reference_run, _run_records(self._factory, Role.FOLLOWER, self._records, places), "as FOLLOWER")
        for place in places:
            self._replay_from(place, reference_run)
        for seed in range(1, hash_seeds + 1):
            _compare(
                reference_run, _in_process(self._factory, self._records, places, seed), "in another process with other hashes"
            )

    def _replay_from(self, place: int, reference_run: _RunResult) -> None:
        run = _Run(self._factory, Role.LEADER)
        run.feed(self._records[:place])
        again = run.restart_from_snapshot()
        what = f"from the snapshot after {place} records"
        if again.machine.snapshot().encode() != run.machine.snapshot().encode():
            raise DivergedError(
                f"{what}: the state after a restore from the snapshot differs. take_snapshot lacks a part of the state."
            )
        again.feed(self._records[place:])
        _compare(replace(reference_run, states={-1: reference_run.states[-1]}), _result_of(again, {-1: _state(again)}), what)


class _Run:
    """One run of a service over records, with its state machine, its instance and its outputs so far."""

    def __init__(self, factory: Callable[[], Service], role: Role, snapshot: Snapshot | None = None) -> None:
        self._factory, self._role = factory, role
        self.service = factory()
        self.outputs: list[Output] = []
        self.replies = _Replies()
        self._outbox = Outbox("test/0", max_records=_MAX_OUTPUTS, max_bytes=_MAX_OUTPUTS)
        self.machine = ServiceMachine(self.service, _IDENTITY, snapshot_interval_records=_NO_SNAPSHOTS, outbox=self._outbox)
        self.machine.replies = self.replies
        self.machine.effects.change_numbering(EffectNumbering.BY_RECORD)
        self.machine.start(snapshot)
        self.machine.change_role(role, 1)
        if snapshot is None:
            activate_newest_version(self.machine, _BEGIN_NS)

    def feed(self, records: Iterable[Record]) -> None:
        self.machine.apply(records)
        outputs = self._outbox.read(self._outbox.oldest_number, self._outbox.waiting_count)
        self.outputs += outputs
        self._outbox.outputs_committed(self._outbox.output_count)

    def restart_from_snapshot(self) -> _Run:
        """Return a new run that starts from a snapshot of this one's state. It has the outputs so far."""
        snapshot = decode(self.machine.snapshot().encode(), _IDENTITY)
        again = _Run(self._factory, self._role, snapshot)
        again.outputs = list(self.outputs)
        again.replies.all = list(self.replies.all)
        return again


class _Replies(ReplyBuffer):
    """Stores all replies of a run instead of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Reply] = []

    def add(self, reply: Reply) -> None:
        self.all.append(reply)


_Output = list[Any]
"""[offset, index, value, key, sorted headers] of an output."""


@dataclass(slots=True)
class _RunResult:
    """Result of a run.

    ``replies``: [offset, value] of each reply. ``states``: snapshot after a number of records, by this number. -1: snapshot at the
    end.
    """

    outputs: list[_Output]
    replies: list[list[Any]]
    states: dict[int, bytes]


def _result_of(run: _Run, states: dict[int, bytes]) -> _RunResult:
    outputs = [[one.offset, one.index, one.value, one.key, sorted(map(list, one.headers))] for one in run.outputs]
    return _RunResult(outputs, [[reply.offset, reply.value] for reply in run.replies.all], states)


def _state(run: _Run) -> bytes:
    first, second = (run.machine.snapshot().encode() for _ in range(2))
    if first != second:
        raise DivergedError(
            "take_snapshot returned other bytes at its second call. It changes the state, or it depends on an "
            "order such as that of a set."
        )
    return first


def _run_records(factory: Callable[[], Service], role: Role, records: Sequence[Record], places: Sequence[int]) -> _RunResult:
    """Run a new service instance over ``records``, and return its outputs, replies and snapshots."""
    run, states, done = _Run(factory, role), {}, 0
    for place in places:
        run.feed(records[done:place])
        done = place
        states[place] = _state(run)
    run.feed(records[done:])
    states[-1] = _state(run)
    return _result_of(run, states)


def _compare(one: _RunResult, other: _RunResult, how: str) -> None:
    for number, (mine, theirs) in enumerate(zip(one.outputs, other.outputs, strict=False)):
        if mine != theirs:
            raise DivergedError(
                f"Output {number} (of the record at offset {mine[0]}) differs {how}: {_output_text(mine)}, then "
                f"{_output_text(theirs)}. The callbacks must be deterministic."
            )
    if len(one.outputs) != len(other.outputs):
        raise DivergedError(
            f"The number of outputs differs {how}: {len(one.outputs)}, then {len(other.outputs)}. The callbacks "
            "must be deterministic."
        )
    for reply, again in zip_longest(one.replies, other.replies):
        if reply != again:
            offset, _ = reply or again
            raise DivergedError(
                f"The reply to the record at offset {offset} differs {how}. The callbacks must be deterministic."
            )
    for place, state in one.states.items():
        if place in other.states and other.states[place] != state:
            where = "at the end" if place < 0 else f"after {place} records"
            raise DivergedError(
                f"The snapshot {where} differs {how}, although the outputs are equal. Check that take_snapshot has a "
                "fixed order."
            )


def _output_text(output: _Output) -> str:
    _, _, value, _, headers = output
    return f"{value[:_SHOWN_BYTES]!r}" + (f" with {dict(headers)}" if headers else "")


# ---- in another process --------------------------------------------------------------------------------------------------
def _in_process(factory: Callable[[], Service], records: Sequence[Record], places: Sequence[int], seed: int) -> _RunResult:
    name, module = getattr(factory, "__qualname__", ""), sys.modules.get(getattr(factory, "__module__", ""))
    file = getattr(module, "__file__", None)
    factory_object: Any = module
    for part in name.split("."):
        factory_object = getattr(factory_object, part, None)
    if not file or factory_object is not factory:
        raise ConfigError(
            f"Another process cannot import {name or factory!r}. Define it at the top level of a module, or skip "
            "this check with verify(hash_seeds=0)."
        )
    work = {
        "module": module.__name__ if module is not None else "",
        "file": file,
        "name": name,
        "path": sys.path,
        "places": places,
        "records": records,
    }
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    child = subprocess.run(
        [sys.executable, "-c", "from liftpy.testing.services import run_in_child; run_in_child()"],
        input=_to_json(work),
        capture_output=True,
        text=True,
        timeout=_CHILD_TIMEOUT_S,
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    if child.returncode:
        last = (child.stderr.strip().splitlines() or ["nothing"])[-1]
        raise ServiceFailedError(f"The service failed in the second process of the check: {last}")
    answer = _from_json(child.stdout.splitlines()[-1])
    if "diverged" in answer:
        raise DivergedError(f"The service diverged in another process: {answer['diverged']}")
    return _RunResult(answer["outputs"], answer["replies"], {int(place): state for place, state in answer["states"].items()})


def _to_json(value: object) -> str:
    """Return ``value`` as JSON. Bytes become an object with one field."""
    return json.dumps(value, default=lambda data: {"base64": base64.b64encode(data).decode()})


def _from_json(text: str) -> Any:
    return json.loads(text, object_hook=lambda fields: base64.b64decode(fields["base64"]) if "base64" in fields else fields)


def run_in_child() -> None:
    """Run in the child process of ``verify``: read the records from stdin, and write the result as the last line to stdout."""
    work = _from_json(sys.stdin.read())
    sys.path[:] = work["path"]
    factory: Any = _module(work["module"], Path(work["file"]))
    for part in work["name"].split("."):
        factory = getattr(factory, part)
    records = [Record(*fields)._replace(headers=tuple(map(tuple, fields[_HEADERS]))) for fields in work["records"]]
    try:
        result = _run_records(factory, Role.LEADER, records, work["places"])
    except DivergedError as error:
        print(_to_json({"diverged": str(error)}))
        return
    print(_to_json(asdict(result)))  # the service may have printed lines before


def _module(name: str, file: Path) -> Any:
    """Return the module ``name``. If it cannot be imported by name, load it from ``file``.

    A script has the name ``__main__`` and is always loaded from its file.
    """
    if name != "__main__":
        try:
            return importlib.import_module(name)
        except ImportError:
            pass
    plan = importlib.util.spec_from_file_location("liftpy_tested_service", file)
    if plan is None or plan.loader is None:
        raise ConfigError(f"{file} is not a Python module. Give a path that ends with .py.")
    module = importlib.util.module_from_spec(plan)
    sys.modules[plan.name] = module
    plan.loader.exec_module(module)
    return module
