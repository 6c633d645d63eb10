"""Test AppliedDigests: a controller that differs from a majority is found, and without a majority none decides."""

from __future__ import annotations

from liftpy.core.metadata.state_checksum import EVERY, KEPT, NONE, AppliedDigests

D, E, F = b"d" * 8, b"e" * 8, b"f" * 8
ABC = ("a", "b", "c")


def at(index: int, digest: bytes, **told: bytes) -> AppliedDigests:
    made = AppliedDigests("a")
    made.entry_applied(index - 1, index, digest)
    for node_id, other in told.items():
        made.record_report(node_id, (index, other))
    return made


def test_applied_digests_store_a_checkpoint_at_each_multiple_of_the_interval() -> None:
    made = AppliedDigests("a", every=4)
    seen = []
    before = 0
    for index in (1, 2, 3, 5, 6, 8, 9, 11, 13):  # some entries are the library's own
        made.entry_applied(before, index, bytes([index]) * 8)
        seen.append(made.newest[0])
        before = index
    assert seen == [0, 0, 0, 5, 5, 8, 8, 8, 13]
    made.entry_applied(13, 20, b"")
    assert made.newest[0] == 13, "without a digest there is none"


def test_applied_digests_with_a_majority_find_the_controller_that_differs() -> None:
    made = at(EVERY, D, b=D)
    assert not made.compare_reports(ABC)
    assert (made.agreed, made.halted, made.mismatch_count) == ((EVERY, D), "", 0)
    made.record_report("c", (EVERY, E))
    assert not made.compare_reports(ABC)
    assert (made.agreed, made.halted, made.mismatch_count) == ((EVERY, D), "", 1)
    assert not made.compare_reports(ABC)
    assert made.mismatch_count == 1, "once"
    follower = at(EVERY, E)
    assert follower.differs_from(made.agreed)
    assert not at(EVERY, D).differs_from(made.agreed)
    assert not at(2 * EVERY, E).differs_from(made.agreed), "it has no digest there"
    assert not follower.differs_from(NONE)


def test_metadata_leader_whose_digest_differs_from_the_majority_resigns() -> None:
    made = at(EVERY, E, b=D, c=D)
    assert made.compare_reports(ABC)
    assert made.agreed == NONE, "what it holds is told to nobody"


def test_applied_digests_without_a_majority_halt_the_controllers_until_a_majority_agrees() -> None:
    for made, voters in ((at(EVERY, D, b=E, c=F), ABC), (at(EVERY, D, b=E), ABC), (at(EVERY, D, b=E), ("a", "b"))):
        assert not made.compare_reports(voters)
        assert (
            made.halted
            == f"the controllers {', '.join(voters if made is None else sorted(made._digests))} hold different images "
            f"at index {EVERY}, and no majority agrees"
        )
        assert made.agreed == NONE
    made = at(EVERY, D, b=E)
    assert not made.compare_reports(ABC)
    made.record_report("c", (EVERY, D))
    assert not made.compare_reports(ABC)
    assert (made.halted, made.agreed) == ("", (EVERY, D))
    other = at(EVERY, D, b=E)
    other.compare_reports(ABC)
    other.forget("b")
    assert not other.compare_reports(ABC)
    assert other.halted == "", "its next process is sent a snapshot"


def test_applied_digests_after_a_snapshot_are_compared_from_the_next_checkpoint() -> None:
    made = at(EVERY, D, b=E)
    assert not made.compare_reports(ABC)
    assert made.halted
    made.entry_applied(2 * EVERY - 1, 2 * EVERY, F)
    assert not made.compare_reports(ABC)
    assert made.halted, "nobody has told another place yet"
    made.record_report("b", (2 * EVERY, F))
    assert not made.compare_reports(ABC)
    assert (made.halted, made.agreed) == ("", (2 * EVERY, F))
    made.entry_applied(3 * EVERY - 1, 3 * EVERY, D)
    made.record_report("b", (3 * EVERY, E))
    assert not made.compare_reports(ABC)
    assert str(3 * EVERY) in made.halted, "and they differ anew"
    itself = at(EVERY, E, b=D, c=D)
    itself.entry_applied(2 * EVERY - 1, 2 * EVERY, F)
    itself.record_report("b", (2 * EVERY, F))
    assert not itself.compare_reports(ABC), "it was sent one itself, before it led"


def test_applied_digests_of_learners_do_not_count_for_the_majority() -> None:
    made = at(EVERY, D, b=E, l1=D)
    made.compare_reports(("a", "b", "c"))
    assert made.halted
    alone = at(EVERY, D)
    assert not alone.compare_reports(("a",))
    assert alone.agreed == (EVERY, D)


def test_applied_digests_memory_is_bounded() -> None:
    made = AppliedDigests("a", every=1)
    for index in range(1, 100):
        made.entry_applied(index - 1, index, D)
        made.record_report("b", (index, E))
        made.compare_reports(("a", "b"))
    assert [len(held) for held in made._digests.values()] == [KEPT, KEPT]
    assert made.mismatch_count == 2 * 99
    assert len(made._mismatches) <= 2 * KEPT + 2
    made.record_report("b", NONE)
    assert len(made._digests["b"]) == KEPT
