"""Test whether a node may stop: partitions that could not commit, and the metadata group's majority."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from liftpy.config import CommitPolicy, StreamConfig
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.describe import reasons_to_keep_running
from liftpy.core.metadata.image import StreamImage

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
