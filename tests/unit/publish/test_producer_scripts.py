"""Test epochs, sequences and source positions of producers by the scripts in ``golden`` [A3, A4]."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stories import Story, read_stories
from tests.unit.publish.golden.script import ProducerPlayer

STORIES = [pytest.param(story, id=story.title) for story in read_stories(Path(__file__).parent / "golden")]


@pytest.mark.parametrize("story", STORIES)
def test_golden_script_of_producers_has_the_recorded_results(story: Story) -> None:
    assert story.play(ProducerPlayer()) == list(story.lines), "python -m tests.unit.publish.golden writes the results anew"
