"""Play all stories, and replace their results: ``python -m tests.unit.metadata.golden``."""

from __future__ import annotations

from pathlib import Path

from tests.stories import rewrite_stories
from tests.unit.metadata.golden.script import PartitionPlayer

rewrite_stories(Path(__file__).parent, PartitionPlayer)
