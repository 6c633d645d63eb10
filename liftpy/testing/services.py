"""ServiceTest: a replicated service without a cluster, for its own unit tests, and a check that it is deterministic.

    test = ServiceTest(Bank)
    test.send(b'{"id": "1", "do": "open", "account": "a"}').advance(60).send(b'{"id": "2", ...}')
    assert [json.loads(output.value)["ok"] for output in test.outputs] == [True, True]
    test.verify()

What drives the service is what drives it beside a node (``ServiceMachine``): timers by log time, outputs, snapshots, refusals.
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
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from liftpy.config import NS_PER_S
from liftpy.core.services.effects import Effect, result_headers, tick_headers
from liftpy.core.services.machine import ServiceMachine
from liftpy.core.services.outbox import Outbox, Output
from liftpy.core.services.replies import Reply, ReplyDesk
from liftpy.core.services.service import DivergedError, Headers, Role, Service, ServiceFailedError
from liftpy.core.services.snapshot import Identity, Snapshot, decode
from liftpy.core.wire.batch import Record
from liftpy.errors import ConfigError

_IDENTITY = Identity("tested", "input", "test", 0)
_BEGIN_NS = 1_700_000_000 * NS_PER_S
_STEP_NS = 1_000_000
_NO_SNAPSHOTS = 1 << 62
_MAX_OUTPUTS = 1 << 40
_CHILD_TIMEOUT_S = 300.0
_SHOWN_BYTES = 200


class ServiceTest:
    """One instance of a service, fed by hand. ``factory``: the class, or what makes an instance.

    Its role is LEADER. What the service raises comes out of ``send`` as ServiceFailedError, and that is its end.
    """

    def __init__(self, factory: Callable[[], Service]) -> None:
        self._factory = factory
        self._records: list[Record] = []
        self._now_ns = _BEGIN_NS
        self._run = _Run(factory, Role.LEADER)
        self._failed = False

    @property
    def service(self) -> Service:
        """The instance that runs; another one after ``restart``."""
        return self._run.service

    @property
    def outputs(self) -> list[Output]:
        """All outputs so far, in order. ``offset`` of each: the record that it came from, the first one is 0."""
        return self._run.outputs

    @property
    def replies(self) -> list[Reply]:
        """All replies so far, in order, also to records that name no inbox. ``offset`` of each: the record's; ``error``: a code."""
        return self._run.replies.all

    @property
    def effects(self) -> list[Effect]:
        """Effects and offers without a result, in order."""
        return list(self._run.machine.effects)

    def result(self, effect: Effect, result: bytes = b"") -> ServiceTest:
        """The record that brings the result of ``effect``, as a LEADER appends it; the offered record where it is an offer."""
        value = effect.payload if effect.is_offer else result
        return self.send(value, key=effect.key, headers=result_headers(_IDENTITY.service, effect.number))

    def run_effects(self, limit: int = 1000) -> ServiceTest:
        """Run the handlers of all effects, and give their results, until there are none; ServiceFailedError after ``limit``."""
        for _ in range(limit):
            waiting = self.effects
            if not waiting:
                return self
            done: Any = None if waiting[0].is_offer else self._run.machine.run_effect(waiting[0])
            self.result(waiting[0], (asyncio.run(done) if inspect.iscoroutine(done) else done) or b"")
        raise ServiceFailedError(f"after {limit} effects there are more: does each bring about another one?")

    def tick(self) -> ServiceTest:
        """A record that only lets timers fire, as a LEADER with ``tick_interval_s`` appends it."""
        return self.send(b"", headers=tick_headers(_IDENTITY.service))

    @property
    def now_ns(self) -> int:
        """Time of the next record, ns since 1970."""
        return self._now_ns

    def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        subject: str = "input",
        reply: str | None = None,
    ) -> ServiceTest:
        """One more committed record, 1 ms after the one before it; timers that are due fire first. ``value`` None: a tombstone."""
        if self._failed:
            raise ServiceFailedError("the service has failed, and its state is not gone on with: make another ServiceTest")
        record = Record(
            offset=len(self._records),
            timestamp_ns=self._now_ns,
            key=key,
            value=value,
            headers=tuple(headers),
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
        """What ``on_query`` answers now. Raises DivergedError when it changes the state: no other node would."""
        before = self.snapshot()
        answer = self._run.machine.query(query)
        if self.snapshot() != before:
            raise DivergedError("on_query changes the state: a query is no record, and other nodes do not see it")
        return answer

    def advance(self, seconds: float) -> ServiceTest:
        """The next record comes so much later. Log time is what records say: no timer fires before it."""
        self._now_ns += round(seconds * NS_PER_S)
        return self

    def snapshot(self) -> bytes:
        """What ``take_snapshot`` gives now."""
        return self._run.machine.snapshot().whole().state

    def restart(self) -> ServiceTest:
        """Go on with a new instance that begins with a snapshot of now, as after the death of its process."""
        self._run = self._run.restarted()
        return self

    def verify(self, *, hash_seeds: int = 2, restarts: int = 50) -> None:
        """Raise DivergedError unless the records so far always give the same outputs and the same snapshots.

        They are run again: as FOLLOWER; from a snapshot after each of up to ``restarts`` records, spread evenly; and in
        ``hash_seeds`` other processes, later and with other hashes of str and bytes. For those the factory has to be found by its
        name in a module (ConfigError otherwise): 0 leaves them out.
        """
        count = len(self._records)
        places = sorted({count * number // restarts for number in range(1, restarts + 1)} - {0}) if restarts else []
        told = _told(self._factory, Role.LEADER, self._records, places)
        _compare(told, _told(self._factory, Role.FOLLOWER, self._records, places), "as FOLLOWER")
        for place in places:
            self._replay_from(place, told)
        for seed in range(1, hash_seeds + 1):
            _compare(told, _in_process(self._factory, self._records, places, seed), "in another process with other hashes")

    def _replay_from(self, place: int, told: _Told) -> None:
        run = _Run(self._factory, Role.LEADER)
        run.feed(self._records[:place])
        again = run.restarted()
        what = f"from the snapshot after {place} records"
        if again.machine.snapshot().encode() != run.machine.snapshot().encode():
            raise DivergedError(
                f"{what}: on_start and take_snapshot do not give the same bytes again: the snapshot lacks something"
            )
        again.feed(self._records[place:])
        end = _Told([_shown(output) for output in again.outputs], {len(self._records): _state(again)}, _replies_of(again))
        _compare(_Told(told.outputs, {len(self._records): told.states[-1]}, told.replies), end, what)


class _Run:
    """A machine, its service and what it has put out."""

    def __init__(self, factory: Callable[[], Service], role: Role, snapshot: Snapshot | None = None) -> None:
        self._factory, self._role = factory, role
        self.service = factory()
        self.outputs: list[Output] = []
        self.replies = _Replies()
        self._outbox = Outbox("test/0", max_records=_MAX_OUTPUTS, max_bytes=_MAX_OUTPUTS)
        self.machine = ServiceMachine(self.service, _IDENTITY, snapshot_interval_records=_NO_SNAPSHOTS, outbox=self._outbox)
        self.machine.replies = self.replies
        self.machine.active_version = self.machine.version
        self.machine.start(snapshot)
        self.machine.change_role(role, 1)

    def feed(self, records: Iterable[Record]) -> None:
        self.machine.apply(records)
        outputs = self._outbox.take(self._outbox.first_kept, self._outbox.waiting_count)
        self.outputs += outputs
        self._outbox.written(self._outbox.output_count)

    def restarted(self) -> _Run:
        """A new one from a snapshot of this one's state; it has put out the same."""
        snapshot = decode(self.machine.snapshot().encode(), _IDENTITY)
        again = _Run(self._factory, self._role, snapshot)
        again.outputs = list(self.outputs)
        again.replies.all = list(self.replies.all)
        return again


class _Replies(ReplyDesk):
    """Keeps them all."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Reply] = []

    def add(self, reply: Reply) -> None:
        self.all.append(reply)


Shown = tuple[int, int, str, str | None, list[list[str]]]
"""(offset, index, value, key, headers) of an output, bytes as base64."""


@dataclass(slots=True)
class _Told:
    """What a run gave. ``states``: number of records -> the whole snapshot after them, base64; -1: at the end."""

    outputs: list[Shown]
    states: dict[int, str]
    replies: list[tuple[int, str]] = field(default_factory=list)
    """(offset, value as base64) of each."""


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _shown(output: Output) -> Shown:
    headers = sorted([name, _text(content)] for name, content in output.headers)
    return (output.offset, output.index, _text(output.value), None if output.key is None else _text(output.key), headers)


def _state(run: _Run) -> str:
    first, second = (run.machine.snapshot().encode() for _ in range(2))
    if first != second:
        raise DivergedError(
            "take_snapshot gives other bytes when it is called again: it changes the state, or its order is not fixed"
        )
    return _text(first)


def _told(factory: Callable[[], Service], role: Role, records: Sequence[Record], places: Sequence[int]) -> _Told:
    """Run ``records``, with a look at the state after so many of them as ``places`` say."""
    run, states, done = _Run(factory, role), {}, 0
    for place in places:
        run.feed(records[done:place])
        done = place
        states[place] = _state(run)
    run.feed(records[done:])
    states[-1] = _state(run)
    return _Told([_shown(output) for output in run.outputs], states, _replies_of(run))


def _replies_of(run: _Run) -> list[tuple[int, str]]:
    return [(reply.offset, _text(reply.value)) for reply in run.replies.all]


def _compare(one: _Told, other: _Told, how: str) -> None:
    for number, (mine, theirs) in enumerate(zip(one.outputs, other.outputs, strict=False)):
        if tuple(mine) != tuple(theirs):
            raise DivergedError(
                f"output {number} (of the record at offset {mine[0]}) is another one {how}: {_said(mine)}, then {_said(theirs)}"
            )
    if len(one.outputs) != len(other.outputs):
        raise DivergedError(f"there are {len(one.outputs)} outputs, and {len(other.outputs)} {how}")
    for said, again in zip_longest(one.replies, other.replies):
        if said is None or again is None or tuple(said) != tuple(again):
            first = said or again
            raise DivergedError(f"the reply to the record at offset {first[0]} is another one {how}")
    for place, state in one.states.items():
        if place in other.states and other.states[place] != state:
            where = "at the end" if place < 0 else f"after {place} records"
            raise DivergedError(f"the snapshot {where} is another one {how}, with the same outputs: is its order fixed?")


def _said(shown: Shown) -> str:
    value = base64.b64decode(shown[2])
    headers = {name: base64.b64decode(content) for name, content in shown[4]}
    return f"{value[:_SHOWN_BYTES]!r}" + (f" with {headers}" if headers else "")


# ---- in another process --------------------------------------------------------------------------------------------------
def _in_process(factory: Callable[[], Service], records: Sequence[Record], places: Sequence[int], seed: int) -> _Told:
    name, module = getattr(factory, "__qualname__", ""), sys.modules.get(getattr(factory, "__module__", ""))
    file = getattr(module, "__file__", None)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not file or found is not factory:
        raise ConfigError(
            f"{name or factory!r} can't be found by its name in a module, so no other process can make it: define it at the top of "
            "a module, or leave those out with verify(hash_seeds=0)"
        )
    work = {
        "module": module.__name__ if module is not None else "",
        "file": file,
        "name": name,
        "path": sys.path,
        "places": list(places),
        "records": [_record_as_json(record) for record in records],
    }
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    child = subprocess.run(
        [sys.executable, "-c", "from liftpy.testing.services import run_in_child; run_in_child()"],
        input=json.dumps(work),
        capture_output=True,
        text=True,
        timeout=_CHILD_TIMEOUT_S,
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    if child.returncode:
        last = (child.stderr.strip().splitlines() or ["nothing"])[-1]
        raise ServiceFailedError(f"in another process the service failed: {last}")
    answer = json.loads(child.stdout.splitlines()[-1])
    if "diverged" in answer:
        raise DivergedError(f"in another process: {answer['diverged']}")
    return _Told(
        [tuple(output) for output in answer["outputs"]], {int(k): v for k, v in answer["states"].items()}, answer["replies"]
    )


def _record_as_json(record: Record) -> list[Any]:
    return [
        record.offset,
        record.timestamp_ns,
        None if record.key is None else _text(record.key),
        None if record.value is None else _text(record.value),
        [[name, _text(content)] for name, content in record.headers],
        record.subject,
        record.reply,
    ]


def _record_from_json(fields: list[Any]) -> Record:
    offset, timestamp_ns, key, value, headers, subject, reply = fields
    return Record(
        offset=offset,
        timestamp_ns=timestamp_ns,
        key=None if key is None else base64.b64decode(key),
        value=None if value is None else base64.b64decode(value),
        headers=tuple((name, base64.b64decode(content)) for name, content in headers),
        subject=subject,
        reply=reply,
        leader_epoch=1,
    )


def run_in_child() -> None:
    """The other process of ``verify``: its work on stdin, what came of it in the last line on stdout, both JSON."""
    work = json.load(sys.stdin)
    sys.path[:] = work["path"]
    factory: Any = _module(work["module"], Path(work["file"]))
    for part in work["name"].split("."):
        factory = getattr(factory, part)
    try:
        told = _told(factory, Role.LEADER, list(map(_record_from_json, work["records"])), work["places"])
    except DivergedError as error:
        print(json.dumps({"diverged": str(error)}))
        return
    print(json.dumps({"outputs": told.outputs, "states": told.states, "replies": told.replies}))


def _module(name: str, file: Path) -> Any:
    """The module of that name, or what is in the file: a script's name is ``__main__``."""
    if name != "__main__":
        try:
            return importlib.import_module(name)
        except ImportError:
            pass
    plan = importlib.util.spec_from_file_location("liftpy_tested_service", file)
    if plan is None or plan.loader is None:
        raise ConfigError(f"{file} is no Python module")
    module = importlib.util.module_from_spec(plan)
    sys.modules[plan.name] = module
    plan.loader.exec_module(module)
    return module
