"""Columns of a state file are made in slices, so that a node's event loop has its turn meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_derived_budget import an_id, take

from liftpy.ingest import last_of_subjects, packing, recent_ids
from liftpy.ingest.recent_ids import RecentIds


def test_they_are_the_same_bytes_in_short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def array(values: Any, kind: Any) -> Any:
        sizes.append(len(values))
        return np.array(values, kind)

    monkeypatch.setattr(packing, "SLICE", 4)
    monkeypatch.setattr(packing, "np", SimpleNamespace(array=array))
    numbers = list(range(11))
    assert packing.packed(numbers, np.uint32) == np.array(numbers, np.uint32).tobytes()
    assert packing.packed([], np.int64) == packing.joined([]) == b""
    assert packing.joined([b"%d" % n for n in numbers]) == b"012345678910"
    assert sizes == [4, 4, 3]


def test_ids_and_subjects_are_packed_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = RecentIds(120, 1 << 20, lambda: 0)
    for offset in range(9):
        take(made, offset, message_id=an_id(offset))
    made.committed(8)
    subjects = {f"s.{number}": number for number in range(9)}
    whole = made.snapshot()(), last_of_subjects._encoded(subjects)
    calls: list[int] = []
    real = packing.packed

    def packed(values: Any, kind: Any) -> bytes:
        calls.append(len(values))
        return real(values, kind)

    monkeypatch.setattr(packing, "SLICE", 2)
    for module in (recent_ids, last_of_subjects):
        monkeypatch.setattr(module, "packed", packed)
    assert (made.snapshot()(), last_of_subjects._encoded(subjects)) == whole
    assert calls == [9] * 7, "no column goes another way"
