"""Play all stories, and replace their results: ``python -m tests.unit.services.golden``."""

from __future__ import annotations

from pathlib import Path

from tests.stories import rewrite_stories
from tests.unit.services.golden.script import SessionsPlayer

rewrite_stories(Path(__file__).parent, SessionsPlayer)
