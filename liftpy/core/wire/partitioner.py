"""Maps a key to a partition, as Kafka's default partitioner does: murmur2, then the remainder. Pure.

Source: Austin Appleby's MurmurHash2, seed 0x9747b28c, unsigned. Arrays of keys are hashed in groups of equal length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from liftpy.core.wire.batch import ByteArray

_SEED, _M, _R = 0x9747B28C, 0x5BD1E995, 24
_U32 = 0xFFFF_FFFF
_POSITIVE = 0x7FFF_FFFF


def murmur2(key: bytes) -> int:
    """Return the unsigned murmur2 hash of ``key``."""
    length = len(key)
    hashed = (_SEED ^ length) & _U32
    for at in range(0, length - 3, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _M & _U32
        word = (word ^ (word >> _R)) * _M & _U32
        hashed = (hashed * _M & _U32) ^ word
    if length % 4:
        hashed = (hashed ^ int.from_bytes(key[length - length % 4 :], "little")) * _M & _U32
    hashed = (hashed ^ (hashed >> 13)) * _M & _U32
    return hashed ^ (hashed >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of ``key``, from 0 to ``partitions`` - 1. ``partitions``: number of partitions."""
    return (murmur2(key) & _POSITIVE) % partitions


def partitions_of(keys: Sequence[bytes], partitions: int) -> NDArray[np.int64]:
    """Return the partition of each key as int64[len(keys)]."""
    lengths = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
    hashed = np.empty(len(keys), dtype=np.uint32)
    for length in np.unique(lengths).tolist():
        at = np.flatnonzero(lengths == length)
        data = np.frombuffer(b"".join([keys[i] for i in at.tolist()]), dtype=np.uint8).reshape(len(at), length)
        hashed[at] = _hashes(data)
    return (hashed & np.uint32(_POSITIVE)).astype(np.int64) % partitions


def hashes_of_column(keys: ByteArray) -> NDArray[np.uint32]:
    """Return the hash of each key as uint32[len(keys)]. A null is hashed as no bytes."""
    starts, lengths = keys.offsets[:-1], keys.lengths
    data = np.frombuffer(keys.data, dtype=np.uint8)
    hashed = np.empty(len(keys), dtype=np.uint32)
    for length in np.unique(lengths).tolist():
        at = np.flatnonzero(lengths == length)
        hashed[at] = _hashes(data[starts[at][:, None] + np.arange(length)])
    return hashed


def partitions_of_column(keys: ByteArray, partitions: int) -> NDArray[np.int64]:
    """Return the partition of each key as int64[len(keys)]. A null is hashed as no bytes."""
    return (hashes_of_column(keys) & np.uint32(_POSITIVE)).astype(np.int64) % partitions


def _hashes(keys: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the hashes of ``keys``, uint8[n, length] with one key per row, as uint32[n]."""
    count, length = keys.shape
    m = np.uint32(_M)
    hashed = np.full(count, (_SEED ^ length) & _U32, dtype=np.uint32)
    whole = length - length % 4
    words = np.ascontiguousarray(keys[:, :whole]).view("<u4")
    for column in range(whole // 4):
        word = words[:, column] * m
        hashed = (hashed * m) ^ ((word ^ (word >> np.uint32(_R))) * m)
    if length % 4:
        rest = np.zeros((count, 4), dtype=np.uint8)
        rest[:, : length % 4] = keys[:, whole:]
        hashed = (hashed ^ rest.view("<u4")[:, 0]) * m
    hashed = (hashed ^ (hashed >> np.uint32(13))) * m
    return hashed ^ (hashed >> np.uint32(15))
