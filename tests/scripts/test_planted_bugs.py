"""Each script fails when one of the bugs in its ``KILLS`` is planted.

The first bug of each script is brought back (``tests.simulation.mutants.catalogue``), and at least one test of the script has to break.
``python -m tests.simulation.mutants`` brings back all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.noticing import BY_NAME, noticed, pairs

ALL = pairs()
PAIRS = list({path: (path, name) for path, name in reversed(ALL)}.values())
"""Each script with the first bug that it names."""


@pytest.mark.long
@pytest.mark.parametrize(("path", "name"), PAIRS, ids=[f"{path.stem[5:]}-{name}" for path, name in PAIRS])
def test_fault_script_fails_with_its_planted_bug(path: Path, name: str) -> None:
    assert noticed(path, name), f"{path.name} does not notice {name!r}"


def test_fault_scripts_name_bugs_of_the_catalogue() -> None:
    assert {name for _, name in ALL} <= BY_NAME.keys()
