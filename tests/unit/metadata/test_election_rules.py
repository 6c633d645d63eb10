"""Test which replicas may be elected, and the ISR after an unclean election."""

from __future__ import annotations

import dataclasses
from typing import Any

from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.metadata.controller import elections
from liftpy.core.metadata.controller.record_builder import RecordBuilder, Rules
from tests.each import each
from tests.unit.metadata.small_images import a_partition, a_stream, an_image


def elect(partition: PartitionState, fenced: str = "", **config: Any) -> tuple[str, ...]:
    stream = a_stream(partition, **config)
    return elections.eligible(RecordBuilder(an_image(stream, fenced=fenced), 1, Rules()), stream, partition)


@each(
    ("more", "fenced", "able"),
    [
        ({}, "", "abc"),
        ({"deposed": "a"}, "", "bc"),
        ({"passed_over": ("b",)}, "", "ac"),
        ({}, "c", "ab"),
        ({"isr": ("a", "b")}, "", "ab"),
        ({"isr": ("a", "b"), "complete": ("c",)}, "", "ab"),
        ({"isr": ("a", "b"), "complete": ("c",)}, "ab", "c"),
        ({"incomplete": ("b",)}, "", "ac"),
        ({"deposed": "a", "passed_over": ("b",)}, "c", ""),
    ],
)
def test_electable_replicas_are_unfenced_isr_members_and_complete_replicas(
    more: dict[str, Any], fenced: str, able: str
) -> None:
    assert elect(a_partition(**more), fenced) == tuple(able)


def test_unclean_election_sets_the_isr_to_the_new_leader() -> None:
    partition = a_partition(leader="", candidate="c", status=PartitionStatus.CANDIDATE_FOUND, incomplete=("c",), deposed="a")
    found = elections.finish_election(a_stream(partition), partition)
    assert (found.isr, found.unclean_elected, found.incomplete) == (("c",), True, ())
    clean = dataclasses.replace(partition, incomplete=())
    found = elections.finish_election(a_stream(clean), clean)
    assert (found.isr, found.unclean_elected, found.leader) == (("b", "c"), False, "c")
