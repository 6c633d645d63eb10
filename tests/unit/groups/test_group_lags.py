"""Test the lag of consumer groups in records and seconds, and its limits."""

from __future__ import annotations

from liftpy.core.base.ids import PartitionKey
from liftpy.core.groups.commands import encode_command
from liftpy.core.groups.lag import (
    MOST_ENDS,
    MOST_PARTITIONS,
    MOST_STEPS,
    OTHERS,
    STEP_S,
    GroupLabels,
    GroupLag,
    LagHistory,
    LogEnds,
    PartitionEnds,
    read_positions,
)
from liftpy.core.groups.machine import GroupMachine
from liftpy.core.wire._pb import group_pb2 as pb

S = 10**9
UID = "000001-1"


def a_key(partition: int = 0) -> PartitionKey:
    return PartitionKey("s", UID, partition)


def ends(*told: tuple[int, int]) -> PartitionEnds:
    """(end, seconds), ..."""
    made = PartitionEnds()
    for end, seconds in told:
        made.set_bounds(end, seconds * S)
    return made


def test_group_lag_seconds_are_the_age_of_the_first_unread_record() -> None:
    known = ends((10, 0), (25, 60), (25, 70))
    assert known.behind(12, 90 * S) == (13, 30 * S)
    assert known.behind(10, 90 * S) == (15, 30 * S)
    assert known.behind(9, 90 * S) == (16, 90 * S)
    assert known.behind(0, 90 * S) == (25, 90 * S), "it has been there at least since somebody looked first"
    assert known.behind(25, 90 * S) == known.behind(30, 90 * S) == (0, 0)


def test_group_lag_seconds_of_records_stored_before_the_first_report_use_their_ages() -> None:
    known = ends((100, 60), (120, 70))
    assert known.offset_without_age(40) == 40
    assert known.offset_without_age(100) is None, "its age is known from the reports"
    known.set_age(40, -300 * S)
    assert known.behind(40, 80 * S) == (80, 380 * S)
    assert known.behind(50, 80 * S) == (70, 380 * S), "at most as old as an earlier record"
    assert known.behind(100, 80 * S) == (20, 10 * S)
    assert known.offset_without_age(40) is None
    assert known.offset_without_age(50) == 50
    known.set_age(50, -200 * S)
    known.set_age(10, -900 * S)
    assert [known.behind(position, 0)[1] for position in (10, 39, 40, 49, 50, 99)] == [
        age * S for age in (900, 900, 300, 300, 200, 200)
    ]


def test_group_lag_after_a_decreased_partition_end_restarts_its_history_of_ends() -> None:
    known = ends((10, 0), (25, 60), (20, 80))
    assert known.behind(12, 90 * S) == (8, 10 * S)
    known.set_bounds(26, 100 * S)
    assert known.behind(20, 110 * S) == (6, 10 * S)


def test_group_lag_age_of_an_unchanged_position_increases_with_time() -> None:
    known, before = PartitionEnds(), 0
    for second in range(2000):
        known.set_bounds(second + 1, second * S)
        records, age_ns = known.behind(7, second * S)
        assert records == max(second - 6, 0)
        assert age_ns >= max(second - 7, 0) * S
        assert age_ns == 0 or age_ns >= before + S, "one that stands still goes on growing"
        before = age_ns
        assert len(known._ends) == len(known._since_ns) <= MOST_ENDS
    recent = known.behind(1995, 1999 * S)[1]
    assert recent == 4 * S, "what is recent stays exact"


def a_machine() -> GroupMachine:
    machine = GroupMachine()

    def say(group: str, **parts: object) -> None:
        machine.apply(encode_command(pb.GroupCommand(group=group, **parts)), 1, 1)  # type: ignore[arg-type]

    for partition, position in ((0, 5), (1, 7)):
        at = pb.GroupPosition(stream="s", uid=UID, partition=partition, position=position)
        say("readers", reset=pb.ResetPositions(positions=[at]))
    say("workers", take=pb.TakeRecords(member="m", stream="s", uid=UID, partition=2, begin=3, logEnd=9, maxRecords=2))
    say("nightly", open=pb.OpenCursor())
    say("nightly", reset=pb.ResetPositions(positions=[pb.GroupPosition(stream="s", uid=UID, partition=3, position=1)]))
    return machine


def test_group_lag_includes_committed_offsets_and_queues_but_no_cursors() -> None:
    groups = a_machine().groups
    assert {name: dict(read_positions(group)) for name, group in groups.items()} == {
        "readers": {a_key(0): 5, a_key(1): 7},
        "workers": {a_key(2): 3},
        "nightly": {},
    }


def test_group_lag_known_partition_ends_are_bounded_in_number() -> None:
    known = LogEnds()
    for number in range(MOST_PARTITIONS + 1):
        known.set_bounds(a_key(number), 5, S)
    assert len(known) == MOST_PARTITIONS
    assert known.get(a_key(MOST_PARTITIONS)) is None
    known.forget(a_key(1))
    known.keep({a_key(0), a_key(1)})
    assert (len(known), known.get(a_key(1))) == (1, None)
    known.set_bounds(a_key(MOST_PARTITIONS), 5, S)
    assert known.get(a_key(MOST_PARTITIONS)) is not None, "there is room again"


def test_group_lag_requests_the_ends_of_partitions_in_rotation() -> None:
    known, wanted = LogEnds(), [a_key(number) for number in range(5)]
    asked = [known.to_ask(wanted, 2) for _ in range(3)]
    assert asked == [wanted[:2], wanted[2:4], [wanted[4], wanted[0]]]
    known.keep(wanted[:2])
    assert known.to_ask(wanted, 3) == wanted[2:], "what nobody reads has no turn"


def test_group_lag_history_has_one_value_per_step_and_gaps_where_nothing_was_measured() -> None:
    history = LagHistory()
    for now_s, records in ((1000, 5), (1010, 7), (1045, 9), (1200, 2)):
        history.add(now_s, GroupLag(records, records / 2))
    assert history.rows() == [
        {"at": 990, "lag_records": 7, "lag_s": 3.5},
        {"at": 1020, "lag_records": 9, "lag_s": 4.5},
        {"at": 1200, "lag_records": 2, "lag_s": 1.0},
    ]
    history.add(500, GroupLag(1, 1.0))
    assert history.rows() == [{"at": 480, "lag_records": 1, "lag_s": 1.0}], "after a step of the clock"


def test_group_lag_history_is_bounded_in_length() -> None:
    history = LagHistory()
    for number in range(2 * MOST_STEPS):
        history.add(STEP_S * number, GroupLag(2**30 + number, 0.0))
    rows = history.rows()
    assert (len(rows), rows[0]["at"], rows[-1]["at"]) == (MOST_STEPS, STEP_S * MOST_STEPS, STEP_S * (2 * MOST_STEPS - 1))
    assert rows[-1]["lag_records"] == 2**30 + 2 * MOST_STEPS - 1
    history.add(10**9, GroupLag())
    assert len(history.rows()) == 1


def test_group_metric_labels_stay_assigned_until_their_group_is_deleted() -> None:
    labels = GroupLabels(2)
    lags = {name: GroupLag(number, float(number), 1) for number, name in enumerate("abcd")}
    assert labels.lags_by_label({"b": lags["b"], "c": lags["c"]}) == {"b": lags["b"], "c": lags["c"]}
    assert labels.lags_by_label(lags) == {"b": lags["b"], "c": lags["c"], OTHERS: GroupLag(3, 3.0, 2)}
    many = {**lags, "e": GroupLag(1, 50.0)}
    assert labels.lags_by_label(many)[OTHERS].seconds == 50.0, "of the one that is furthest behind"
    assert labels.lags_by_label({name: lags[name] for name in "acd"}) == {"a": lags["a"], "c": lags["c"], OTHERS: lags["d"]}
