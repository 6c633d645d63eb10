"""Test how much space of a file system a process counts as free."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from sidecar.disk import files
from sidecar.disk.files import DirectoryStorage, may_use_reserved_blocks
from tests.each import each


@each("of_root", [True, False])
def test_free_bytes_of_root_include_the_reserved_blocks(of_root: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "may_use_reserved_blocks", lambda: of_root)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=2, f_bfree=5, f_frsize=4096))
    assert DirectoryStorage(tmp_path).free_bytes() == (5 if of_root else 2) * 4096


@each(
    "user, uid_map, allowed",
    [
        (0, "         0          0 4294967295\n", True),
        (0, "         0     100000      65536\n", False),
        (0, None, False),
        (1000, "         0          0 4294967295\n", False),
    ],
)
def test_reserved_blocks_are_for_root_outside_a_user_namespace(
    user: int, uid_map: str | None, allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    path = tmp_path / "uid_map"
    path.unlink(missing_ok=True)
    if uid_map is not None:
        path.write_text(uid_map)
    assert may_use_reserved_blocks(path) is allowed
