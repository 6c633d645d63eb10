"""Test rules of nodes: registrations, stops, and the deletion of partition data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from immutables import Map

from liftpy.config import CommitPolicy, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.data_deletion import REMEMBERED, DepartedPartitions, may_delete
from liftpy.core.metadata.describe import reasons_to_keep_running
from liftpy.core.metadata.image import RESCUE_LEAP, ClusterImage, Counters, NodeImage, StreamImage
from liftpy.core.metadata.image_delta import diff
from liftpy.core.metadata.node_identity import stopped_cleanly
from liftpy.core.metadata.sessions import RegistrationOutcome, registration_result
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.each import each

E = pb.ControlResponse


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (E.OK, RegistrationOutcome.TAKEN_IN), (E.EXISTS, RegistrationOutcome.TAKEN), (E.INVALID, RegistrationOutcome.REFUSED),
        (E.STALE, RegistrationOutcome.REFUSED),
        (E.UNAVAILABLE, RegistrationOutcome.AGAIN),
        (E.OUTCOME_UNKNOWN, RegistrationOutcome.AGAIN),
    ],
)  # fmt: skip
def test_registration_result_of_each_error_code_is_retry_fenced_or_failed(
    error: pb.ControlResponse.Error, meaning: RegistrationOutcome
) -> None:
    assert registration_result(E(error=error)) is meaning


def test_node_stop_is_clean_only_if_the_node_was_opened_and_had_no_error() -> None:
    right = {"failed": False, "opened": True, "logs_are_clean": True, "repairs": False}
    assert stopped_cleanly(**right)
    assert not any(stopped_cleanly(**{**right, name: not value}) for name, value in right.items())


def test_partition_data_missing_in_the_image_is_not_deleted() -> None:
    key = PartitionKey("s", "uid", 0)
    assert not DepartedPartitions("n1", set).has_moved_away(key, ClusterImage())


def group_image(
    *streams: str, index: int = 100, next_uid: int = 10, incarnation: int = 3, replicas: str = "ab"
) -> ClusterImage:
    """Image of a group that knows node ``a`` with ``incarnation``, 0 for not at all."""
    partition = PartitionState(
        partition=0, replicas=tuple(replicas), isr=tuple(replicas), leader=replicas[0], leader_epoch=1, epoch=1
    )
    nodes = {"a": NodeImage(node_id="a", incarnation=incarnation)} if incarnation else {}
    image = ClusterImage(index=index, nodes=Map(nodes), counters=Counters(next_stream_uid=next_uid))
    return image.with_streams(StreamImage(name, f"{name}-uid", f"{name}.x", StreamConfig(), (partition,)) for name in streams)


def test_partition_data_deleted_in_the_image_is_deleted_unless_a_controller_denies_the_deletion() -> None:
    key, departures = PartitionKey("s", "s-uid", 0), DepartedPartitions("a", set)
    before, after = group_image("s", "t"), group_image("t", index=101)
    assert departures.image_changed(before, after, diff(before, after)) == []
    assert departures.has_moved_away(key, after)
    assert not departures.has_moved_away(PartitionKey("t", "t-uid", 0), after)
    departures.deletion_denied(key)
    assert not departures.has_moved_away(key, after), "else it is asked for ever"


def test_departed_partitions_forget_deleted_streams_without_data() -> None:
    """Streams may come and go for years. A stream with data on this node is remembered until its data is deleted."""
    first = PartitionKey("s0", "s0-uid", 0)
    uids = {first.uid}
    departures = DepartedPartitions("a", lambda: uids)
    for number in range(3 * REMEMBERED):
        before, after = group_image(f"s{number}", index=100 + number), group_image(index=101 + number)
        departures.image_changed(before, after, diff(before, after))
    keys = [PartitionKey(f"s{number}", f"s{number}-uid", 0) for number in range(3 * REMEMBERED)]
    remembered = [key for key in keys if departures.has_moved_away(key, after)]
    assert len(remembered) <= REMEMBERED
    assert (remembered[0], remembered[-1]) == (first, keys[-1])


@pytest.mark.parametrize(
    "other",
    [
        {"incarnation": 0},
        {"incarnation": 2},
        {"index": 99},
        {"next_uid": 9},
        {"next_uid": 8 + RESCUE_LEAP, "index": 90 + RESCUE_LEAP},
    ],
    ids=["node unknown", "node older", "index lower", "counters lower", "rescued"],
)
def test_partition_data_is_kept_if_an_image_does_not_continue_the_image_before(other: dict[str, int]) -> None:
    departures, before, moved = DepartedPartitions("a", set), group_image("s", "t"), PartitionKey("t", "t-uid", 0)
    after = group_image("t", replicas="bc", **{"index": 101, **other})  # type: ignore[arg-type]
    keys = [PartitionKey("s", "s-uid", 0), moved]
    assert sorted(departures.image_changed(before, after, diff(before, after))) == keys
    assert not any(departures.has_moved_away(key, after) for key in keys)
    back, again = replace(group_image("t"), index=after.index + 1, counters=after.counters, nodes=after.nodes), after
    for earlier, later in ((after, back), (back, replace(again, index=back.index + 1))):
        assert departures.image_changed(earlier, later, diff(earlier, later)) == []
    assert departures.has_moved_away(moved, again), "it moved away after it had come back"


@pytest.mark.parametrize(
    ("status", "may_be"), [(PartitionStatus.ONLINE, False), (PartitionStatus.OFFLINE, True), (PartitionStatus.ELECTION, True)]
)
def test_partition_data_that_moved_away_may_be_the_only_copy_without_a_leader(status: PartitionStatus, may_be: bool) -> None:
    image = group_image("s", replicas="bc")
    stream = image.streams["s"]
    image = image.with_partition(stream, replace(stream.partitions[0], status=status))
    assert DepartedPartitions("a", set).has_moved_away(PartitionKey("s", "s-uid", 0), image)
    assert DepartedPartitions("a", set).may_be_the_only_copy(PartitionKey("s", "s-uid", 0), image) is may_be
    assert not DepartedPartitions("a", set).may_be_the_only_copy(PartitionKey("gone", "uid", 0), image)


# ---- deletions -------------------------------------------------------------------------------------------------------------
KEY = PartitionKey("s", "u1", 0)


@each(
    ("response", "allowed"),
    [
        ({"error": pb.ControlResponse.NOT_FOUND}, True),
        ({"error": pb.ControlResponse.UNAVAILABLE}, None),
        ({"error": pb.ControlResponse.OUTCOME_UNKNOWN}, None),
        ({"error": pb.ControlResponse.INVALID}, None),
        ({}, None),
        ({"uid": "u2", "replicas": "bc"}, None),
        ({"uid": "u1", "replicas": "bc"}, True),
        ({"uid": "u1", "replicas": "ab"}, False),
        ({"uid": "u1", "replicas": "ab", "partition": 1}, None),
    ],
)
def test_replica_data_is_deletable_only_if_the_controllers_answer_that_the_node_has_no_replica(
    response: dict[str, Any], allowed: bool | None
) -> None:
    made = pb.ControlResponse(error=response.get("error", pb.ControlResponse.OK))
    if "uid" in response:
        made.stream.uid = response["uid"]
        made.stream.partitions.add(partition=response.get("partition", 0), replicas=list(response["replicas"]))
    assert may_delete(made, KEY, "a") is allowed


ONLINE = PartitionState(partition=0, replicas=("a", "b", "c"), isr=("a", "b", "c"), leader="a", leader_epoch=1, epoch=1)
ALL = {"a": True, "b": True, "c": True}


class Image:
    """Provide the part of an image that the check reads."""

    def __init__(
        self, *partitions: PartitionState, down: str = "", min_isr: int = 2, policy: CommitPolicy = CommitPolicy.ISR
    ) -> None:
        self.nodes: Any = dict.fromkeys("abc")
        self._down = down
        config = StreamConfig(min_isr=min_isr, commit_policy=policy)
        stream = StreamImage(name="s", uid="1", subject="s", config=config, partitions=partitions)
        self._partitions = [(stream, partition) for partition in partitions]

    def is_live(self, node: str) -> bool:
        return node not in self._down

    def partitions_of(self, node: str) -> Any:
        return [(s, p) for s, p in self._partitions if node in p.holders]


def asked(image: Any, node: str = "a", controllers: dict[str, bool] | None = None) -> list[str]:
    return reasons_to_keep_running(image, node, ALL if controllers is None else controllers)


def test_node_stop_check_allows_one_of_three_replicas() -> None:
    assert asked(Image(ONLINE)) == []


def test_node_stop_check_lists_a_partition_that_could_not_commit_afterwards() -> None:
    assert asked(Image(replace(ONLINE, isr=("a", "b")))) == ["s/0 would have 1 of the 2 in-sync replicas that it needs"]
    assert asked(Image(ONLINE, down="c"), "b", {"a": True, "b": True, "c": True}) != [], "one that is fenced does not count"
    assert asked(Image(replace(ONLINE, isr=("a", "b"))), "c") == [], "it is not in the ISR: nobody waits for it"
    assert asked(Image(replace(ONLINE, isr=("a", "b")), min_isr=1)) == []


def test_node_stop_check_of_a_quorum_stream_needs_a_majority_of_the_replicas() -> None:
    image = Image(replace(ONLINE, isr=("a", "b")), min_isr=1, policy=CommitPolicy.QUORUM)
    assert asked(image) == ["s/0 would have 1 of the 2 in-sync replicas that it needs"]
    assert asked(Image(ONLINE, min_isr=1, policy=CommitPolicy.QUORUM)) == []


def test_node_stop_check_lists_a_leaderless_partition_and_ignores_single_replicas() -> None:
    assert asked(Image(replace(ONLINE, status=PartitionStatus.ELECTION))) == ["s/0 has no leader now"]
    assert asked(Image(replace(ONLINE, replicas=("a",), isr=("a",)))) == []


def test_node_stop_check_rejects_a_stop_that_leaves_no_controller_majority() -> None:
    [reason] = asked(Image(), "a", {"a": True, "b": True, "c": False})
    assert reason == "the metadata group would have 1 of its 3 members, and needs 2"
    assert asked(Image(), "c", {"a": True, "b": True, "c": False}) == []
    assert asked(Image(), "a", {"a": True}) == [], "a single controller is its owner's choice"
    assert asked(Image(), "x") == ["there is no node 'x'"]
