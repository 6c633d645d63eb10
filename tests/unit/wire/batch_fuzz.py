"""A mutational fuzzer of the batch parser: ``python -m tests.unit.wire.batch_fuzz [--count N] [--seed S]``.

Whole batches are damaged in a few bytes and given a right CRC again, so that the damage gets past it into the columns. Whatever
comes out, the parser and every column either give an answer or raise StorageError, in bounded time and memory.
"""

from __future__ import annotations

import argparse
import random
import time

import crc32c

from liftpy.config import Codec
from liftpy.core.log.arrow import to_arrow
from liftpy.core.wire.batch import build_filler, build_remains, parse_batch, split_batches
from liftpy.errors import StorageError
from tests.batches import build_batch


def corpus() -> list[bytes]:
    """Batches of every kind."""
    values: list[bytes | None] = [b"first", None, b"", b"x" * 70, b"last"]
    columns = {
        "keys": [b"k", b"k", None, b"", b"kk"],
        "headers": [None, [("a", b"1"), ("a", b"2")], [], [("Nats-Msg-Id", b"7")], None],
        "subjects": ["s.a", "s.b", "s.a", "s.a", ""],
        "replies": [None, "_INBOX.1", None, "_INBOX.2", "_INBOX.3"],
        "timestamps_ns": [1, 2, 3, 4, 5],
    }
    whole = [build_batch(values, base_offset=7, codec=codec, **columns) for codec in Codec]  # type: ignore[arg-type]
    alone = [build_batch(values, **{name: column}) for name, column in columns.items()]  # type: ignore[arg-type]
    remains = build_remains(parse_batch(build_batch([b"a", b"b"], producer_id=7, base_sequence=3, note=bytes(24))))
    return [*whole, *alone, build_batch([b"a"], offset_deltas=[3]), build_filler(4, 9, 1, 1), remains]


def damaged(rng: random.Random, batches: list[bytes]) -> bytes:
    """One of the batches (or two), with a few bytes changed, cut out or added, under a right CRC."""
    data = bytearray(b"".join(rng.sample(batches, rng.choice((1, 1, 2)))))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(4, len(data))
        match rng.randrange(5):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + 4] = rng.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x80", rng.randbytes(4)))
            case 2:
                del data[at : at + rng.randint(1, 9)]
            case 3:
                data[at:at] = rng.randbytes(rng.randint(1, 9))
            case _:
                data[8:12] = (len(data) + rng.choice((0, 0, 0, -1, 1))).to_bytes(4, "little")
    size = int.from_bytes(data[8:12], "little")
    data[:4] = crc32c.crc32c(bytes(data[4:size])).to_bytes(4, "little")
    return bytes(data)


def survives(data: bytes) -> bool:
    """Parse everything; whether it parsed. Raises what is not a StorageError."""
    try:
        batches = split_batches(data)
        for batch in batches:
            list(batch.records())
        to_arrow(batches)
    except StorageError:
        return False
    return True


def fuzz(count: int, seed: int) -> int:
    """``count`` damaged buffers; return how many parsed all the same."""
    rng, batches = random.Random(seed), corpus()
    parsed = 0
    for number in range(count):
        data = damaged(rng, batches)
        try:
            parsed += survives(data)
        except Exception as error:
            raise AssertionError(f"seed {seed}, number {number}: {error!r} for {data.hex()}") from error
    return parsed


def main() -> None:
    """Run and print how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    start = time.perf_counter()
    parsed = fuzz(given.count, given.seed)
    print(f"{given.count} buffers in {time.perf_counter() - start:.0f} s, {parsed} parsed, the others were refused")


if __name__ == "__main__":
    main()
