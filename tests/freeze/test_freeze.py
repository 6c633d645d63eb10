"""The parts of the freeze that need no long run hold, and the check finds what differs."""

from __future__ import annotations

import json

import pytest

from tests.freeze.__main__ import EXPECTED, differences, read, unexpected
from tests.freeze.parts import PARTS


@pytest.mark.parametrize("part", ["protobuf", "wire"])
def test_recorded_bytes_and_fields_are_as_they_were(part: str) -> None:
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    different = unexpected(part, differences(read(part), PARTS[part](0, 1)), expected)
    assert not different, f"{different}: see python -m tests.freeze check --part {part} --diff"


def test_seed_of_each_simulator_is_recorded_and_gives_its_trace_again() -> None:
    for part in ("members", "queues", "ordered"):
        assert PARTS[part](1, 1)["0001"] == read(part)["0001"], part


def test_check_reports_unlisted_differences_and_listed_ones_that_are_none() -> None:
    before, now = {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "20", "d": "4"}
    different = differences(before, now)
    assert different == ["b", "c", "d"]
    assert differences(before, {"b": "20"}, partial=True) == ["b"]
    assert unexpected("help", different, {"help": {"b": "renamed", "a": "renamed"}}) == [
        "help: c differs", "help: d differs", "help: a is listed as an expected difference, and does not differ",
    ]  # fmt: skip
