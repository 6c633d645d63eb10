"""One decoder under so many inputs: one kind of error, no hang, bounded memory; and what is taken means what it says."""

from __future__ import annotations

import contextlib
import gc
import random
import time
import tracemalloc
from dataclasses import dataclass

from tests.fuzz.decoder import Decoder
from tests.fuzz.mutate import bytes_of

MAX_S = 0.5
"""Of CPU, for one input."""
_MEASURE_EVERY = 200
"""How often an input's memory is measured, which makes it slow."""


@dataclass
class Figures:
    """``taken``: decoded without an error; ``slowest_s`` (of CPU) and ``most_bytes``: of one input."""

    name: str
    count: int = 0
    taken: int = 0
    slowest_s: float = 0.0
    most_bytes: int = 0
    seconds: float = 0.0


def damaged(rng: random.Random, decoder: Decoder) -> bytes:
    """A sample, spoiled; often with sums and sizes that are right again."""
    sample = rng.choice(decoder.samples)
    if decoder.make is not None and rng.random() < 0.5:
        return decoder.make(rng, sample)
    data = bytes_of(rng, sample, tuple(decoder.samples))
    return decoder.mend(data) if decoder.mend is not None and len(data) > 30 and rng.random() < 0.8 else data


def judge(decoder: Decoder, data: bytes) -> bool:
    """Whether it was taken. Raises AssertionError where its meaning does not come through, and what is not of its errors."""
    try:
        meaning = decoder.call(data)
    except decoder.errors:
        return False
    if decoder.again is not None and meaning is not None:
        once = decoder.again(meaning)
        twice = decoder.again(decoder.call(once))
        assert once == twice, "written and read again it means something else"
    return True


def fuzz(decoder: Decoder, count: int, seed: int) -> Figures:
    """``count`` inputs."""
    rng = random.Random(f"{seed}/{decoder.name}")
    found = Figures(decoder.name)
    for sample in decoder.samples:  # what is imported or made once is no part of an input's time
        with contextlib.suppress(*decoder.errors):
            decoder.call(sample)
    gc.collect()
    gc.freeze()  # nor is the collection of what all else has made before; it stays so, or the next one would look through it again
    began = time.perf_counter()
    _feed(decoder, count, seed, rng, found)
    found.seconds = time.perf_counter() - began
    return found


def _feed(decoder: Decoder, count: int, seed: int, rng: random.Random, found: Figures) -> None:
    for number in range(count):
        data = damaged(rng, decoder)
        try:
            if number % _MEASURE_EVERY == 0:
                found.most_bytes = max(found.most_bytes, _memory(decoder, data))
            start = time.thread_time()
            found.taken += judge(decoder, data)
            spent = time.thread_time() - start
            found.slowest_s = max(found.slowest_s, spent)
            assert spent <= MAX_S, f"took {spent:.2f} s"
            assert found.most_bytes <= decoder.memory_bytes, f"took {found.most_bytes} bytes"
        except Exception as error:
            raise AssertionError(
                f"{decoder.name}, seed {seed}, number {number}: {error!r} for {len(data)} bytes {data[:400].hex()}"
            ) from error
        found.count += 1


def _memory(decoder: Decoder, data: bytes) -> int:
    tracemalloc.start()
    try:
        judge(decoder, data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
