"""Test idle partitions: one combined fetch replaces the fetches of many followers, until records arrive."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from liftpy.config import ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.replication import effects as do
from liftpy.core.replication import events as ev
from liftpy.core.replication.combined_fetches import (
    ASK_AGAIN_NS,
    MAX_PER_QUESTION,
    CombinedFetch,
    CombinedFetches,
    CombinedFetchRequest,
)
from liftpy.core.replication.events import Deadline
from liftpy.core.replication.messages import FetchRequest, LeaderNotice
from tests.each import each
from tests.unit.replication.stepping import S, Stepped, state

SOON = ReplicationConfig(idle_polls_before_quiet=2)


# ---- a follower ----------------------------------------------------------------------------------------------------------
def quiet_follower(config: ReplicationConfig = SOON, **partition: str) -> Stepped:
    """With three committed records, after its idle waits."""
    follower = Stepped("b", config).follows(state(**partition))  # type: ignore[arg-type]
    follower.answered([(0, 2, 1)], hw=2)
    follower.step(ev.LogFlushed(end_offset=3))
    follower.answered([], hw=2)
    for _ in range(config.idle_polls_before_quiet - 1):
        follower.fire(Deadline.FETCH)
        follower.answered([], hw=2)
    return follower


@pytest.mark.parametrize("isr", ["ab", "ac"])
def test_idle_follower_outside_the_isr_does_not_join_combined_fetches(isr: str) -> None:
    assert (quiet_follower(isr=isr).replica.phase == "FOLLOWER_QUIET") == ("b" in isr)


def test_idle_follower_with_uncommitted_records_does_not_join_combined_fetches() -> None:
    follower = Stepped("b", SOON).follows()
    follower.answered([(0, 2, 1)], hw=1)
    follower.step(ev.LogFlushed(end_offset=3))
    follower.answered([], hw=1)
    for _ in range(4):
        follower.fire(Deadline.FETCH)
        follower.answered([], hw=1)
        assert follower.replica.phase == "FOLLOWER_IDLE", "HW may come with the next answer"


def test_follower_leaves_combined_fetches_after_new_records_a_wake_up_or_a_lost_connection() -> None:
    def more(follower: Stepped) -> None:
        follower.answered([(3, 3, 1)], hw=2, request=follower.role._idle_request_id)
        assert follower.has(do.AppendFetched)

    def piece(follower: Stepped) -> None:
        follower.step(ev.FetchPieceArrived(request_id=follower.role._idle_request_id, leader_epoch=1))
        assert follower.has(FetchRequest)

    def wake(follower: Stepped) -> None:
        follower.step(ev.NotificationReceived())
        assert follower.has(FetchRequest)

    def notice(follower: Stepped) -> None:
        follower.step(
            LeaderNotice(leader="a", leader_epoch=1, epoch=1, epoch_start_offset=0, high_watermark=9, log_start_offset=0)
        )
        assert follower.has(FetchRequest)

    def back(follower: Stepped) -> None:
        follower.step(ev.DataPathChanged(is_up=True))
        assert follower.replica.phase == "FOLLOWER_FETCH_BACKOFF"

    for end in (more, piece, wake, notice, back):
        follower = quiet_follower()
        end(follower)
        assert follower.has(do.EndCombinedFetch), end
        assert Deadline.LEADER in follower.deadlines, end
        assert not follower.has(do.ReportLeader)


def test_follower_stays_in_combined_fetches_after_a_response_with_only_a_high_watermark() -> None:
    follower = quiet_follower()
    request = follower.role._idle_request_id
    follower.answered([], hw=2, request=request)
    assert follower.sent() == []
    follower.answered([(3, 3, 1)], hw=2, request=request - 1)
    assert follower.sent() == [do.DropFetched(token=follower.tokens, why="stale request")]
    follower.step(ev.FetchPieceArrived(request_id=request + 1, leader_epoch=1))
    assert follower.sent() == []
    assert follower.replica.phase == "FOLLOWER_QUIET"


def test_follower_leaves_combined_fetches_when_its_leader_changes_or_its_replica_stops() -> None:
    for event in (
        ev.PartitionChanged(metadata=state("c", leader_epoch=2, epoch=2), incarnations={"a": 1, "b": 1, "c": 1}),
        ev.StopRequested(),
    ):
        follower = quiet_follower()
        follower.step(event)
        assert follower.has(do.EndCombinedFetch)


def test_follower_whose_combined_fetch_is_not_confirmed_fetches_at_once() -> None:
    follower = quiet_follower()
    follower.step(ev.CombinedFetchEnded(last_answer_ns=follower.now_ns), after_s=50)
    assert follower.has(do.EndCombinedFetch)
    fetch = follower.only(FetchRequest)
    assert (fetch.offset, fetch.offset_epoch, fetch.leader_epoch) == (2, 1, 1)
    follower.answered([], hw=2, request=fetch.request_id)
    assert follower.replica.phase == "FOLLOWER_IDLE", "it takes new idle waits"
    follower.step(ev.CombinedFetchEnded(last_answer_ns=follower.now_ns))
    assert follower.sent() == [], "one that came too late"


# ---- a leader ------------------------------------------------------------------------------------------------------------
def leader_with_a_quiet_follower() -> Stepped:
    """Leader a with three committed records; b's last fetch has the token that ``asked`` names."""
    leader = Stepped("a").leads()
    leader.publish(3)
    leader.fetch("c", 2, request_id=70, awaits_more=True)
    leader.fetch("b", 2, request_id=80, awaits_more=True)
    assert leader.replica.high_watermark == 2
    return leader


def asked(**other: object) -> ev.CombinedFetchReceived:
    question = ev.CombinedFetchReceived(token=9, replica="b", incarnation=1, leader_epoch=2, request_id=80)
    return replace(question, **other)  # type: ignore[arg-type]


def confirms(leader: Stepped, question: ev.CombinedFetchReceived, after_s: float = 0.0) -> bool:
    leader.step(question, after_s)
    assert leader.sent() in ([do.ConfirmCombinedFetch(token=question.token)], [])
    return leader.has(do.ConfirmCombinedFetch)


@each(
    "other",
    [
        {"request_id": 79},
        {"request_id": 81},
        {"request_id": 0},
        {"request_id": 70},
        {"incarnation": 0},
        {"incarnation": 2},
        {"leader_epoch": 1},
        {"leader_epoch": 3},
        {"replica": "d"},
        {"replica": "a"},
    ],
)
def test_combined_fetch_whose_values_differ_from_the_waiting_fetch_is_not_confirmed(other: dict[str, object]) -> None:
    leader = leader_with_a_quiet_follower()
    progress = leader.role.handler.followers["b"]
    before = progress.caught_up_ns
    assert not confirms(leader, asked(**other), after_s=3)
    assert progress.caught_up_ns == before


def test_combined_fetch_is_not_confirmed_when_the_leader_has_new_records() -> None:
    leader = leader_with_a_quiet_follower()
    leader.publish(1)
    assert not confirms(leader, asked())
    leader = leader_with_a_quiet_follower()
    leader.replica.log.append(1, 2)  # the waiter does not know of it
    assert not confirms(leader, asked())


def test_combined_fetch_of_a_follower_whose_last_fetch_does_not_wait_is_not_confirmed() -> None:
    leader = leader_with_a_quiet_follower()
    leader.fetch("b", 2, request_id=81)
    assert not confirms(leader, asked(request_id=81))


def test_combined_fetch_of_a_fenced_incarnation_or_a_follower_outside_the_isr_is_not_confirmed() -> None:
    leader = leader_with_a_quiet_follower()
    leader.told(state(leader_epoch=2, epoch=2, isr="ac"))
    assert not confirms(leader, asked()), "it joins by a fetch"
    leader = leader_with_a_quiet_follower()
    leader.told(state(leader_epoch=2), {"a": 1, "c": 1})
    assert not confirms(leader, asked()), "fenced"
    leader = leader_with_a_quiet_follower()
    leader.told(state(leader_epoch=2), {"a": 1, "b": 2, "c": 1})
    assert not confirms(leader, asked())
    assert not confirms(leader, asked(incarnation=2)), "it has not fetched yet"


def test_fetch_of_a_follower_after_an_hour_of_combined_fetches_is_accepted() -> None:
    leader = leader_with_a_quiet_follower()
    for _ in range(1200):
        assert confirms(leader, asked(), after_s=3)
    leader.fetch("b", 2, request_id=80 + 3600 * S, awaits_more=True)
    assert leader.has(do.ParkFetch)
    assert leader.role.handler.followers["b"].last_request_id == 80 + 3600 * S


def test_leader_whose_followers_use_combined_fetches_checks_their_lag_rarely() -> None:
    leader = leader_with_a_quiet_follower()
    looks, began = 0, leader.now_ns
    while leader.now_ns - began < 60 * S:
        leader.heard()
        confirms(leader, asked(), after_s=1)
        confirms(leader, asked(replica="c", request_id=70))
        if leader.deadlines[Deadline.LAG] <= leader.now_ns:
            leader.step(ev.DeadlineReached(kind=Deadline.LAG))
            looks += 1
    assert looks <= 17
    leader.step(ev.DataPathChanged(is_up=False))
    assert leader.deadlines[Deadline.LAG] <= leader.now_ns + 1.25 * S, "it may have to give up"
    leader = leader_with_a_quiet_follower()
    leader.fire(Deadline.LAG)
    assert leader.deadlines[Deadline.LAG] > leader.now_ns + 1.25 * S
    leader.publish(1)
    assert leader.deadlines[Deadline.LAG] <= leader.now_ns + 1.25 * S, "a flush may hang"


def test_combined_fetch_is_confirmed_only_by_the_leader_replica() -> None:
    for stepped in (quiet_follower(), Stepped("b").opened()):
        stepped.step(asked(replica="c"))
        assert stepped.out == []


# ---- a node's list -------------------------------------------------------------------------------------------------------
CONFIG = ReplicationConfig()


def fetch(number: int, request_id: int | None = None) -> CombinedFetch:
    return CombinedFetch(PartitionKey("orders", "uid-1", number), 1, number if request_id is None else request_id)


class Node:
    """Its list under a hand-moved clock; ``turn`` is one interval."""

    def __init__(self, count: int = 0, leader: str = "n2") -> None:
        self.quiet = CombinedFetches(CONFIG)
        self.now_ns = 100 * S
        self.fetches = [fetch(number) for number in range(count)]
        self.ended: list[CombinedFetch] = []
        for one in self.fetches:
            assert self.quiet.add(one, leader, self.now_ns)

    def turn(self, *, intervals: float = 1.0) -> list[CombinedFetchRequest]:
        self.now_ns += round(self.quiet.interval_ns * intervals)
        questions, ended = self.quiet.start_turn(self.now_ns)
        self.ended += [one for end in ended for one in end.fetches]
        return questions

    def answered_turn(self) -> list[CombinedFetchRequest]:
        questions = self.turn()
        for question in questions:
            assert self.quiet.process_answer(question, ()) is None
        return questions


def test_combined_fetches_request_each_partition_once_per_three_rounds() -> None:
    node = Node(10)
    assert node.quiet.interval_ns == S
    for newer in range(10, 15):
        asked_for = Counter(one for _ in range(3) for question in node.answered_turn() for one in question.fetches)
        assert asked_for == Counter(node.fetches)
        node.fetches.append(fetch(newer))
        node.quiet.add(node.fetches[-1], "n2", node.now_ns)


def test_combined_fetches_request_a_partition_every_third_round_while_others_change() -> None:
    node, seen = Node(1), []
    for number in range(9):
        other = fetch(100 + number, request_id=number)
        node.quiet.add(other, "n2", node.now_ns)
        seen += [one for question in node.answered_turn() for one in question.fetches]
        node.quiet.remove(other.key)
    assert seen.count(node.fetches[0]) == 3


def test_combined_fetches_of_a_thousand_partitions_need_four_messages_a_second() -> None:
    """Those that it follows of two other nodes, and the same from their side; whatever this machine's clock and load are."""
    node = Node()
    for number in range(667):
        node.quiet.add(fetch(number), "n2" if number % 2 else "n3", node.now_ns)
    turns = 60
    asked_for = [question for _ in range(turns) for question in node.answered_turn()]
    seconds = turns * node.quiet.interval_ns / S
    questions_a_second, fetches_a_second = len(asked_for) / seconds, sum(len(q.fetches) for q in asked_for) / seconds
    assert 2 * questions_a_second == 4, "questions, and as many answers to the others'"
    assert fetches_a_second == pytest.approx(667 / 3, rel=0.01)


def test_combined_fetches_of_many_partitions_are_split_over_several_requests() -> None:
    node = Node(4 * MAX_PER_QUESTION)
    sizes = [len(question.fetches) for _ in range(3) for question in node.answered_turn()]
    assert sum(sizes) == 4 * MAX_PER_QUESTION
    assert max(sizes) == MAX_PER_QUESTION


def test_combined_fetches_end_only_for_partitions_that_the_leader_does_not_confirm() -> None:
    node = Node(9)
    question = node.turn()[0]
    ended = node.quiet.process_answer(question, {0, 2})
    assert ended is not None
    assert ended.fetches == (question.fetches[0], question.fetches[2])
    assert len(node.quiet) == 7
    assert node.quiet.process_answer(question, {1}) is None, "the answer repeated"
    assert len(node.quiet) == 7


def test_combined_fetches_repeat_a_lost_request_in_the_next_round() -> None:
    node = Node(9)
    (lost,) = node.turn()
    again = node.turn()
    assert lost.fetches in [question.fetches for question in again]
    for question in again:
        node.quiet.process_answer(question, ())
    assert not node.ended
    assert lost.fetches not in [question.fetches for question in node.turn()]


def test_combined_fetches_to_a_node_end_after_two_unanswered_rounds() -> None:
    node = Node(9)
    other = fetch(50)
    node.quiet.add(other, "n3", node.now_ns)
    node.answered_turn()
    heard_ns = node.now_ns
    for _ in range(2):
        for question in node.turn():
            if question.leader == "n3":
                node.quiet.process_answer(question, ())
        assert not node.ended
    node.now_ns += node.quiet.interval_ns
    _, (ended,) = node.quiet.start_turn(node.now_ns)
    assert set(ended.fetches) == set(node.fetches)
    assert ended.last_answer_ns == heard_ns
    assert len(node.quiet) == 1, "the other leader's node has answered"


def test_combined_fetches_end_if_one_of_several_requests_is_never_answered() -> None:
    node = Node(4 * MAX_PER_QUESTION)
    for _ in range(4):
        for question in node.turn()[1:]:
            node.quiet.process_answer(question, ())
    assert len(node.ended) == 4 * MAX_PER_QUESTION


def test_combined_fetches_to_a_silent_node_accept_its_partitions_again_only_after_a_delay() -> None:
    node = Node(1)
    for _ in range(3):
        node.turn()
    assert node.ended == node.fetches
    assert not node.quiet.add(fetch(1), "n2", node.now_ns)
    assert node.quiet.add(fetch(1), "n3", node.now_ns)
    assert node.quiet.add(fetch(2), "n2", node.now_ns + ASK_AGAIN_NS)


def test_combined_fetches_end_at_once_without_responders() -> None:
    node = Node(9)
    question = node.turn()[0]
    ended = node.quiet.process_no_responders(question)
    assert ended is not None
    assert set(ended.fetches) == set(node.fetches)
    assert len(node.quiet) == 0
    assert node.quiet.process_no_responders(question) is None
    assert node.quiet.add(fetch(1), "n2", node.now_ns)


def test_combined_fetches_continue_after_the_process_of_the_follower_was_paused() -> None:
    node = Node(3)
    for _ in range(5):
        node.turn(intervals=30)
    assert not node.ended


def test_combined_fetches_response_does_not_end_a_partition_whose_fetch_was_replaced_meanwhile() -> None:
    node = Node(6)
    question = node.turn()[0]
    before = question.fetches[0]
    newer = fetch(before.key.partition, request_id=99)
    node.quiet.remove(before.key)
    node.quiet.add(newer, "n2", node.now_ns)
    ended = node.quiet.process_answer(question, {0})
    assert ended is not None
    assert ended.fetches == ()
    assert len(node.quiet) == 6
