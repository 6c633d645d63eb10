"""Test when a node may use its wall clock for retention: other nodes, the monotonic clock and majorities."""

from __future__ import annotations

import pytest

from liftpy.config import NS_PER_S
from liftpy.core.base.clock_trust import BOUND_NS, FRESH_NS, HOLD_NS, NO_AGE_NS, PEERS, SLOW_NS, ClockTrust
from liftpy.core.wire.frames import decode_presence, encode_presence
from tests.each import each

YEAR = 365 * 86_400
T0 = 1_800_000_000
"""True time at the monotonic clock's 0, in s."""


class Bench:
    """Node ``a`` among others; all in seconds."""

    def __init__(self, *others: str) -> None:
        self.trust = ClockTrust("a")
        self.nodes = dict.fromkeys(("a", *others), True)
        self.off = dict.fromkeys(("a", *others), 0.0)
        self.now = 1000.0

    def wall_ns(self, node: str) -> int:
        return round((T0 + self.now + self.off[node]) * NS_PER_S)

    def hear(self, *nodes: str) -> None:
        now_ns = round(self.now * NS_PER_S)
        for node in nodes:
            self.trust.record_answer(node, self.wall_ns(node), now_ns, now_ns)

    def stamp_s(self) -> float:
        """Return the error of the returned time in seconds."""
        stamp_ns = self.trust.stamp_ns(self.wall_ns("a"), round(self.now * NS_PER_S))
        return stamp_ns / NS_PER_S - T0 - self.now

    def trusted(self) -> bool:
        now_ns = round(self.now * NS_PER_S)
        told_ns = self.trust.time_of_age_ns(self.wall_ns("a"), now_ns, self.nodes)
        assert told_ns == (NO_AGE_NS if self.trust.why else self.wall_ns("a"))
        return not self.trust.why


def test_clock_trust_of_the_documented_example_has_the_documented_result() -> None:
    b = Bench("b", "c")
    b.hear("b", "c")
    assert b.trusted()
    assert b.trust.skew_ns == 0
    b.off["a"] = 10 * YEAR
    assert not b.trusted(), "at once, without another answer"
    assert b.trust.is_wrong
    assert "2 of 2 other clocks differ" in b.trust.why
    assert b.trust.skew_ns == 10 * YEAR * NS_PER_S
    b.off["a"] = 0
    assert b.trusted()
    b.off["b"] = 10 * YEAR
    b.hear("b")
    assert b.trusted(), "one other is wrong, two clocks of three agree"
    assert b.trust.skew_ns in (0, -10 * YEAR * NS_PER_S)


@pytest.mark.parametrize("jump_s", [-YEAR, -61, 61, YEAR])
def test_clock_trust_of_two_differing_clocks_is_false_on_both_nodes(jump_s: float) -> None:
    b = Bench("b")
    b.hear("b")
    assert b.trusted()
    b.off["b"] = jump_s
    b.hear("b")
    assert not b.trusted()
    b.off["a"] = jump_s
    assert b.trusted(), "both jumped, and agree"


def test_clock_trust_accepts_a_difference_within_the_bound() -> None:
    b = Bench("b", "c")
    b.off["a"] = BOUND_NS / NS_PER_S
    b.hear("b", "c")
    assert b.trusted()
    b.off["a"] += 0.001
    assert not b.trusted()


def test_clock_trust_after_a_start_needs_an_agreeing_majority() -> None:
    b = Bench("b", "c", "d", "e")
    assert not b.trusted()
    assert not b.trust.is_wrong
    b.hear("b")
    assert not b.trusted(), "2 of 5"
    b.hear("c")
    assert b.trusted()


def test_clock_trust_without_recent_answers_ends_when_the_clock_jumps() -> None:
    b = Bench("b", "c")
    b.hear("b", "c")
    assert b.trusted()
    b.now += FRESH_NS / NS_PER_S + 1
    assert b.trusted()
    b.off["a"] = -3600
    assert not b.trusted()
    assert b.trust.is_wrong
    assert "-3600 s" in b.trust.why
    b.now += 10 * HOLD_NS / NS_PER_S
    assert not b.trusted(), "others are live: it waits for them"
    b.off["b"] = -3600
    b.hear("b")
    assert b.trusted()


def test_clock_trust_with_a_disagreeing_and_a_silent_node_is_false() -> None:
    b = Bench("b", "c")
    b.hear("b", "c")
    assert b.trusted()
    b.now += FRESH_NS / NS_PER_S + 1
    b.off["b"] = YEAR
    b.hear("b")
    assert not b.trusted(), "c is not heard any more"


def test_clock_trust_remains_after_a_suspend_but_ends_if_the_monotonic_clock_stopped() -> None:
    b = Bench("b", "c")
    b.hear("b", "c")
    assert b.trusted()
    b.now += 8 * 3600  # both clocks went on
    assert b.trusted()
    b.hear("b", "c")
    b.off = dict.fromkeys(b.off, 8 * 3600.0)  # the monotonic one stood still
    assert not b.trusted(), "what was heard before is older than the jump"
    b.hear("b", "c")
    assert b.trusted()


def test_clock_trust_of_a_single_node_after_a_jump_is_false_for_the_hold_time() -> None:
    b = Bench()
    assert b.trusted()
    for _ in range(100):
        b.now, b.off["a"] = b.now + 10, b.off["a"] + 1
        assert b.trusted(), "it is slewed"
    b.off["a"] += YEAR
    assert not b.trusted()
    assert b.trust.is_wrong
    b.now += HOLD_NS / NS_PER_S - 1
    assert not b.trusted()
    b.off["a"] += YEAR
    b.now += 2
    assert not b.trusted(), "it jumped once more: it waits anew"
    b.now += HOLD_NS / NS_PER_S
    assert b.trusted()
    b.off["a"] -= YEAR
    assert not b.trusted()
    b.off["a"] += YEAR
    assert b.trusted(), "it is back where it was"


def test_clock_trust_after_a_start_with_all_other_nodes_down_begins_after_the_hold_time() -> None:
    b = Bench("b", "c")
    b.nodes |= {"b": False, "c": False}
    assert not b.trusted()
    assert not b.trust.is_wrong
    b.now += HOLD_NS / NS_PER_S - 1
    assert not b.trusted()
    b.now += 1
    assert b.trusted()
    b.nodes["b"] = True
    assert not b.trusted(), "nobody has agreed yet, and now there is somebody to ask"


def test_clock_trust_of_an_agreeing_majority_remains_when_other_nodes_go_down() -> None:
    b = Bench("b", "c")
    b.hear("b", "c")
    assert b.trusted()
    b.nodes |= {"b": False, "c": False}
    b.now += FRESH_NS
    assert b.trusted()
    b.nodes["b"] = True
    assert b.trusted(), "it has not moved since a majority agreed"


def test_clock_trust_gained_as_a_single_node_ends_when_another_node_returns() -> None:
    b = Bench("b")
    b.hear("b")
    assert b.trusted()
    b.nodes["b"], b.off["a"] = False, YEAR
    assert not b.trusted()
    b.now += HOLD_NS / NS_PER_S
    assert b.trusted()
    b.nodes["b"] = True
    assert not b.trusted()


def test_clock_trust_ignores_nodes_of_older_versions() -> None:
    b = Bench("b", "c")
    now_ns = round(b.now * NS_PER_S)
    b.trust.record_answer("b", None, now_ns, now_ns)
    assert not b.trusted(), "c has not answered"
    b.trust.record_answer("c", None, now_ns, now_ns)
    assert b.trusted(), "nobody tells: as if it were alone"
    b.off["c"] = YEAR
    b.hear("c")
    assert not b.trusted()


def test_clock_trust_ignores_late_answers_and_removed_nodes() -> None:
    b = Bench("b", "c")
    now_ns = round(b.now * NS_PER_S)
    b.trust.record_answer("b", b.wall_ns("b"), now_ns - SLOW_NS - 1, now_ns)
    assert not b.trusted()
    b.trust.record_answer("b", b.wall_ns("b"), now_ns - SLOW_NS, now_ns)
    assert b.trusted()
    b.trust.record_answer("b", b.wall_ns("b") - SLOW_NS // 2, now_ns - SLOW_NS, now_ns)
    b.trusted()
    assert b.trust.skew_ns == 0, "it was given half way"
    b.off["b"] = YEAR
    b.hear("b")
    assert not b.trusted(), "it is all that is heard"
    del b.nodes["b"]
    assert b.trusted(), "who left says nothing, and nobody else has disagreed"


def test_clock_trust_requests_are_sent_to_a_bounded_number_of_nodes_evenly() -> None:
    names = [f"n{number:02}" for number in range(20)]
    nodes = dict.fromkeys(names, True)
    asked = [name for one in names for name in ClockTrust(one).peers(nodes)]
    assert {asked.count(name) for name in names} == {PEERS}
    assert ClockTrust("n18").peers(nodes) == ["n19", "n00", "n01", "n02", "n03", "n04"]
    nodes["n19"] = False
    assert ClockTrust("n18").peers(nodes)[0] == "n00"
    assert ClockTrust("x").peers({"x": True}) == []


@each("said", [b"yes", b"", b"yes ", b"no 5", b"yes -5", b"yes 5x", b"yes 5 5", b"yes " + b"9" * 21, b'{"node": 1}'])
def test_presence_answer_without_a_time_decodes_to_none(said: bytes) -> None:
    assert decode_presence(said) is None


def test_presence_answer_with_a_time_decodes_to_the_encoded_time() -> None:
    assert encode_presence(1_764_166_012_345_678_901) == b"yes 1764166012345678901"
    assert decode_presence(b"yes 1764166012345678901") == 1_764_166_012_345_678_901


# ---- stamps -----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("off_s", [-YEAR, -61, 64, YEAR])
def test_clock_trust_with_a_majority_returns_the_time_of_the_majority(off_s: float) -> None:
    b = Bench("b", "c")
    b.off |= {"b": 2.0, "c": 3.0}
    assert b.stamp_s() == 0, "nobody has told"
    b.hear("b", "c")
    assert b.trusted()
    assert b.stamp_s() == 0, "a clock that is trusted is its own"
    b.off["a"] = off_s
    assert not b.trusted()
    assert round(b.stamp_s(), 3) == 2
    b.now += FRESH_NS / NS_PER_S - 1
    assert not b.trusted()
    assert round(b.stamp_s(), 3) == 2, "and the time goes on"
    b.off["a"] = 0
    assert b.trusted()
    assert b.stamp_s() == 0


def test_clock_trust_without_a_majority_returns_the_time_of_the_own_node() -> None:
    b = Bench("b", "c")
    b.off["a"] = YEAR
    b.hear("b")
    assert not b.trusted()
    assert b.stamp_s() == YEAR, "one of three"
    b.off["c"] = -YEAR
    b.hear("c")
    assert not b.trusted()
    assert b.stamp_s() == YEAR, "three times"
    b.now += FRESH_NS / NS_PER_S + 1
    assert not b.trusted()
    assert b.stamp_s() == YEAR
    b.off["c"] = 0
    b.hear("b", "c")
    b.trusted()
    assert b.stamp_s() == 0
    b.nodes |= {"b": False, "c": False}
    b.trusted()
    assert b.stamp_s() == YEAR, "it is alone"


@pytest.mark.parametrize("jump_s", [-3600, YEAR])
def test_clock_trust_after_a_jump_without_a_majority_continues_the_trusted_time(jump_s: float) -> None:
    b = Bench("b")
    b.hear("b")
    assert b.trusted()
    b.nodes |= {"c": True, "d": True}
    b.off |= {"a": jump_s, "c": 0.0, "d": 0.0}
    assert not b.trusted(), "one of three others has told its time"
    assert round(b.stamp_s(), 3) == 0
    b.now += 30
    assert not b.trusted()
    assert round(b.stamp_s(), 3) == 0, "and the time goes on"
    b.hear("b", "c", "d")
    b.off["a"] = 1.0
    assert b.trusted()
    assert round(b.stamp_s(), 3) == 1
