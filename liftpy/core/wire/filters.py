"""Filters: which records of a batch a reader wants, by subject (with NATS's wildcards) and by key. Pure; evaluated by columns.

A subject is looked at once for each distinct subject of a batch; keys are compared as arrays of bytes, all of one length at a time. A
record that has no subject (it came in a producer's batch) fits no subject, one without a key no key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from liftpy.core.base.ids import check_subject, shown
from liftpy.core.wire.batch import RecordBatch
from liftpy.core.wire.batch_columns import BytesColumn, Mask
from liftpy.errors import ConfigError

MAX_SUBJECTS = 64
MAX_KEYS = 256
MAX_FILTER_BYTES = 8192
"""Of all subjects and keys of a filter: it travels with each read."""
_BYTES_AT_ONCE = 1 << 20
"""Of keys that are compared: numpy takes eight times that while it picks them."""
_TEXT = ("utf-8", "surrogateescape")


class SubjectTree:
    """Subjects with wildcards, as a tree of tokens: a lookup does not compare a subject with each of them [A21].

    Args:
        subjects: Well-formed subjects. ``>`` is their last token, if they have one.
    """

    def __init__(self, subjects: Iterable[str]) -> None:
        self._root: dict[str, Any] = {}
        for subject in subjects:
            node = self._root
            for token in subject.split("."):
                node = node.setdefault(token, {})
            node[_END] = {}

    def matches(self, subject: str) -> bool:
        """Return whether one of the subjects stands for ``subject``, which has no wildcards."""
        nodes = [self._root]
        for token in subject.split("."):
            below = []
            for node in nodes:
                if ">" in node and token:
                    return True
                if token in node and token:
                    below.append(node[token])
                if "*" in node and token:
                    below.append(node["*"])
            if not below:
                return False
            nodes = below
        return any(_END in node for node in nodes)


_END = ""
"""Token below which a subject of a tree ends. No well-formed subject has an empty token."""


@dataclass(frozen=True)
class Filter:
    """``subjects``: with wildcards, a record fits if one does; ``keys``: the same. Of both, both must fit; none: everything fits.

    Raises ConfigError beyond a bound, InvalidNameError for what is no subject.
    """

    subjects: tuple[str, ...] = ()
    keys: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if len(self.subjects) > MAX_SUBJECTS or len(self.keys) > MAX_KEYS:
            raise ConfigError(f"a filter has at most {MAX_SUBJECTS} subjects and {MAX_KEYS} keys: read with several consumers")
        for subject in self.subjects:
            check_subject(subject)
        for key in self.keys:
            if not isinstance(key, bytes | bytearray | memoryview):
                raise ConfigError(f"key {shown(repr(key))} is no bytes: keys are bytes, encode text first")
        size_bytes = sum(len(subject.encode()) for subject in self.subjects) + sum(map(len, self.keys))
        if size_bytes > MAX_FILTER_BYTES:
            raise ConfigError(f"the subjects and keys of a filter have {size_bytes} bytes, more than {MAX_FILTER_BYTES}")

    def __bool__(self) -> bool:
        return bool(self.subjects or self.keys)

    @cached_property
    def _tree(self) -> SubjectTree:
        return SubjectTree(self.subjects)

    def mask(self, batch: RecordBatch) -> Mask:
        """bool[record_count]: which records fit. Nothing of a control batch does. CorruptionError as of ``RecordBatch.columns``."""
        if batch.header.control or not batch.record_count:
            return np.zeros(batch.record_count, dtype=np.bool_)
        columns = batch.columns
        fits = np.ones(batch.record_count, dtype=np.bool_)
        if self.subjects:
            if columns.subjects is None:
                return np.zeros(batch.record_count, dtype=np.bool_)
            names = [(name or b"").decode(*_TEXT) for name in columns.subjects.entries.to_list()]
            fitting = np.fromiter(map(self._tree.matches, names), dtype=np.bool_, count=len(names))
            fits &= fitting[columns.subjects.index]
        if self.keys:
            fits &= _is_one_of(columns.keys, self.keys) if columns.keys is not None else False
        return fits


def _is_one_of(column: BytesColumn, wanted: Sequence[bytes]) -> Mask:
    """Return a mask of the records whose bytes are in ``wanted``."""
    ends = column.ends.astype(np.int64)
    lengths = np.diff(ends, prepend=0)
    data = np.frombuffer(column.data, dtype=np.uint8)
    found = np.zeros(len(ends), dtype=np.bool_)
    for length in {len(key) for key in wanted}:
        of_length = np.array([key for key in wanted if len(key) == length], dtype=f"S{length or 1}")
        places = np.flatnonzero(lengths == length)
        step = max(_BYTES_AT_ONCE // max(length, 1), 1)
        for first in range(0, len(places), step):
            some = places[first : first + step]
            held = data[(ends[some] - length)[:, None] + np.arange(length)]
            found[some] = np.isin(held.view(f"S{length}").ravel(), of_length) if length else True
    return found & column.valid() if column.validity is not None else found


NOTHING_LEFT_OUT = Filter()
