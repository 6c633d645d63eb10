"""Play all stories, and replace their results: ``python -m tests.unit.publish.golden``."""

from __future__ import annotations

from pathlib import Path

from tests.stories import rewrite_stories
from tests.unit.publish.golden.script import ProducerPlayer

rewrite_stories(Path(__file__).parent, ProducerPlayer)
