"""Modules that have a new name: the old one still imports the same module."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from liftpy.core.base.renamed import MODULES


@pytest.mark.parametrize("old", MODULES)
def test_import_of_an_old_name_gives_the_module_of_the_new_name(old: str) -> None:
    new = importlib.import_module(MODULES[old])
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=MODULES[old]):
        assert importlib.import_module(old) is new
    assert new.__spec__ is not None
    assert new.__spec__.name == MODULES[old], "as if it had been imported by its new name"


def test_import_of_a_merged_module_from_its_old_package_works() -> None:
    program = (
        "from liftpy.group import shown, limits; from liftpy.wire._pb import group_pb2; print(shown.__name__, limits.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["liftpy.core.groups.coordinator", "liftpy.core.groups.limits"]
