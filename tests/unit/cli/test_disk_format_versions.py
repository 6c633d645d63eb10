"""Test that ``sidecar/cli/upgrade.py`` lists every disk format with its version in the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from liftpy.core.metadata.features import FEATURES, SUPPORTED_LEVELS
from sidecar.cli.upgrade import DISK_FORMATS
from tests.each import each

ROOT = Path(__file__).resolve().parents[3]
LEVELS = range(SUPPORTED_LEVELS.least, SUPPORTED_LEVELS.most + 1)
ELSEWHERE = {"liftpy/core/wire/envelope.py": "the wire's"}


@each("name", DISK_FORMATS)
def test_disk_format_table_newest_version_equals_the_constant_in_the_code(name: str) -> None:
    found = DISK_FORMATS[name]
    module, constant = found.code.split(":")
    newest = getattr(importlib.import_module(module), constant)
    newest = newest if isinstance(newest, int) else newest[4]  # a magic with its version behind it
    assert newest == max(found.writes.values()) == max(found.reads)
    assert set(found.writes.values()) <= set(found.reads)
    for level in LEVELS[:-1]:
        assert found.is_cache or found.written_at(level) in found.reads, "N reads what N - 1 wrote at any level"
    assert set(found.writes) <= {feature.level for feature in FEATURES}


def test_feature_level_that_allows_a_downgrade_adds_no_disk_format_version() -> None:
    for feature in FEATURES[1:]:
        brings = {name for name, found in DISK_FORMATS.items() if feature.level in found.writes}
        assert not (brings and feature.has_way_back), (feature, brings)


def test_disk_format_table_contains_each_version_constant_of_the_code_base() -> None:
    names = re.compile(r"^(?:_MAGIC, )?(_?(?:VERSION|FORMAT)) = (?:b\"\w+\", )?\d+$", re.MULTILINE)
    known = {found.code.split(":")[0].replace(".", "/") + ".py" for found in DISK_FORMATS.values()}
    found = {
        str(path.relative_to(ROOT))
        for folder in ("liftpy", "sidecar")
        for path in (ROOT / folder).rglob("*.py")
        if names.search(path.read_text(encoding="utf-8"))
    }
    assert found - known - ELSEWHERE.keys() == set()
