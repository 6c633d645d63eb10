"""Test requests that change the ISR of a partition, or pause and resume it [C4, C6]."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_driver import Driver, Error
from election_driver import CANDIDATE_FOUND, ONLINE, Cluster

from liftpy.core.base.partition import PartitionState, Pause
from liftpy.core.metadata.codec import PARTITION, decode_snapshot, encode_snapshot
from liftpy.core.metadata.controller.request_batcher import decide_batch
from liftpy.core.metadata.image_delta import diff
from liftpy.core.wire._pb import cluster_pb2 as pb


@pytest.fixture
def driver() -> Driver:
    made = Driver(("a", "b", "c", "d"))
    made.create(replicationFactor=3)
    return made


def test_change_isr_shrink_or_expand_increments_only_the_partition_epoch(driver: Driver) -> None:
    start = driver.partition()
    shrunk = driver.change_isr(["c", "a"])
    assert list(shrunk.partition.isr) == ["a", "c"]
    assert shrunk.partition.epoch > start.epoch
    assert shrunk.partition.leaderEpoch == start.leader_epoch
    expanded = driver.change_isr(["a", "b", "c"])
    assert list(expanded.partition.isr) == ["a", "b", "c"]
    assert expanded.partition.epoch > shrunk.partition.epoch


def test_change_isr_based_on_an_older_state_returns_stale_with_the_current_state(driver: Driver) -> None:
    stale = driver.isr_request(["a", "b"])
    driver.change_isr(["a", "c"])
    now = driver.partition()
    answer = driver.ask(changeIsr=stale)
    assert answer.error == Error.STALE
    assert (answer.partition.epoch, list(answer.partition.isr)) == (now.epoch, ["a", "c"])
    assert driver.partition() == now


@pytest.mark.parametrize("isr", [[], ["b"], ["a", "d"], ["a", "a"], ["a", "zz"]])
def test_change_isr_to_an_impossible_isr_returns_invalid(driver: Driver, isr: list[str]) -> None:
    request = driver.isr_request([node for node in isr if node != "zz"])
    request.isr[:] = isr
    assert driver.ask(changeIsr=request).error == Error.INVALID


def test_change_isr_adds_only_a_live_replica_with_its_current_incarnation(driver: Driver) -> None:
    driver.change_isr(["a", "b"])
    caught_up = driver.isr_request(["a", "b", "c"])
    driver.fence("c")
    assert driver.ask(changeIsr=caught_up).error == Error.FENCED
    driver.unfence("c")
    driver.restart("c")
    assert driver.ask(changeIsr=caught_up).error == Error.FENCED
    assert driver.change_isr(["a", "b", "c"]).error == Error.OK


def test_change_isr_does_not_add_a_replica_that_restarted_with_an_empty_directory(driver: Driver) -> None:
    driver.change_isr(["a", "b"])
    in_flight = driver.isr_request(["a", "b", "c"])
    driver.restart("c", emptied=True)
    assert driver.ask(changeIsr=in_flight).error == Error.FENCED
    assert driver.partition().isr == ("a", "b")


def test_change_isr_keeps_a_fenced_follower_but_rejects_a_fenced_leader(driver: Driver) -> None:
    driver.fence("b")
    assert driver.change_isr(["a", "b"]).error == Error.OK
    driver.fence("a")
    assert driver.change_isr(["a"]).error == Error.FENCED


def test_change_isr_to_the_same_members_increments_the_partition_epoch(driver: Driver) -> None:
    before = driver.partition()
    late = driver.isr_request(["a", "b"])
    answer = driver.change_isr(["c", "b", "a"])
    assert answer.error == Error.OK
    assert answer.partition.epoch > before.epoch
    assert driver.partition().isr == before.isr
    assert driver.ask(changeIsr=late).error == Error.STALE


def test_leave_isr_of_a_follower_with_failed_storage_removes_the_follower(driver: Driver) -> None:
    def leave(node: str, **other: Any) -> pb.ControlResponse:
        uid = driver.fsm.image.streams["orders"].uid
        fields = {"stream": "orders", "uid": uid, "partition": 0, "node": node, "incarnation": driver.incarnation(node)}
        return driver.ask(leaveIsr=pb.LeaveIsr(**(fields | other)))

    before = driver.partition()
    in_flight = driver.isr_request(["a", "b", "c"])
    assert leave("c", incarnation=99).error == Error.FENCED
    assert leave("c", uid="other").error == Error.NOT_FOUND
    assert leave("a").error == Error.STALE, "a leader gives the leadership up"
    assert driver.partition() == before
    assert list(leave("c").partition.isr) == ["a", "b"]
    after = driver.partition()
    assert (after.leader, after.leader_epoch) == (before.leader, before.leader_epoch)
    assert after.epoch > before.epoch
    assert driver.ask(changeIsr=in_flight).error == Error.STALE, "the leader's own change was made with it"
    assert leave("c").error == Error.OK
    assert leave("d").error == Error.OK
    assert driver.partition() == after


def a_stream(partitions: int = 3) -> Driver:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=partitions)
    return driver


def state_of(driver: Driver, number: int = 0) -> PartitionState:
    return driver.fsm.image.streams["orders"].partitions[number]


def pauses(driver: Driver) -> list[tuple[Pause, int]]:
    return [(p.pause, p.pauses) for p in driver.fsm.image.streams["orders"].partitions]


def pause(driver: Driver, until: int = pb.UNTIL_RESUMED, *partitions: int, **more: Any) -> pb.ControlResponse:
    about = {"stream": "orders", "uid": driver.fsm.image.streams["orders"].uid} | more
    return driver.ask(pausePartitions=pb.PausePartitions(partitions=partitions, pause=until, **about))  # type: ignore[arg-type]


def wake(driver: Driver, number: int = 0, **other: Any) -> pb.ControlResponse:
    p = state_of(driver, number)
    asked = {"stream": "orders", "uid": driver.fsm.image.streams["orders"].uid, "partition": number, "leader": p.leader,
             "leaderEpoch": p.leader_epoch, "pause": int(p.pause), "pauses": p.pauses}  # fmt: skip
    return driver.ask(wakePartition=pb.WakePartition(**(asked | other)))


def test_pause_partitions_without_partition_numbers_pauses_all_partitions() -> None:
    driver = a_stream()
    before = driver.fsm.image
    assert pause(driver, pb.UNTIL_RESUMED, 1).error == Error.OK
    assert pauses(driver) == [(Pause.NOT_PAUSED, 0), (Pause.UNTIL_RESUMED, 1), (Pause.NOT_PAUSED, 0)]
    assert [change.key.partition for change in diff(before, driver.fsm.image).partitions] == [1]
    assert state_of(driver, 1).epoch > before.streams["orders"].partitions[1].epoch
    answer = pause(driver, pb.UNTIL_PUBLISH, uid="")
    assert pauses(driver) == [(Pause.UNTIL_PUBLISH, 1), (Pause.UNTIL_PUBLISH, 2), (Pause.UNTIL_PUBLISH, 1)]
    assert [PARTITION.from_pb(p) for p in answer.stream.partitions] == list(driver.fsm.image.streams["orders"].partitions)


@pytest.mark.parametrize("until", [pb.UNTIL_RESUMED, pb.UNTIL_PUBLISH, pb.UNTIL_PUBLISH_TO_ANY, pb.NOT_PAUSED])
def test_pause_partitions_of_a_paused_partition_changes_nothing(until: int) -> None:
    driver = a_stream()
    pause(driver, until)
    before = driver.fsm.image.streams["orders"]
    assert pause(driver, until).error == Error.OK
    assert driver.fsm.image.streams["orders"].partitions == before.partitions


def test_resumed_partition_accepts_publishes_after_its_leader_confirms() -> None:
    driver = a_stream()
    pause(driver, pb.UNTIL_RESUMED, 0, 2)
    assert pause(driver, pb.NOT_PAUSED).error == Error.OK
    assert pauses(driver) == [(Pause.ENDING, 1), (Pause.NOT_PAUSED, 0), (Pause.ENDING, 1)]
    resumed = driver.fsm.image.streams["orders"].partitions
    assert pause(driver, pb.NOT_PAUSED).error == Error.OK
    assert driver.fsm.image.streams["orders"].partitions == resumed
    answer = wake(driver, 2)
    assert (answer.error, PARTITION.from_pb(answer.partition)) == (Error.OK, state_of(driver, 2))
    assert pauses(driver) == [(Pause.ENDING, 1), (Pause.NOT_PAUSED, 0), (Pause.NOT_PAUSED, 1)]
    pause(driver, pb.UNTIL_RESUMED, 0)
    assert pauses(driver)[0] == (Pause.UNTIL_RESUMED, 2), "paused anew before its leader knew that it was resumed"


def test_wake_partition_resumes_all_partitions_that_were_paused_until_any_publish() -> None:
    driver = a_stream(4)
    pause(driver, pb.UNTIL_PUBLISH)
    assert wake(driver, 1).error == Error.OK
    assert [p for p, _ in pauses(driver)] == [Pause.UNTIL_PUBLISH, Pause.ENDING, Pause.UNTIL_PUBLISH, Pause.UNTIL_PUBLISH]
    pause(driver, pb.UNTIL_PUBLISH_TO_ANY, 0, 2, 3)
    pause(driver, pb.UNTIL_RESUMED, 3)
    answer = wake(driver, 2)
    assert [p for p, _ in pauses(driver)] == [Pause.ENDING, Pause.ENDING, Pause.ENDING, Pause.UNTIL_RESUMED]
    assert answer.partition == PARTITION.to_pb(state_of(driver, 2))


@pytest.mark.parametrize(
    "other", [{"leader": "z"}, {"leaderEpoch": 99}, {"pause": pb.UNTIL_RESUMED}, {"pause": pb.ENDING}, {"pauses": 7}]
)
def test_wake_partition_with_the_number_of_another_pause_returns_stale(other: dict[str, Any]) -> None:
    """Otherwise a repeated request reports that the partition takes publishes before it may."""
    driver = a_stream()
    pause(driver, pb.UNTIL_PUBLISH)
    before = driver.fsm.image.streams
    assert wake(driver, **other).error == Error.STALE
    assert driver.fsm.image.streams == before


@pytest.mark.parametrize("until", [pb.UNTIL_RESUMED, pb.NOT_PAUSED])
def test_wake_partition_paused_by_an_operator_is_rejected(until: int) -> None:
    driver = a_stream()
    pause(driver, until)
    before = driver.fsm.image.streams
    assert wake(driver).error == Error.INVALID
    assert driver.fsm.image.streams == before


@pytest.mark.parametrize(
    ("partitions", "until", "more", "error"),
    [((), pb.UNTIL_RESUMED, {"stream": "other"}, Error.NOT_FOUND), ((), pb.UNTIL_RESUMED, {"uid": "of before"}, Error.NOT_FOUND),
     ((0, 3), pb.UNTIL_RESUMED, {}, Error.NOT_FOUND), ((), pb.ENDING, {}, Error.INVALID), ((), 99, {}, Error.INVALID),
     ((), pb.UNTIL_RESUMED, {"configVersion": 5}, Error.STALE)],
)  # fmt: skip
def test_pause_partitions_of_a_missing_partition_changes_nothing(
    partitions: tuple[int, ...], until: int, more: dict[str, Any], error: int
) -> None:
    driver = a_stream()
    before = driver.fsm.image.streams
    answer = pause(driver, until, *partitions, **more)
    assert (answer.error, bool(answer.detail)) == (error, True)
    assert driver.fsm.image.streams == before
    assert pause(driver, configVersion=0).error == Error.OK


def test_paused_partition_stays_paused_after_elections_restarts_and_snapshots() -> None:
    cluster = Cluster("abc")
    pause(cluster, pb.UNTIL_RESUMED)
    cluster.fence("a")
    cluster.conclude()
    assert (cluster.now[0], cluster.partition().pause) == (CANDIDATE_FOUND, Pause.UNTIL_RESUMED)
    cluster.promote()
    assert (cluster.now, cluster.partition().pause) == ((ONLINE, "b", ""), Pause.UNTIL_RESUMED)
    cluster.restart("a")
    image = decode_snapshot(encode_snapshot(cluster.fsm.image))
    assert image.streams["orders"].partitions[0] == cluster.partition()
    pause(cluster, pb.NOT_PAUSED)
    cluster.fence("b")
    assert wake(cluster).error == Error.STALE, "there is no leader that could say so"
    cluster.conclude()
    cluster.promote()
    assert (wake(cluster).error, cluster.partition().pause) == (Error.OK, Pause.NOT_PAUSED)


def test_wake_partition_batch_resumes_many_partitions_in_one_entry() -> None:
    driver = a_stream(40)
    pause(driver, pb.UNTIL_PUBLISH_TO_ANY)
    stream = driver.fsm.image.streams["orders"]
    wishes = [
        pb.WakePartition(
            stream="orders", uid=stream.uid, partition=p.partition, leader=p.leader, leaderEpoch=p.leader_epoch,
            pause=pb.UNTIL_PUBLISH_TO_ANY, pauses=1,
        )
        for p in stream.partitions
    ]  # fmt: skip
    requests = (pb.BatchedRequest(number=n, request=pb.ControlRequest(wakePartition=wish)) for n, wish in enumerate(wishes))
    image, _, response, failures = decide_batch(driver.fsm.image, pb.Batch(requests=requests), driver.now_ns, driver.fsm.rules)
    errors = [answer.error for answer in response.batch.answers]
    assert (errors, failures) == ([Error.OK] + 39 * [Error.STALE], 0)
    assert {p.pause for p in image.streams["orders"].partitions} == {Pause.ENDING}
