"""Test elections, ISR changes and reassignments of one partition by the scripts in ``golden``."""

from __future__ import annotations

import pytest

from tests.unit.metadata.golden.script import FOLDER, Story, read_stories

STORIES = [pytest.param(story, id=story.title) for path in sorted(FOLDER.glob("*.txt")) for story in read_stories(path)]


@pytest.mark.parametrize("story", STORIES)
def test_golden_script_of_a_partition_has_the_recorded_results(story: Story) -> None:
    assert story.play() == list(story.lines), "python -m tests.unit.metadata.golden writes the results anew"
