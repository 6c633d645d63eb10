"""Test that the columns of a state file are built in slices, between which the event loop runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from liftpy.core.publish import dedup_window, last_per_subject, log_state_part, state_file
from liftpy.core.publish.dedup_window import RecentIds
from liftpy.core.publish.state_file import State, StateCapture, decode_state, state_name
from tests.unit.publish.test_dedup_memory_budget import an_id, take


class Watched:
    """numpy, and how many values were given to it, or asked of it, at once."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def array(self, values: Any, kind: Any) -> Any:
        self.sizes.append(len(values))
        return np.array(values, kind)

    def cumsum(self, values: Any, **more: Any) -> Any:
        self.sizes.append(len(values))
        return np.cumsum(values, **more)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    made = Watched()
    monkeypatch.setattr(log_state_part, "SLICE", 4)
    monkeypatch.setattr(log_state_part, "np", made)
    return made


def test_state_column_packed_in_chunks_equals_one_array(watched: Watched) -> None:
    numbers, texts = list(range(11)), [b"%d" % n for n in range(11)]
    assert b"".join(log_state_part.pack_numbers(numbers, np.uint32)) == np.array(numbers, np.uint32).tobytes()
    assert log_state_part.pack_numbers([], np.int64) == log_state_part.join_texts([]) == []
    assert log_state_part.join_texts(texts) == [b"0123", b"4567", b"8910"]
    assert watched.sizes == [4, 4, 3]
    watched.sizes.clear()
    assert list(log_state_part.numbers(np.array(numbers))) == numbers
    assert list(log_state_part.cut_up(b"xx012345678910", 2, np.array([len(text) for text in texts]))) == texts
    assert watched.sizes == [4, 4, 3]
    assert list(log_state_part.cut_up(b"", 0, np.array([], np.uint32))) == []


def test_state_columns_of_message_ids_and_subjects_are_packed_in_chunks(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup_window, "np", watched)
    monkeypatch.setattr(last_per_subject, "np", watched)
    made = RecentIds(120, 1 << 20, lambda: 0)
    for offset in range(9):
        take(made, offset, message_id=an_id(offset))
    made.committed(8)
    subjects = {f"s.{number}": number for number in range(9)}
    ids, kept = made.snapshot()(), last_per_subject._encode(subjects)
    assert watched.sizes == [4] * 5 + [4] * 5 + [1] * 5 + [4, 4, 1] * 2
    assert [len(pieces) for pieces in (ids, kept)] == [1 + 1 + 6 * 3, 1 + 3 * 3], "no piece is a whole column"
    again = RecentIds(120, 1 << 20, lambda: 0)
    again.begin(9)
    again.restore(b"".join(ids), 9)
    assert [again.find(an_id(offset), 0) for offset in range(9)] == [(offset, offset) for offset in range(9)]
    assert last_per_subject._decode(b"".join(kept), 9) == subjects


def test_state_file_is_written_in_chunks_without_a_joined_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    storage: Any = SimpleNamespace(
        replace=lambda name, data: given.append((name, data)), names=list, load=lambda name: b"".join(given[-1][1])
    )
    pieces = [b"x" * 5, b"y" * 7]
    unwritten = StateCapture("s-u1/0", 9, 3, {"ids": (1, lambda: pieces), "subjects": (2, list)})
    size_bytes = unwritten.write(storage)
    [(name, data)] = given
    assert (name, size_bytes) == (state_name(9), sum(map(len, data)))
    assert all(any(piece is one for one in data) for piece in pieces), "not copied into one"
    assert decode_state(b"".join(data)) == State("s-u1/0", 9, 3, {"ids": (1, b"x" * 5 + b"y" * 7), "subjects": (2, b"")})
    monkeypatch.setattr(state_file, "MAX_STATE_BYTES", size_bytes - 1)
    assert (unwritten.write(storage), len(given)) == (0, 1)
