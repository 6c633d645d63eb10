"""Test the state machine of a group member: accepted answers and the end of its session."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from liftpy.core.base.ids import PartitionKey
from liftpy.core.groups.member import (
    MemberMachine,
    MemberRefused,
    PartitionAssigned,
    PartitionLost,
    PartitionRevoked,
)
from liftpy.core.wire._pb import group_pb2 as pb

S = 1_000_000_000
STREAM = pb.KnownStream(name="s", uid="u", partitions=3)


def member() -> MemberMachine:
    numbers = count(1)
    return MemberMachine("g", [STREAM], lambda: f"m{next(numbers)}", session_ms=10_000)


def ok(number: int, assigned: dict[int, int], generation: int = 1, session: int = 1, **more: object) -> pb.GroupAnswer:
    """Assigns partition -> generation, each with the position 10 times its number."""
    part = pb.GrantedPartitions(stream="s", uid="u", partitions=assigned, generations=assigned.values())
    part.positions.extend(10 * partition for partition in assigned)
    part.leaderEpochs.extend(1 for _ in assigned)
    return pb.GroupAnswer(
        number=number, generation=generation, session=session, assigned=[part], heartbeatMs=1000, sessionMs=10_000, **more
    )  # type: ignore[arg-type]


def key(partition: int) -> PartitionKey:
    return PartitionKey("s", "u", partition)


def owned(command: pb.GroupCommand | None) -> list[int]:
    assert command is not None
    return [number for part in command.beat.owned for number in part.partitions]


def joined(assigned: Iterable[int] = (0, 1)) -> MemberMachine:
    machine = member()
    command = machine.command(0)
    assert command is not None
    assert (command.join.member, command.number) == ("m1", 1)
    machine.on_answer(ok(1, dict.fromkeys(assigned, 1)), S // 10)
    return machine


def test_group_member_joins_and_sends_heartbeats_and_releases_partitions() -> None:
    machine = member()
    assert machine.command(-5 * S) is not None, "whatever its clock says"
    assert machine.command(-5 * S) is None
    events = machine.on_answer(ok(1, {0: 1, 1: 1}), -4 * S)
    assert events == [PartitionAssigned(key(0), 1, 0, 1), PartitionAssigned(key(1), 1, 10, 1)]
    assert machine.wake_ns == -4 * S
    assert owned(machine.command(-4 * S)) == [0, 1]
    assert machine.on_answer(ok(2, {0: 1}, 2), -4 * S) == [PartitionRevoked(key(1), 1)]
    assert owned(machine.command(-3 * S)) == [0, 1], "it has not finished"
    assert machine.on_answer(ok(3, {0: 1}, 2), -3 * S) == []
    machine.given_up(key(1))
    beat = machine.command(-3 * S)
    assert owned(beat) == [0]
    assert beat is not None
    assert (beat.beat.generation, beat.beat.session) == (2, 1)


def test_group_member_session_begins_at_the_send_time_of_the_heartbeat() -> None:
    machine = joined()
    machine.command(1 * S)
    machine.on_answer(ok(2, {0: 1, 1: 1}), 9 * S)
    assert machine.until_ns == 11 * S
    assert machine.may_deliver(key(0), 11 * S - 1)
    assert not machine.may_deliver(key(0), 11 * S)
    assert not machine.may_deliver(key(2), 5 * S)
    machine.command(12 * S)
    assert machine.on_answer(ok(3, {0: 1, 1: 1}), 13 * S) == []
    assert machine.may_deliver(key(0), 13 * S), "nobody else had it meanwhile: the generation is the same"


def test_group_member_in_a_new_session_loses_and_regains_its_partitions() -> None:
    machine = joined()
    machine.command(2 * S)
    events = machine.on_answer(ok(2, {1: 5}, 5, session=4), 2 * S)
    assert events == [PartitionLost(key(0), 1), PartitionLost(key(1), 1), PartitionAssigned(key(1), 5, 10, 1)]


def test_group_member_sends_changed_subscriptions_until_the_coordinator_confirms() -> None:
    machine = joined()
    machine.command(1 * S)
    machine.reads([STREAM, pb.KnownStream(name="t", uid="u", partitions=1)])
    first = machine.command(1 * S)
    assert first is not None
    assert (first.number, len(first.beat.streams)) == (3, 2), "at once"
    machine.on_answer(ok(2, {0: 1, 1: 1}), 1 * S)
    again = machine.command(3 * S)
    assert again is not None
    assert again.beat.tellsStreams, "the answer was to the one before"
    machine.on_answer(ok(4, {0: 1, 1: 1}), 3 * S)
    last = machine.command(5 * S)
    assert last is not None
    assert not last.beat.tellsStreams


def test_group_member_removed_by_the_coordinator_rejoins_with_a_new_member_id() -> None:
    machine = joined()
    machine.command(1 * S)
    events = machine.on_answer(pb.GroupAnswer(number=2, code=pb.GROUP_UNKNOWN_MEMBER), 1 * S)
    assert events == [PartitionLost(key(0), 1), PartitionLost(key(1), 1)]
    command = machine.command(1 * S)
    assert command is not None
    assert command.join.member == "m2"
    assert not machine.may_deliver(key(0), 1 * S)


def test_group_member_that_is_fenced_sends_no_commands() -> None:
    machine = joined()
    machine.command(1 * S)
    events = machine.on_answer(pb.GroupAnswer(number=2, code=pb.GROUP_FENCED_INSTANCE, detail="other"), 1 * S)
    assert events[-1] == MemberRefused("other", for_good=True)
    assert machine.command(99 * S) is None
    assert machine.owned == {}


def test_group_member_rejected_by_a_full_group_retries_later() -> None:
    machine = member()
    machine.command(0)
    assert machine.on_answer(pb.GroupAnswer(number=1, code=pb.GROUP_FULL, detail="no"), 0) == [
        MemberRefused("no", for_good=False)
    ]
    assert machine.command(S // 2) is None
    assert machine.command(1 * S) is not None


def test_group_member_commits_only_assigned_partitions_with_their_generation() -> None:
    machine = joined()
    command = machine.commit({key(0): (7, 2), key(2): (9, 2)})
    assert command is not None
    assert [(at.partition, at.position, at.leaderEpoch, at.generation) for at in command.commit.positions] == [(0, 7, 2, 1)]
    assert machine.commit({key(2): (9, 2)}) is None
    leave = machine.leave()
    assert leave is not None
    assert leave.leave.member == "m1"
    assert member().leave() is None
    assert machine.command(9 * S) is None
