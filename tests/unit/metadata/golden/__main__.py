"""Write the results of all stories anew: ``python -m tests.unit.metadata.golden``."""

from __future__ import annotations

from tests.unit.metadata.golden.script import rewrite

rewrite()
