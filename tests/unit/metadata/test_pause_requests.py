"""Test requests that pause and resume partitions [C4, C6]."""

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
