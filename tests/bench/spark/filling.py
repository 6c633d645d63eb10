"""A stream of noise that a node serves from memory: what the benchmark of archives reads."""

from __future__ import annotations

import random

from liftpy.core.wire.batch import build_batch
from tests.fake_node import FakeNode

STREAM = "bench"


def fill(node: FakeNode, records: int, value_bytes: int, batch_records: int) -> None:
    """``records`` in two partitions, new noise for each batch, or Parquet would store a dictionary."""
    source = random.Random(1)
    keys = [b"%08d" % i for i in range(batch_records)]
    for log in node.add_stream(STREAM, partitions=2).partitions:
        for base in range(0, records // 2, batch_records):
            noise = source.randbytes(value_bytes * batch_records)
            values = [noise[i * value_bytes : (i + 1) * value_bytes] for i in range(batch_records)]
            log.append(build_batch(values, keys=keys, base_offset=base, leader_epoch=1, timestamp_ns=base))
