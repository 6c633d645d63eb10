"""Test elections, ISR changes, reassignments and restarts of one partition by the scripts in ``golden`` [C4]."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stories import Story, read_stories
from tests.unit.metadata.golden.script import PartitionPlayer

STORIES = [pytest.param(story, id=story.title) for story in read_stories(Path(__file__).parent / "golden")]


@pytest.mark.parametrize("story", STORIES)
def test_golden_script_of_a_partition_has_the_recorded_results(story: Story) -> None:
    assert story.play(PartitionPlayer()) == list(story.lines), "python -m tests.unit.metadata.golden writes the results anew"
