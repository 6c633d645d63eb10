"""Test roles of services, and promotions that wait for them, by the scripts in ``golden``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stories import Story, read_stories
from tests.unit.services.golden.script import SessionsPlayer

STORIES = [pytest.param(story, id=story.title) for story in read_stories(Path(__file__).parent / "golden")]


@pytest.mark.parametrize("story", STORIES)
def test_golden_script_of_service_sessions_has_the_recorded_results(story: Story) -> None:
    assert story.play(SessionsPlayer()) == list(story.lines), "python -m tests.unit.services.golden writes the results anew"
