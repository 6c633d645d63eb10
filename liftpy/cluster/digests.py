"""The digest of what was applied: a chain over all records since feature level 2, one on every controller. Pure.

    digest(n) = BLAKE2b-64(digest(n - 1), index of the entry, its records as protobufs)

Every entry counts, also one that does nothing. It is a part of the image, so that a snapshot carries it on, and of no decision.
"""

from __future__ import annotations

import hashlib

from liftpy.cluster.features import STRICT
from liftpy.cluster.image import ClusterImage
from liftpy.cluster.records import Record, record_to_pb
from liftpy.cluster.steps import PER_STEP, Steps

DIGEST_SIZE = 8
Checkpoint = tuple[int, bytes]
"""(index of the last entry, digest after it); (0, b''): none."""


def digesting(after: ClusterImage, records: tuple[Record, ...]) -> Steps[bytes]:
    """The digest after the entry that made ``after`` of the image before, whose digest it still holds; b'' below level 2."""
    if after.feature_level < STRICT:
        return b""
    chain = hashlib.blake2b(after.digest, digest_size=DIGEST_SIZE)
    chain.update(after.index.to_bytes(8, "big"))
    for number, record in enumerate(records, 1):
        data = record_to_pb(record).SerializeToString(deterministic=True)
        chain.update(len(data).to_bytes(4, "big") + data)
        if number % PER_STEP == 0:
            yield
    return chain.digest()
