"""Test which faults a plan may add, so that enough complete replicas remain for both commit policies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import CommitPolicy, StreamConfig
from tests.simulation.replica.checkers import others_hold_enough


@pytest.mark.parametrize(
    ("policy", "replicas", "isr", "left_out", "whole", "enough"),
    [
        (CommitPolicy.ISR, "abc", "abc", "a", "b", True),
        (CommitPolicy.ISR, "abc", "abc", "a", "a", False),
        (CommitPolicy.ISR, "abc", "ab", "a", "abc", True),
        (CommitPolicy.ISR, "abc", "a", "a", "abc", False),
        (CommitPolicy.QUORUM, "abc", "abc", "a", "b", False),
        (CommitPolicy.QUORUM, "abc", "ab", "a", "bc", True),
        (CommitPolicy.QUORUM, "abc", "abc", "ac", "bc", False),
        (CommitPolicy.QUORUM, "ab", "ab", "a", "b", True),
        (CommitPolicy.QUORUM, "abcd", "abcd", "a", "bc", True),
        (CommitPolicy.QUORUM, "abcde", "abcde", "a", "bc", False),
    ],
)
def test_simulated_fault_is_allowed_only_if_enough_complete_replicas_remain(
    policy: CommitPolicy, replicas: str, isr: str, left_out: str, whole: str, enough: bool
) -> None:
    by_quorum = policy is CommitPolicy.QUORUM
    stream: Any = SimpleNamespace(
        config=StreamConfig(commit_policy=policy), electable_replicas=lambda _: replicas if by_quorum else isr
    )
    partition: Any = SimpleNamespace(replicas=replicas, isr=isr)
    assert others_hold_enough(stream, partition, left_out, whole) is enough
