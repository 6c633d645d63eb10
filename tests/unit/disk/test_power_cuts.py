"""Test each disk operation with a power cut after any system call, and that the check detects a missing flush.

Shows S1, S5, S7, S12, M2, M8.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.disk.primitives import PRIMITIVES, Primitive
from tests.unit.disk.recording import Recorder, cuts, put_down


def record(primitive: Primitive, folder: Path, ignored: frozenset[str] = frozenset()) -> Recorder:
    folder.mkdir()
    recorder = Recorder(folder, ignored)
    with recorder.recording():
        primitive.play(recorder, folder)
    return recorder


def broken(primitive: Primitive, recorder: Recorder, folder: Path) -> str:
    """The first cut after which a promise does not hold, '' if there is none."""
    for made, kind, left in cuts(recorder.calls):
        promised = [promise.what for promise in recorder.promises if promise.calls <= made]
        put_down(left, folder)
        try:
            primitive.holds(folder, promised)
        except Exception as error:
            last = recorder.calls[made - 1] if made else "nothing"
            return f"cut after call {made} ({last}), {kind}: {type(error).__name__}: {error}; promised {promised[-2:]}"
    return ""


@pytest.mark.parametrize("name", PRIMITIVES)
def test_disk_operation_interrupted_by_any_power_cut_leaves_the_old_or_the_new_data(name: str, tmp_path: Path) -> None:
    recorder = record(PRIMITIVES[name], tmp_path / "live")
    assert len(recorder.promises) > 1
    assert broken(PRIMITIVES[name], recorder, tmp_path / "left") == ""


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, p in PRIMITIVES.items() for kind in sorted(p.needs)])
def test_power_cut_check_fails_for_a_disk_operation_whose_flush_was_removed(name: str, kind: str, tmp_path: Path) -> None:
    recorder = record(PRIMITIVES[name], tmp_path / "live", frozenset({kind}))
    assert broken(PRIMITIVES[name], recorder, tmp_path / "left"), f"without any flush of a {kind} nothing is missed"
