"""Bytes of messages that no single decoder makes: answers and snapshots of group coordinators, and orders to services.

Each value is a digest of all bytes of one seeded history.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from unittest import mock

from liftpy.core.base.ids import PartitionKey
from liftpy.core.groups.coordinator import answer_query
from liftpy.core.groups.machine import GroupMachine
from liftpy.core.services.sessions import Effect, ReplicaView, SendToService, ServiceSessions
from liftpy.core.wire._pb import group_pb2, service_pb2
from tests.freeze.recorded_names import with_recorded_names
from tests.fuzz.mutate import message_of

_NAMES = ("s1", "s2", "orders", "u1")
_SEEDS = (1, 2)


def _group_history(run: Callable[[int], Counter[str]], seed: int) -> str:
    """Return a digest of all commands, answers and states of one simulated history."""
    found = hashlib.sha256()
    machines: list[GroupMachine] = []
    apply = GroupMachine.apply

    def noted(machine: GroupMachine, data: bytes, stamp_ns: int, leader_epoch: int) -> bytes:
        answer = apply(machine, data, stamp_ns, leader_epoch)
        found.update(data + answer)
        machines[:] = [machine]
        return answer

    with mock.patch.object(GroupMachine, "apply", noted):
        run(seed)
    machine = machines[0]
    found.update(machine.snapshot())
    for query in [group_pb2.GroupQuery(), *(group_pb2.GroupQuery(group=name) for name in sorted(machine.groups))]:
        found.update(answer_query(machine, query.SerializeToString()))
    return found.hexdigest()[:16]


def _service_history(seed: int) -> str:
    """Return a digest of all orders and rejections that services of one replica get, and of its status."""
    rng, found, now_ns, seen = random.Random(seed), hashlib.sha256(), 0, list[service_pb2.JoinLog]()
    sessions = ServiceSessions(
        PartitionKey("orders", "u1", 0),
        "n1",
        ack_ids=itertools.count(1),
        session_ns=5_000_000_000,
        lease_ms=900,
        patience_ns=1_000_000_000,
    )

    def note(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendToService):
                found.update(effect.inbox.encode() + effect.message.SerializeToString(deterministic=True))
                if isinstance(effect.message, service_pb2.JoinLog):
                    seen.append(effect.message)
            else:
                found.update(with_recorded_names(repr(effect)).encode())

    for _ in range(400):
        now_ns += rng.randrange(1_000_000_000)
        view = ReplicaView(rng.random() < 0.5, rng.random() < 0.3, rng.randrange(1, 4), 0, rng.randrange(50), 60)
        name = rng.choice(("s1", "s2", "s3"))
        match rng.randrange(8):
            case 0:
                order = rng.choice(seen) if seen else service_pb2.JoinLog()
                ack = service_pb2.ServiceAck(
                    service=order.service, instance=order.instance, ackId=order.ackId, position=rng.randrange(50)
                )
                note(sessions.ack(ack, view))
            case 1:
                note(sessions.role_changed(view))
                note(sessions.replay(view, now_ns))
            case 2:
                note([*sessions.stop_waiting_for_services(now_ns), *sessions.expire(now_ns)])
                sessions.agree(name, {rng.randrange(9): (rng.randbytes(16), 2)})
                note(sessions.snapshot_wanted(name, view))
            case _:
                hello: service_pb2.ServiceHello = message_of(rng, service_pb2.ServiceHello, _NAMES)
                hello.service, hello.instance, hello.streamUid = name, rng.randrange(1, 3), rng.choice(("", "u1", "u1", "u2"))
                hello.leaving, hello.position = rng.random() < 0.1, rng.randrange(60)
                note(sessions.hello(hello, f"inbox.{name}", view, now_ns))
        state = [
            sessions.report(50),
            sessions.missing_services(50, now_ns),
            sessions.retain_from(),
            with_recorded_names(repr(sessions.states())),
        ]
        found.update(
            json.dumps([*state, repr(sessions.digests()), with_recorded_names(repr(sessions.condition(name)))]).encode()
        )
    return found.hexdigest()[:16]


def message_histories() -> dict[str, str]:
    """Return one digest for each seeded history."""
    from tests.simulation.group.__main__ import HISTORIES

    groups = {
        f"history of {kind} {seed}": _group_history(run, seed) for kind, run in sorted(HISTORIES.items()) for seed in _SEEDS
    }
    return groups | {f"history of services {seed}": _service_history(seed) for seed in range(1, 6)}
