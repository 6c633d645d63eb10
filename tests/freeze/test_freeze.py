"""Test the freeze checks that need no long run."""

from __future__ import annotations

import json

import pytest

from tests.freeze.__main__ import EXPECTED, differences, expect, read, unexpected
from tests.freeze.parts import PARTS, digest


@pytest.mark.parametrize("part", ["protobuf", "wire"])
def test_freeze_check_of_recorded_bytes_and_fields_finds_no_difference(part: str) -> None:
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    different = unexpected(part, read(part), PARTS[part](0, 1), expected)
    assert not different, f"{different}: see python -m tests.freeze check --part {part} --diff"


def test_freeze_simulator_seeds_reproduce_their_recorded_trace() -> None:
    for part in ("members", "queues", "ordered"):
        assert PARTS[part](1, 1)["0001"] == read(part)["0001"], part


def test_freeze_check_reports_unlisted_differences_and_listed_entries_without_a_difference() -> None:
    before, now = {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "20", "d": "4"}
    assert differences(before, now) == ["b", "c", "d"]
    assert differences(before, {"b": "20"}, partial=True) == ["b"]
    expected = {"help": {"a": {"now": "gone", "why": "removed"}, "b": {"now": digest("20"), "why": "renamed"}}}
    assert unexpected("help", before, now, expected) == [
        "help: c differs", "help: d differs", "help: a is listed as an expected difference, and does not differ",
    ]  # fmt: skip


def test_freeze_check_reports_a_listed_difference_that_changed() -> None:
    before, expected = {"a": "1", "b": "2"}, {"help": {"a": {"now": digest("10"), "why": "renamed"}}}
    assert unexpected("help", before, {"a": "10", "b": "2"}, expected) == []
    assert unexpected("help", before, {"a": "11", "b": "2"}, expected) == [
        "help: a differs in another way than expected (renamed)"
    ]


def test_freeze_expect_command_adds_new_and_removes_obsolete_entries() -> None:
    before, now = {"a": "1", "b": "2", "c": "3"}, {"a": "10", "b": "2"}
    expected = {"help": {"b": {"now": digest("20"), "why": "was another"}}}
    assert expect("help", before, now, expected, "renamed") == 2
    assert expected == {"help": {"a": {"now": digest("10"), "why": "renamed"}, "c": {"now": "gone", "why": "renamed"}}}
    assert unexpected("help", before, now, expected) == []
