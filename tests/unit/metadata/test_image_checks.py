"""Test the checks of images and steps: each rule is broken once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from immutables import Map

from liftpy.config import CommitPolicy
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.image import ClusterImage, Counters, NodeImage
from liftpy.core.metadata.records import check_partition
from liftpy.errors import InvariantError
from tests.each import each
from tests.unit.metadata.image_checks import LeadershipHistory, check_image, check_step
from tests.unit.metadata.small_images import a_partition, a_stream, an_image

HIGH = Counters(100, 100, 100, 100, 100)


def sound(*partitions: PartitionState, **nodes: Any) -> ClusterImage:
    return replace(an_image(a_stream(*partitions), **nodes), counters=HIGH)


def code_of(error: pytest.ExceptionInfo[InvariantError]) -> str:
    return str(error.value).split()[1]


@each(
    ("code", "changes"),
    [
        ("C3", {"isr": ()}),
        ("C3", {"isr": ("a", "a")}),
        ("C3", {"isr": ("a", "x")}),
        ("C3", {"isr": ("b", "c")}),
        ("C1", {"leader": ""}),
        ("C1", {"status": PartitionStatus.ELECTION}),
        ("C1", {"candidate": "b"}),
        ("C1", {"status": PartitionStatus.CANDIDATE_FOUND, "leader": ""}),
        ("C1", {"last_leader": "b"}),
        ("C5", {"status": PartitionStatus.CANDIDATE_FOUND, "leader": "", "candidate": "x"}),
        ("C3", {"joining": "b"}),
    ],
)
def test_check_partition_with_contradicting_fields_raises_invariant_error(code: str, changes: dict[str, Any]) -> None:
    broken = a_partition(**changes)
    with pytest.raises(InvariantError) as error:
        check_partition(broken)
    assert code_of(error) == code
    with pytest.raises(InvariantError) as error:
        check_image(sound(broken))
    assert code_of(error) == code


def broken_images() -> dict[str, tuple[str, ClusterImage]]:
    image = sound()
    stream = image.streams["s"]
    twin = replace(stream, name="t", subject="other", partitions=(a_partition(epoch=9),))
    return {
        "one unique id twice": ("R9", image.with_streams((twin,))),
        "numbers": ("C1", replace(image, streams=Map({"s": replace(stream, partitions=(a_partition(partition=1),))}))),
        "a replica on an unknown node": ("C3", replace(image, nodes=image.nodes.delete("c"))),
        "a LeaderEpoch of no counter": ("C2", replace(image, counters=replace(HIGH, next_leader_epoch=5))),
        "an Epoch of no counter": ("C2", replace(image, counters=replace(HIGH, next_epoch=6))),
        "an incarnation of no counter": ("C2", replace(image, counters=replace(HIGH, next_incarnation=3))),
        "who holds what": ("M7", replace(image, hosted=image.hosted.delete("c"))),
        "who leads how much": ("M7", replace(image, leader_counts=Map({"a": 2}))),
        "which streams wait": ("M7", replace(image, waiting=frozenset({"s"}))),
        "a stream with partitions that waits for them": (
            "C3",
            replace(image, streams=Map({"s": replace(stream, waiting=1)}), waiting=frozenset({"s"})),
        ),
    }


@each("what", list(broken_images()))
def test_check_image_with_contradicting_parts_raises_invariant_error(what: str) -> None:
    code, image = broken_images()[what]
    with pytest.raises(InvariantError) as error:
        check_image(image)
    assert code_of(error) == code


# ---- steps -------------------------------------------------------------------------------------------------------------------
def step(old: PartitionState, new: PartitionState, *, fenced: str = "", policy: CommitPolicy = CommitPolicy.ISR) -> None:
    before, after = (
        replace(an_image(a_stream(state, commit_policy=policy), fenced=fenced), counters=HIGH) for state in (old, new)
    )
    check_step(before, after)


@pytest.mark.parametrize(
    ("code", "old", "new"),
    [
        ("C2", {}, {"isr": ("a", "b")}),  # a change under the same Epoch
        ("C2", {}, {"epoch": 5, "isr": ("a", "b")}),
        ("C2", {}, {"epoch": 7, "leader_epoch": 4}),
        ("C1", {}, {"epoch": 7, "leader": "b", "last_leader": "b"}),  # the epoch is another one's
        ("C5", {"isr": ("a",)}, {"epoch": 7, "leader": "b", "last_leader": "b", "leader_epoch": 6, "isr": ("a", "b")}),
        (
            "C10",
            {"incomplete": ("b",)},
            {"epoch": 7, "leader": "b", "last_leader": "b", "leader_epoch": 6},
        ),
    ],
)
def test_check_step_with_an_impossible_partition_change_raises_invariant_error(
    code: str, old: dict[str, Any], new: dict[str, Any]
) -> None:
    with pytest.raises(InvariantError) as error:
        step(a_partition(**old), a_partition(**{**old, **new}))
    assert code_of(error) == code


def test_check_step_rejects_a_fenced_node_that_joins_the_isr() -> None:
    with pytest.raises(InvariantError) as error:
        step(a_partition(isr=("a", "b")), a_partition(epoch=7), fenced="c")
    assert code_of(error) == "C6"
    step(a_partition(isr=("a", "b")), a_partition(epoch=7), fenced="b")


def test_leadership_history_rejects_a_leader_epoch_used_twice() -> None:
    seen = LeadershipHistory()
    seen.add_image(sound())
    seen.add_image(sound(a_partition(status=PartitionStatus.ELECTION, leader="")))
    with pytest.raises(InvariantError) as error:
        seen.add_image(sound(a_partition(leader="b")))
    assert code_of(error) == "C1"
    with pytest.raises(InvariantError) as error:
        seen.add_image(sound(a_partition(status=PartitionStatus.CANDIDATE_FOUND, leader="", candidate="b")))
    assert code_of(error) == "C1"
    image = sound()
    with pytest.raises(InvariantError) as error:
        seen.add_image(replace(image, nodes=image.nodes.set("a", NodeImage(node_id="a", incarnation=8))))
    assert code_of(error) == "C1"
    with pytest.raises(InvariantError) as error:
        seen.add_image(sound(a_partition(), a_partition(partition=1)))
    assert code_of(error) == "C2"
    seen.add_image(sound(a_partition(), a_partition(partition=1, leader_epoch=6, leader="b")))
