"""Test the group coordinator as a service: commands, answers, timers, queries and snapshots."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest

from liftpy.core.groups import commands
from liftpy.core.groups.commands import decode_answer, decode_query_answer, encode_command
from liftpy.core.groups.coordinator import EarlierGroupCoordinator, GroupCoordinator, answer_query
from liftpy.core.groups.group import ADDED_LATER
from liftpy.core.groups.lag import read_positions
from liftpy.core.groups.machine import GroupMachine
from liftpy.core.groups.queue import PieceKind
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.testing.memory.nats import MAX_PAYLOAD_BYTES
from liftpy.testing.services import ServiceTest

UID, LATER = "000001-1", "000002-1"


def stream(partitions: int = 4, name: str = "s", uid: str = UID) -> pb.KnownStream:
    return pb.KnownStream(name=name, uid=uid, partitions=partitions)


class Lab:
    """Provide a coordinator and send commands to it."""

    def __init__(self, coordinator: type[GroupCoordinator] = GroupCoordinator) -> None:
        self.test = ServiceTest(coordinator)

    def say(self, seconds: float = 0.0, group: str = "g", **parts: object) -> pb.GroupAnswer:
        while seconds > 0.9:
            seconds -= 0.9
            self.test.advance(0.9).send(b"")
        command = pb.GroupCommand(group=group, **parts)  # type: ignore[arg-type]
        self.test.advance(seconds).send(encode_command(command))
        return decode_answer(self.test.replies[-1].value)

    def join(self, member: str, streams: Iterable[pb.KnownStream] = (), **more: object) -> pb.GroupAnswer:
        join = pb.JoinGroup(member=member, streams=[*streams] or [stream()], **more)  # type: ignore[arg-type]
        return self.say(join=join)

    def beat(self, member: str, last: pb.GroupAnswer, *, gives_up: Iterable[int] = (), seconds: float = 0.0) -> pb.GroupAnswer:
        """Send a heartbeat of the owner of the partitions in ``last`` without those in ``gives_up``."""
        owned = [pb.GrantedPartitions(stream=part.stream, uid=part.uid) for part in last.assigned]
        for mine, part in zip(owned, last.assigned, strict=True):
            for number, generation in zip(part.partitions, part.generations, strict=True):
                if number not in gives_up:
                    mine.partitions.append(number)
                    mine.generations.append(generation)
        return self.say(seconds, beat=pb.BeatGroup(member=member, generation=last.generation, owned=owned))

    def commit(self, member: str, partition: int, position: int, generation: int, uid: str = UID) -> pb.GroupAnswer:
        at = pb.GroupPosition(stream="s", uid=uid, partition=partition, position=position, generation=generation)
        return self.say(commit=pb.CommitPositions(member=member, positions=[at]))

    def query(self, group: str = "", **more: object) -> pb.GroupQueryAnswer:
        return decode_query_answer(self.test.query(pb.GroupQuery(group=group, **more).SerializeToString()))  # type: ignore[arg-type]


def owned(answer: pb.GroupAnswer, name: str = "s") -> list[int]:
    return [number for part in answer.assigned if part.stream == name for number in part.partitions]


def generation_of(answer: pb.GroupAnswer, partition: int) -> int:
    part = answer.assigned[0]
    return part.generations[list(part.partitions).index(partition)]


def test_group_coordinator_assigns_a_partition_to_a_new_member_only_after_its_release() -> None:
    lab = Lab()
    a = lab.join("a")
    assert (owned(a), a.settled, a.sessionMs, a.heartbeatMs) == ([0, 1, 2, 3], True, 10_000, commands.QUICK_HEARTBEAT_MS)
    b = lab.join("b")
    assert (owned(b), b.settled, b.heartbeatMs) == ([], False, commands.WAITING_HEARTBEAT_MS)
    a2 = lab.beat("a", a)
    assert owned(a2) == [0, 1]
    assert generation_of(a2, 0) == generation_of(a, 0)
    assert owned(lab.beat("b", b)) == [], "a has not said that it gave them up [G1]"
    assert lab.commit("a", 2, 70, generation_of(a, 2)).code == pb.GROUP_OK, "it may still commit what it finishes"
    lab.beat("a", a2)
    b2 = lab.beat("b", b)
    assert (owned(b2), b2.settled) == ([2, 3], True)
    assert list(b2.assigned[0].positions) == [70, -1]
    late = lab.commit("a", 2, 80, generation_of(a, 2))
    assert (late.code, [at.partition for at in late.refused]) == (pb.GROUP_STALE, [2]), "[G2]"
    lab.test.verify(hash_seeds=1)


def test_group_coordinator_fences_a_member_after_the_session_timeout() -> None:
    lab = Lab()
    a, b = lab.join("a"), lab.join("b")
    for _ in range(11):
        b = lab.beat("b", b, seconds=1)
        assert owned(b) == []
    b = lab.beat("b", b, seconds=1.5)
    assert owned(b) == [0, 1, 2, 3]
    gone = lab.beat("a", a)
    assert gone.code == pb.GROUP_UNKNOWN_MEMBER
    assert lab.commit("a", 0, 5, generation_of(a, 0)).code == pb.GROUP_UNKNOWN_MEMBER, "[G2]"


def test_group_coordinator_ends_silent_member_sessions_with_its_own_timer_records() -> None:
    lab = Lab()
    lab.join("a")
    for _ in range(40):
        lab.test.advance(1).tick()
        for effect in lab.test.effects:
            lab.test.result(effect)
    assert not lab.query().groups, "nobody was heard, and nothing is left to keep"
    lab.test.advance(60).tick()
    assert not lab.test.effects
    lab.test.verify(hash_seeds=0)


def test_group_coordinator_static_member_that_rejoins_keeps_partitions_and_fences_its_old_process() -> None:
    lab = Lab()
    a, b = lab.join("a", instance="i1"), lab.join("b", instance="i2")
    a = lab.beat("a", lab.beat("a", a))
    b = lab.beat("b", b)
    again = lab.join("a2", instance="i1")
    assert owned(again) == owned(a) == [0, 1]
    assert generation_of(again, 0) > generation_of(a, 0)
    assert owned(lab.beat("b", b)) == owned(b)
    beat = pb.BeatGroup(member="a", instance="i1", generation=a.generation)
    assert lab.say(beat=beat).code == pb.GROUP_FENCED_INSTANCE
    assert lab.commit("a", 0, 5, generation_of(a, 0)).code == pb.GROUP_UNKNOWN_MEMBER


def test_group_coordinator_committed_offset_decreases_only_by_a_reset() -> None:
    lab = Lab()
    assert lab.commit("", 0, 50, 0).code == pb.GROUP_OK, "a named cursor"
    behind = lab.commit("", 0, 40, 0)
    assert (behind.code, [at.position for at in behind.positions]) == (pb.GROUP_OK, [50]), "[G3]"
    back = pb.GroupPosition(stream="s", uid=UID, partition=0, position=10)
    assert lab.say(reset=pb.ResetPositions(positions=[back])).code == pb.GROUP_OK
    assert [at.position for at in lab.query("g").positions] == [10]
    lab.join("a")
    assert lab.say(reset=pb.ResetPositions(positions=[back])).code == pb.GROUP_NOT_EMPTY
    assert lab.commit("", 0, 60, 0).code == pb.GROUP_NOT_EMPTY, "members commit, or nobody"
    assert lab.say(delete=pb.DeleteGroup()).code == pb.GROUP_NOT_EMPTY
    lab.say(leave=pb.LeaveGroup(member="a"))
    back.position = -1
    assert lab.say(reset=pb.ResetPositions(positions=[back])).code == pb.GROUP_OK
    assert lab.query("g").code == pb.GROUP_NOT_FOUND, "nothing was left of it"
    lab.commit("", 1, 5, 0)
    assert lab.say(delete=pb.DeleteGroup()).code == pb.GROUP_OK
    assert lab.say(delete=pb.DeleteGroup()).code == pb.GROUP_NOT_FOUND


def test_group_coordinator_cursor_opened_twice_rejects_commits_of_the_first_opener() -> None:
    lab = Lab()
    first = lab.say(open=pb.OpenCursor())
    second = lab.say(open=pb.OpenCursor())
    assert second.generation > first.generation > 0
    assert lab.query("g").summary.cursor
    assert lab.commit("", 0, 5, first.generation).code == pb.GROUP_STALE, "[G2]"
    assert lab.commit("", 0, 5, 0).code == pb.GROUP_STALE, "nor does one who holds nothing"
    assert lab.commit("", 0, 5, second.generation).code == pb.GROUP_OK
    assert [at.position for at in lab.commit("", 0, 4, second.generation).positions] == [5], "[G3]"
    assert [at.position for at in lab.say(open=pb.OpenCursor()).positions] == [5]
    assert lab.say(join=pb.JoinGroup(member="a", streams=[stream(1)])).code == pb.GROUP_NOT_EMPTY
    newest = lab.say(open=pb.OpenCursor()).generation
    lab.say(reset=pb.ResetPositions(positions=[pb.GroupPosition(stream="s", uid=UID, position=1)]))
    assert lab.commit("", 0, 9, newest).code == pb.GROUP_STALE, "it was set since"
    newest = lab.say(open=pb.OpenCursor()).generation
    assert lab.say(delete=pb.DeleteGroup()).code == pb.GROUP_OK
    assert lab.commit("", 0, 9, newest).code == pb.GROUP_STALE
    assert lab.query("g").code == pb.GROUP_NOT_FOUND, "a commit that is refused makes none"
    assert lab.say(open=pb.OpenCursor()).generation > newest
    lab.say(delete=pb.DeleteGroup())
    lab.join("a")
    assert lab.say(open=pb.OpenCursor()).code == pb.GROUP_NOT_EMPTY, "a group is no cursor"


def test_group_coordinator_opens_a_cursor_with_positions_larger_than_a_reply() -> None:
    lab, name = Lab(), "s" * 64
    assert lab.say(open=pb.OpenCursor()).code == pb.GROUP_OK
    for first in range(0, commands.MAX_PARTITIONS, commands.MAX_POSITIONS):
        partitions = range(first, first + commands.MAX_POSITIONS)
        positions = [pb.GroupPosition(stream=name, uid=UID, partition=partition, position=9) for partition in partitions]
        assert lab.say(reset=pb.ResetPositions(positions=positions)).code == pb.GROUP_OK
    answer = lab.say(open=pb.OpenCursor())
    assert (answer.code, answer.generation, len(answer.positions)) == (pb.GROUP_OK, 6, 0)
    assert len(lab.query("g").positions) == commands.MAX_PARTITIONS


def test_group_coordinator_answer_larger_than_a_reply_is_an_error_that_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("liftpy.core.groups.machine.MAX_OUTPUT_BYTES", 1000)
    lab = Lab()
    joined = lab.join("a")
    stale = [pb.GroupPosition(stream="s" * 64, uid="u", partition=number, position=1) for number in range(100)]
    commit, beat = pb.CommitPositions(member="a", positions=stale), pb.BeatGroup(member="a", generation=joined.generation)
    answer = lab.say(commit=commit, beat=beat)
    assert (answer.code, len(answer.refused)) == (pb.GROUP_FULL, 0)
    assert "1000 bytes" in answer.detail
    assert lab.beat("a", joined).code == pb.GROUP_OK


def test_group_coordinator_recreated_stream_has_no_committed_offsets() -> None:
    lab = Lab()
    a = lab.join("a")
    lab.commit("a", 0, 50, generation_of(a, 0))
    again = lab.join("b", [stream(2, uid=LATER)])
    assert again.code == pb.GROUP_OK
    a2 = lab.beat("a", a)
    assert [(part.uid, list(part.partitions), list(part.positions)) for part in a2.assigned] == [(LATER, [0], [ADDED_LATER])]
    assert lab.commit("a", 0, 60, generation_of(a, 0)).code == pb.GROUP_STALE
    assert owned(lab.join("c", [stream(9)])) == [], "an older one counts no more, nor does its size"
    cursor = Lab()
    cursor.commit("", 0, 7, 0, uid=LATER)
    assert cursor.commit("", 0, 9, 0).code == pb.GROUP_STALE


def test_group_coordinator_marks_partitions_that_were_added_before_a_member_joined() -> None:
    """Also after a snapshot."""
    lab = Lab()
    a = lab.join("a", [stream(2)])
    assert list(a.assigned[0].positions) == [-1, -1]
    lab.commit("a", 0, 7, generation_of(a, 0))
    lab.say(leave=pb.LeaveGroup(member="a"))
    lab.join("b", [stream(3)])
    lab.say(leave=pb.LeaveGroup(member="b"))
    assert list(lab.join("c", [stream(3)]).assigned[0].positions) == [7, -1, ADDED_LATER]
    lab.test.verify(hash_seeds=0)
    restored = Lab()
    restored.test.service.on_start(lab.test.snapshot())
    assert restored.test.snapshot() == lab.test.snapshot()


def test_group_coordinator_request_above_a_limit_returns_an_error_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MAX_GROUPS", 2), ("MAX_MEMBERS", 2), ("MAX_PARTITIONS", 6), ("MAX_QUEUES", 1)):
        monkeypatch.setattr(commands, name, value)
    lab = Lab()
    assert lab.join("a").code == lab.join("b").code == pb.GROUP_OK
    full = lab.join("c")
    assert (full.code, "2 members" in full.detail) == (pb.GROUP_FULL, True)
    a = lab.join("a", [stream(3, "t")])
    assert (a.code, "6 partitions" in a.detail) == (pb.GROUP_FULL, True)
    beat = lab.say(beat=pb.BeatGroup(member="a", tellsStreams=True, streams=[stream(3, "t")]))
    assert (beat.code, "stays as it was" in beat.detail) == (pb.GROUP_OK, True)
    monkeypatch.setattr(commands, "MAX_PARTITIONS", 9)
    monkeypatch.setattr(commands, "MAX_SUBSCRIPTIONS", 2)
    beat = lab.say(beat=pb.BeatGroup(member="a", tellsStreams=True, streams=[stream(), stream(1, "t")]))
    assert (beat.code, "at most 2 streams" in beat.detail) == (pb.GROUP_OK, True)
    take = pb.TakeRecords(member="w", stream="s", uid=UID, maxRecords=1, logEnd=9)
    assert lab.say(take=take).code == pb.GROUP_OK
    take.partition = 1
    assert lab.say(take=take).code == pb.GROUP_FULL
    assert lab.say(group="g2", take=take).code == pb.GROUP_OK
    assert lab.say(group="g3", take=take).code == pb.GROUP_FULL
    monkeypatch.setattr(commands, "MAX_STATE_BYTES", 100)
    assert lab.say(group="g2", join=pb.JoinGroup(member="a")).code == pb.GROUP_FULL
    assert (
        lab.say(group="g2", commit=pb.CommitPositions(positions=[pb.GroupPosition(stream="s", uid=UID)])).code == pb.GROUP_FULL
    )


def test_group_coordinator_malformed_command_gets_an_error_and_changes_nothing() -> None:
    lab = Lab()
    before = lab.test.snapshot()
    lab.test.send(b"\xff\xff")
    assert decode_answer(lab.test.replies[-1].value).code == pb.GROUP_MALFORMED
    lab.test.send(b"")
    assert len(lab.test.replies) == 1
    after = pb.CoordinatorState.FromString(lab.test.snapshot())
    assert list(after.groups) == list(pb.CoordinatorState.FromString(before).groups) == []
    assert decode_query_answer(lab.test.query(b"\xff")).code == pb.GROUP_MALFORMED


def test_group_coordinator_query_returns_members_committed_offsets_and_queues() -> None:
    lab = Lab()
    a = lab.join("a", instance="i", client="host 1")
    lab.commit("a", 3, 9, generation_of(a, 3))
    take = pb.TakeRecords(member="w", stream="q", uid=UID, maxRecords=10, logEnd=100)
    lab.say(group="work", take=take)
    assert [(g.group, g.members, g.positions, g.queues) for g in lab.query().groups] == [("g", 1, 1, 0), ("work", 0, 0, 1)]
    assert [g.group for g in lab.query(limit=1).groups] == ["g"]
    assert lab.query(limit=1).more
    assert [g.group for g in lab.query(after="g").groups] == ["work"]
    told = lab.query("g")
    assert [(m.member, m.instance, m.client, list(m.streams)) for m in told.members] == [("a", "i", "host 1", ["s"])]
    assert [(part.stream, list(part.partitions)) for part in told.members[0].owned] == [("s", [0, 1, 2, 3])]
    assert [(at.stream, at.partition, at.position) for at in told.positions] == [("s", 3, 9)]
    assert [(s.name, s.partitions) for s in told.streams] == [("s", 4)]
    queue = lab.query("work").queues[0]
    assert (queue.takenBelow, queue.out, queue.acknowledgedBelow) == (10, 10, 0)
    lab.test.verify(hash_seeds=0)


def description(group: pb.GroupState) -> bytes:
    machine = GroupMachine()
    machine.restore(pb.CoordinatorState(version=1, groups=[group]).SerializeToString())
    return answer_query(machine, pb.GroupQuery(group=group.group).SerializeToString())


def test_group_coordinator_description_of_a_queue_with_many_workers_and_partitions_fits_into_a_message() -> None:
    group = pb.GroupState(group="g")
    for partition in range(400):
        queue = group.queues.add(stream="s", uid=UID, partition=partition, leases=100)
        for number in range(100):
            queue.pieces.add(start=number, end=number + 1, kind=PieceKind.OUT, lease=number, dueNs=1, member=f"{number:064d}")
    data = description(group)
    assert len(data) < MAX_PAYLOAD_BYTES - 64 * 1024
    assert [(queue.out, len(queue.holders) > 0) for queue in decode_query_answer(data).queues] == [(100, True)] * 400


def test_group_coordinator_description_of_a_group_with_many_members_and_streams_fits_into_a_message() -> None:
    names = [f"{number:064d}" for number in range(16)]
    group = pb.GroupState(group="g", streams=[stream(250, name) for name in names])
    for number in range(1000):
        group.members.add(member=f"{number:032d}", client="a-host.example.com", streams=names)
    for name in names:
        for partition in range(250):
            group.partitions.add(stream=name, partition=partition, owner=partition + 1, hasPosition=True, position=1 << 40)
    data = description(group)
    assert len(data) < MAX_PAYLOAD_BYTES - 64 * 1024
    members = decode_query_answer(data).members
    assert (len(members), sum(len(part.partitions) for member in members for part in member.owned)) == (1000, 4000)


def test_group_coordinator_group_that_was_deleted_and_recreated_gets_a_higher_generation() -> None:
    lab = Lab()
    before = lab.join("a")
    lab.say(leave=pb.LeaveGroup(member="a"))
    assert lab.query("g").code == pb.GROUP_NOT_FOUND
    lab.test.restart()
    assert generation_of(lab.join("b"), 0) > generation_of(before, 0)


def test_group_coordinator_ack_of_a_wide_range_takes_bounded_cpu_time() -> None:
    """Send 64 acks of all offsets to a queue of 10,000 ranges."""
    machine, stamp_ns = GroupMachine(), 10**18

    def cost_s(command: pb.GroupCommand) -> float:
        nonlocal stamp_ns
        data, stamp_ns = encode_command(command), stamp_ns + 10**6
        began = time.process_time()
        machine.apply(data, stamp_ns, 1)
        return time.process_time() - began

    place = {"member": "m", "stream": "s", "uid": "u", "partition": 0}
    taken = pb.TakeRecords(**place, maxRecords=10_000, logEnd=1 << 40)
    every_second = [pb.RecordRange(start=at, end=at + 1, lease=1) for at in range(1, 9_999, 2)]
    for command in (taken, settled(pb.SETTLE_ACK, every_second)):
        cost_s(pb.GroupCommand(group="q", **{"take" if command is taken else "settle": command}))  # type: ignore[arg-type]
    for kind, lease in ((pb.SETTLE_EXTEND, 999), (pb.SETTLE_EXTEND, 1), (pb.SETTLE_ACK, 999), (pb.SETTLE_NACK, 1)):
        wide = settled(kind, [pb.RecordRange(start=0, end=1 << 40, lease=lease)], 64)
        assert cost_s(pb.GroupCommand(group="q", settle=wide)) < 0.8, (kind, lease)


def test_group_coordinator_change_of_a_member_takes_cpu_time_bounded_by_its_subscriptions() -> None:
    """A command of 50 bytes in a group of 250 members with 64 of 4,000 streams each: reading all streams' members took 1 s and more."""
    machine, stamp_ns = GroupMachine(), 10**18
    members = commands.MAX_SUBSCRIPTIONS // commands.MAX_STREAMS
    group = pb.GroupState(group="g", generation=1, joins=members)
    group.streams.extend(stream(1, f"s{number:04}") for number in range(commands.MAX_PARTITIONS))
    for number in range(members):
        names = sorted(f"s{(number * 64 + place) % commands.MAX_PARTITIONS:04}" for place in range(commands.MAX_STREAMS))
        group.members.add(member=f"m{number}", sessionNs=10**13, heardNs=stamp_ns, joined=number + 1, streams=names, session=1)
    machine.restore(pb.CoordinatorState(version=1, clockNs=stamp_ns, stampNs=stamp_ns, groups=[group]).SerializeToString())
    full = pb.JoinGroup(member="new", streams=[stream(1, "s0000")])
    answer = decode_answer(machine.apply(encode_command(pb.GroupCommand(group="g", join=full)), stamp_ns, 1))
    assert (answer.code, "use several groups" in answer.detail) == (pb.GROUP_FULL, True)
    began = time.process_time()
    for count in (2, 1):
        beat = pb.BeatGroup(member="m0", tellsStreams=True, streams=[stream(1, f"s{at:04}") for at in range(count)])
        stamp_ns += 10**6
        answer = decode_answer(machine.apply(encode_command(pb.GroupCommand(group="g", beat=beat)), stamp_ns, 1))
        assert answer.code == pb.GROUP_OK
    assert (took := time.process_time() - began) < 0.6, took


def test_group_coordinator_command_cost_does_not_grow_with_the_number_of_groups() -> None:
    """It ends the expired sessions of all groups now and then only."""
    at = pb.GroupPosition(stream="s", uid=UID, position=2)
    data = encode_command(pb.GroupCommand(group="g0", commit=pb.CommitPositions(positions=[at])))
    stored = [pb.PartitionState(stream="s", hasPosition=True, position=1)]
    steps = {}
    for count in (1, 2000):
        machine, least = GroupMachine(), 1.0
        groups = [pb.GroupState(group=f"g{number}", streams=[stream()], partitions=stored) for number in range(count)]
        machine.restore(pb.CoordinatorState(version=1, groups=groups).SerializeToString())
        for second in range(40):
            began = time.perf_counter()
            machine.apply(data, second * 10**9, 1)
            least = min(least, time.perf_counter() - began) if second > 20 else least
        steps[count] = least
    assert steps[2000] < 20 * steps[1]


def settled(kind: pb.SettleKind, ranges: list[pb.RecordRange], times: int = 1) -> pb.SettleRecords:
    parts = [pb.Settlement(kind=kind, stream="s", uid="u", ranges=ranges) for _ in range(times)]
    return pb.SettleRecords(member="m", settlements=parts)


@pytest.mark.parametrize("known", [True, False])
def test_group_coordinator_answer_with_a_full_list_of_lost_ranges_covers_every_lost_record(
    monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """The first 3 settlements have 8 lost ranges each, and the answer has room for 7."""
    monkeypatch.setattr(commands, "MAX_LOST_RANGES", 7)
    lab = Lab()
    for partition in range(4):
        uid = UID if known else LATER
        lab.say(take=pb.TakeRecords(member="m", stream="s", uid=uid, partition=partition, maxRecords=20, logEnd=20))
    lost = [pb.RecordRange(start=at, end=at + 1, lease=99) for at in range(0, 16, 2)]
    parts = [
        pb.Settlement(
            kind=pb.SETTLE_EXTEND, stream="s", uid=UID, partition=partition, ranges=lost if partition < 3 else lost[:1]
        )
        for partition in range(4)
    ]
    answer = lab.say(settle=pb.SettleRecords(member="m", settlements=parts))
    assert (answer.code, len(answer.lost)) == (pb.GROUP_STALE, 7)
    covered = {(part.partition, at) for part in answer.lost for at in range(part.start, part.end)}
    assert covered >= {(part.partition, piece.start) for part in parts for piece in part.ranges}
    assert {at for partition, at in covered if partition == 3} == {0}, "a settlement that fits is exact"


@pytest.mark.parametrize("coordinator", [GroupCoordinator, EarlierGroupCoordinator])
def test_group_coordinator_settlement_above_the_limit_of_a_command_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, coordinator: type[GroupCoordinator]
) -> None:
    """Each of the two queues has 9 ranges. An earlier version of the coordinator has no limit."""
    monkeypatch.setattr(commands, "MAX_SETTLED_RANGES", 10)
    lab, is_bounded = Lab(coordinator), coordinator is GroupCoordinator

    def settle(partition: int, *ranges: tuple[int, int]) -> pb.Settlement:
        own = [pb.RecordRange(start=start, end=end, lease=1) for start, end in ranges]
        return pb.Settlement(kind=pb.SETTLE_ACK, stream="s", uid=UID, partition=partition, ranges=own)

    for partition in (0, 1):
        lab.say(take=pb.TakeRecords(member="m", stream="s", uid=UID, partition=partition, maxRecords=20, logEnd=20))
        some = settle(partition, *((at, at + 1) for at in (1, 3, 5, 7)))
        assert not lab.say(settle=pb.SettleRecords(member="m", settlements=[some])).lost
    answer = lab.say(settle=pb.SettleRecords(member="m", settlements=[settle(0, (0, 20)), settle(1, (0, 20))]))
    assert [(one.partition, one.start, one.end) for one in answer.lost] == ([(1, 0, 20)] if is_bounded else [])
    assert ("settle fewer records at once" in answer.detail) == is_bounded
    lab.say(40.0, take=pb.TakeRecords(member="n", stream="s", uid=UID, partition=0, maxRecords=20, logEnd=20))
    (first, second) = lab.query("g").queues
    assert (first.acknowledgedBelow, second.acknowledgedBelow, second.returned) == ((20, 0, 16) if is_bounded else (20, 20, 0))


def test_group_coordinator_only_settlement_of_a_command_above_the_limit_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MAX_SETTLED_RANGES", 5)
    lab = Lab()
    lab.say(take=pb.TakeRecords(member="m", stream="s", uid=UID, maxRecords=20, logEnd=20))
    for ranges in ([(at, at + 1) for at in (1, 3, 5, 7)], [(0, 20)]):  # the first ack leaves 9 ranges
        own = [pb.RecordRange(start=start, end=end, lease=1) for start, end in ranges]
        ack = pb.Settlement(kind=pb.SETTLE_ACK, stream="s", uid=UID, ranges=own)
        lab.say(settle=pb.SettleRecords(member="m", settlements=[ack]))
    (queue,) = lab.query("g").queues
    assert queue.acknowledgedBelow == 20


def test_group_coordinator_snapshot_encoded_later_has_the_state_at_its_request() -> None:
    """Another thread encodes the snapshot while commands are applied."""
    lab = Lab()
    lab.say(take=pb.TakeRecords(member="m", stream="s", uid=UID, maxRecords=5, logEnd=9))
    lab.join("a")
    before, later = lab.test.snapshot(), lab.test.service.take_snapshot()
    assert callable(later)
    lab.say(take=pb.TakeRecords(member="m", stream="s", uid=UID, maxRecords=5, logEnd=9))
    lab.join("b")
    assert later() == before != lab.test.snapshot()


def test_group_coordinator_starts_queues_of_added_partitions_at_their_first_record() -> None:
    """Also after a snapshot; a worker of an earlier version does not say how many partitions there were."""
    lab = Lab()

    def begins(lab: Lab, partition: int, **more: Any) -> list[int]:
        place = {"member": "w", "stream": "s", "uid": UID, "partition": partition}
        take = pb.TakeRecords(**place, maxRecords=9, logStart=3, begin=7, logEnd=9, **more)
        return [given.start for given in lab.say(take=take).granted]

    assert begins(lab, 0, partitions=2) == [7]
    restored = Lab()
    restored.test.service.on_start(lab.test.snapshot())
    assert restored.test.snapshot() == lab.test.snapshot()
    for one in (lab, restored):
        assert (begins(one, 1, partitions=4), begins(one, 2, partitions=4), begins(one, 3)) == ([7], [3], [7])
    lab.test.verify(hash_seeds=0)


def test_group_coordinator_starts_a_new_queue_at_the_offset_set_by_a_reset() -> None:
    lab = Lab()

    def begins(partition: int, log_start: int = 0, uid: str = UID) -> list[int]:
        take = pb.TakeRecords(
            member="w", stream="s", uid=uid, partition=partition, maxRecords=9, logStart=log_start, logEnd=90, partitions=4
        )
        return [given.start for given in lab.say(take=take).granted]

    positions = [pb.GroupPosition(stream="s", uid=UID, partition=partition, position=50) for partition in (0, 1)]
    assert lab.say(reset=pb.ResetPositions(positions=positions)).code == pb.GROUP_OK
    assert (begins(0), begins(1, log_start=60), begins(2)) == ([50], [60], [0])
    lab.test.verify(hash_seeds=0)


def take(
    lab: Lab, log_epoch: int = 0, log_end: int = 9, compared: tuple[int, int] = (0, 0), log_start: int = 0
) -> pb.GroupAnswer:
    """Send a take of up to 2 records by a member whose view of the log is from the LeaderEpoch ``log_epoch``."""
    return lab.say(
        take=pb.TakeRecords(
            member="w", stream="s", uid=UID, maxRecords=2, logStart=log_start, logEnd=log_end, logEpoch=log_epoch,
            comparedEpoch=compared[0], comparedBelow=compared[1],
        )
    )  # fmt: skip


def test_group_coordinator_with_a_view_of_another_leader_epoch_delivers_only_after_a_comparison() -> None:
    """An unclean election may have lost records that the queue has delivered."""
    lab = Lab()
    assert [given.start for given in take(lab, 5).granted] == [0]
    restored = Lab()
    restored.test.service.on_start(lab.test.snapshot())
    for one in (lab, restored):
        for log_epoch, compared in ((7, (0, 0)), (7, (4, 2)), (7, (5, 1)), (3, (0, 0))):
            answer = take(one, log_epoch, compared=compared)
            assert (answer.code, answer.takenBelow, answer.takenEpoch) == (pb.GROUP_COMPARE_LOG, 2, 5)
            assert not answer.granted
        assert [given.start for given in take(one, 7, compared=(5, 2)).granted] == [2]
        assert [given.start for given in take(one, 7).granted] == [4]
        assert take(one, 5).takenEpoch == 7, "its view is older than that of the last delivery"
    lab.test.verify(hash_seeds=0)


def test_group_coordinator_after_a_delivery_to_an_older_member_requires_no_comparison() -> None:
    """An older member does not say from which LeaderEpoch its view is, so the new records may have any."""
    lab = Lab()
    take(lab, 5)
    assert [given.start for given in take(lab).granted] == [2]
    assert [given.start for given in take(lab, 7).granted] == [4]
    assert take(lab, log_end=6).code == pb.GROUP_OK, "no new record was delivered, so the known LeaderEpoch counts"
    assert take(lab, 8).code == pb.GROUP_COMPARE_LOG


def test_group_coordinator_stores_no_leader_epoch_of_a_view_that_ends_below_delivered_records() -> None:
    """A member that was slow during a clean failover does not know the LeaderEpoch of records after its view."""
    lab = Lab()
    take(lab, log_end=9)
    assert take(lab, 6, log_end=1).code == pb.GROUP_OK
    assert [given.start for given in take(lab, 7).granted] == [2], "the delivered records may be of LeaderEpoch 7"
    answer = take(lab, 6)
    assert (answer.code, answer.takenEpoch) == (pb.GROUP_COMPARE_LOG, 7)


def test_group_coordinator_of_a_queue_that_begins_above_the_log_end_requires_no_comparison() -> None:
    lab = Lab()
    positions = [pb.GroupPosition(stream="s", uid=UID, position=20)]
    lab.say(reset=pb.ResetPositions(positions=positions))
    for log_epoch in (6, 7):
        assert take(lab, log_epoch).code == pb.GROUP_OK
    assert [given.start for given in take(lab, 8, log_end=30).granted] == [20]


def test_group_coordinator_requires_no_comparison_after_all_delivered_records_were_deleted() -> None:
    lab = Lab()
    take(lab, 5)
    assert [given.start for given in take(lab, 6, log_start=4).granted] == [4]
    assert take(lab, 5).takenEpoch == 6
    assert take(lab, log_start=7).code == pb.GROUP_OK
    assert take(lab, 8, log_start=7, log_end=8).code == pb.GROUP_OK


def test_group_coordinator_of_the_first_version_has_equal_states_with_and_without_leader_epochs() -> None:
    """Nodes of an earlier release do not know the fields, and all nodes must have one state."""
    newer, older = Lab(EarlierGroupCoordinator), Lab(EarlierGroupCoordinator)
    for log_epoch in (5, 7, 0, (1 << 64) - 1):
        assert take(newer, log_epoch, compared=(log_epoch, -1)) == take(older)
    assert newer.test.snapshot() == older.test.snapshot()


def return_records(lab: Lab, start: int, delay_s: float, given: pb.GroupAnswer) -> None:
    (lease,) = [part.lease for part in given.granted if part.start <= start < part.end]
    ranges = [pb.RecordRange(start=start, end=start + 1, lease=lease)]
    part = pb.Settlement(kind=pb.SETTLE_NACK, stream="s", uid=UID, ranges=ranges, delayMs=round(delay_s * 1000))
    assert lab.say(settle=pb.SettleRecords(member="w", settlements=[part])).code == pb.GROUP_OK


def pass_idle_seconds(lab: Lab, seconds: int) -> int:
    """Let time pass without commands. Return the number of records that the coordinator has appended to its log."""
    count = 0
    for _ in range(seconds):
        lab.test.advance(1).tick()
        for effect in lab.test.effects:
            lab.test.result(effect)
            count += 1
    return count


@pytest.mark.parametrize("snapshot", [False, True])
def test_group_coordinator_counts_the_delay_of_a_returned_record_while_no_worker_asks(snapshot: bool) -> None:
    lab = Lab()
    given = take(lab, 5)
    assert [(part.start, part.end) for part in given.granted] == [(0, 2)]
    return_records(lab, 0, 30, given)
    return_records(lab, 1, 5, given)
    if snapshot:
        lab.test.service.on_start(lab.test.snapshot())
    pass_idle_seconds(lab, 40)
    assert [(part.start, part.deliveries) for part in take(lab, 5).granted] == [(0, 2), (1, 2)]
    lab.test.verify(hash_seeds=0)


def test_group_coordinator_appends_nothing_after_the_last_delay_of_a_queue() -> None:
    lab = Lab()
    given = take(lab, 5)
    return_records(lab, 0, 5, given)
    return_records(lab, 1, 12, given)
    assert 11 <= pass_idle_seconds(lab, 20) <= 13
    assert pass_idle_seconds(lab, 60) == 0
    lab.test.verify(hash_seeds=0)


def test_group_coordinator_of_the_first_version_does_not_count_delays_without_commands() -> None:
    """Nodes of an earlier release do not count them, and all nodes must have one state."""
    lab = Lab(EarlierGroupCoordinator)
    given = take(lab, 5)
    return_records(lab, 0, 5, given)
    return_records(lab, 1, 5, given)
    assert pass_idle_seconds(lab, 20) == 0
    lab.test.verify(hash_seeds=0)


def settle(lab: Lab, given: pb.GroupAnswer) -> None:
    ranges = [pb.RecordRange(start=part.start, end=part.end, lease=part.lease) for part in given.granted]
    part = pb.Settlement(kind=pb.SETTLE_ACK, stream="s", uid=UID, ranges=ranges)
    assert lab.say(settle=pb.SettleRecords(member="w", settlements=[part])).code == pb.GROUP_OK


def reset(lab: Lab, position: int) -> pb.GroupAnswer:
    return lab.say(reset=pb.ResetPositions(positions=[pb.GroupPosition(stream="s", uid=UID, position=position)]))


@pytest.mark.parametrize("position", [0, 1, 6, -1])
def test_group_coordinator_reset_sets_the_position_of_a_queue_without_leased_records(position: int) -> None:
    lab = Lab()
    settle(lab, take(lab, 5))
    given = take(lab, 5)
    refused = reset(lab, position)
    assert (refused.code, "stop them" in refused.detail) == (pb.GROUP_NOT_EMPTY, True)
    settle(lab, given)
    assert reset(lab, position).code == pb.GROUP_OK
    assert [part.start for part in take(lab, 5).granted] == [max(position, 0)]
    lab.test.verify(hash_seeds=0)


def test_group_coordinator_ignores_settlements_of_leases_before_a_reset() -> None:
    lab = Lab()
    given = take(lab, 5)
    settle(lab, given)
    assert reset(lab, 0).code == pb.GROUP_OK
    again = take(lab, 5)
    ranges = [pb.RecordRange(start=part.start, end=part.end, lease=part.lease) for part in given.granted]
    late = pb.Settlement(kind=pb.SETTLE_ACK, stream="s", uid=UID, ranges=ranges)
    answer = lab.say(settle=pb.SettleRecords(member="w", settlements=[late]))
    assert [(part.start, part.end) for part in answer.lost] == [(0, 2)]
    settle(lab, again)


def test_group_coordinator_of_the_first_version_resets_only_committed_positions() -> None:
    """Nodes of an earlier release do so, and all nodes must have one state."""
    lab = Lab(EarlierGroupCoordinator)
    settle(lab, take(lab))
    given = take(lab)
    assert reset(lab, 0).code == pb.GROUP_OK
    settle(lab, given)
    assert [part.start for part in take(lab).granted] == [4]


def test_group_coordinator_description_and_lag_of_a_queue_have_only_its_own_position() -> None:
    """The position at which the queue began does not move with the queue."""
    lab = Lab()
    assert reset(lab, 1).code == pb.GROUP_OK
    assert [at.position for at in lab.query("g").positions] == [1]
    settle(lab, take(lab, 5))
    described = lab.query("g")
    assert ([at.position for at in described.positions], [queue.acknowledgedBelow for queue in described.queues]) == ([], [3])
    service = lab.test.service
    assert isinstance(service, GroupCoordinator)
    assert [position for _, position in read_positions(service.groups["g"])] == [3]


def test_group_coordinator_drops_all_queues_of_a_stream_that_was_created_again() -> None:
    """Also those of partitions that the new stream does not have, and its partitions begin at their first record."""
    lab = Lab()

    def begins(partition: int, uid: str, partitions: int) -> list[int]:
        place = {"member": "w", "stream": "s", "uid": uid, "partition": partition, "partitions": partitions}
        return [given.start for given in lab.say(take=pb.TakeRecords(**place, maxRecords=9, begin=7, logEnd=9)).granted]

    assert [begins(partition, UID, 3) for partition in range(3)] == [[7], [7], [7]]
    assert begins(0, LATER, 2) == [0]
    assert [(queue.partition, queue.uid) for queue in lab.query("g").queues] == [(0, LATER)]
    assert begins(1, LATER, 2) == [0]
    lab.test.verify(hash_seeds=0)
