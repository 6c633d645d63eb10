"""``python -m tests.bench.log [--short] [--only KIND] [--json]``: the log beside ``os.write``, ``mmap`` and Arrow, measured in one run.

Every figure is the best of several rounds on one core; a ratio is against the baseline of its line. ``--short`` is what the
test suite runs: the same code on little data.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pyarrow as pa

from liftpy.config import FlushPolicy, StreamConfig
from liftpy.core.log.arrow import to_arrow
from liftpy.core.log.log import Log
from liftpy.core.wire.batch import build_batch, split_batches
from sidecar.disk.files import DirectoryStorage
from sidecar.runtime.memory import retain_freed_memory

ROUNDS = 7
Row = dict[str, Any]


def best(run: Callable[[], float], baseline: Callable[[], float], rounds: int = ROUNDS) -> tuple[float, float]:
    """The shortest of several runs of each, in seconds, taken in turns: what else the machine does then meets both alike."""
    pairs = [(run(), baseline()) for _ in range(rounds)]
    return min(seconds for seconds, _ in pairs), min(seconds for _, seconds in pairs)


def timed(function: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def distinct(value_bytes: int, count: int) -> list[bytes]:
    """``count`` values that share no memory, as publishers send them."""
    return [os.urandom(value_bytes) for _ in range(count)]


class Bench:
    """The benchmarks, over a temporary folder. ``total_bytes``: of values in each of them."""

    def __init__(self, folder: Path, total_bytes: int) -> None:
        self.folder = folder
        self.total_bytes = total_bytes
        self._made = 0

    def log(self, flush: str = "none", segment_bytes: int = 256 << 20) -> Log:
        """A new log in a folder of its own."""
        self._made += 1
        config = StreamConfig(flush=FlushPolicy.parse(flush), segment_bytes=segment_bytes)
        return Log.open(DirectoryStorage(self.folder / str(self._made)), config)[0]

    def forget(self, log: Log) -> None:
        """Remove a log's files, so that one run's dirty pages are not written during the next."""
        assert isinstance(log.storage, DirectoryStorage)
        shutil.rmtree(log.storage.folder)

    def build_and_append(self, value_bytes: int, batch_records: int, flush: str) -> Row:
        """A leader: from a list of values to an appended batch; flushed after each batch, as one publisher would see it."""
        values = distinct(value_bytes, batch_records)
        batches = max(self.total_bytes // (value_bytes * batch_records), 1)
        batches = min(batches, 300 if flush == "always" else 20_000)

        def run() -> float:
            log = self.log(flush)

            def appends() -> None:
                for _ in range(batches):
                    log.append(build_batch(values, base_offset=log.log_end_offset, leader_epoch=1, timestamp_ns=1))
                    if flush == "always":
                        log.flush()

            seconds = timed(appends)
            log.close(clean=False)
            self.forget(log)
            return seconds

        def baseline() -> float:
            blob = b"".join(values)
            descriptor = os.open(self.folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

            def writes() -> None:
                for _ in range(batches):
                    os.write(descriptor, blob)
                    if flush == "always":
                        os.fdatasync(descriptor)

            seconds = timed(writes)
            os.close(descriptor)
            (self.folder / "plain").unlink()
            return seconds

        seconds, plain = best(run, baseline)
        records = batches * batch_records
        name = f"build+append {value_bytes} B x {batch_records}, flush {flush}"
        return {
            "what": name,
            "us_per_record": seconds / records * 1e6,
            "baseline": "os.write of the values",
            "ratio": seconds / plain,
        }

    def received(self, value_bytes: int, total_bytes: int = 0) -> tuple[list[bytes], int]:
        """Fetch responses of about 1 MiB of 1000-record batches, and how many records they hold."""
        values = distinct(value_bytes, 1000)
        responses: list[bytes] = []
        offset = 0
        while sum(map(len, responses)) < (total_bytes or self.total_bytes):
            group = []
            while sum(map(len, group)) < 900_000:
                group.append(build_batch(values, base_offset=offset, leader_epoch=1, timestamp_ns=1))
                offset += 1000
            responses.append(b"".join(group))
        return responses, offset

    def follower_append(self, value_bytes: int) -> Row:
        """A follower: received bytes are checked (CRC) and appended as they are."""
        responses, records = self.received(value_bytes, self.total_bytes // 4)

        def run() -> float:
            log = self.log()

            def appends() -> None:
                for response in responses:
                    log.append_batches(memoryview(response), split_batches(response))

            seconds = timed(appends)
            log.close(clean=False)
            self.forget(log)
            return seconds

        def checks() -> None:
            for response in responses:
                crc32c.crc32c(response)

        def baseline() -> float:
            descriptor = os.open(self.folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            seconds = timed(lambda: [os.write(descriptor, response) for response in responses])
            os.close(descriptor)
            (self.folder / "plain").unlink()
            return seconds

        seconds, plain = best(run, baseline, 4 * ROUNDS)  # short and many: writing to new pages is the noisiest of all
        crc = min(timed(checks) for _ in range(ROUNDS))
        size = sum(map(len, responses))
        return {
            "what": f"follower append {value_bytes} B x 1000",
            "us_per_record": seconds / records * 1e6,
            "gb_per_s": size / seconds / 1e9,
            "x_write_and_crc": seconds / (plain + crc),
            "baseline": "os.write of the same bytes",
            "ratio": seconds / plain,
        }

    def filled(self, value_bytes: int, segment_bytes: int = 256 << 20) -> tuple[Log, int]:
        """A log of received batches whose HW is its end."""
        responses, records = self.received(value_bytes)
        log = self.log(segment_bytes=segment_bytes)
        for response in responses:
            log.append_batches(memoryview(response), split_batches(response, verify=False))
        log.flush()
        log.raise_high_watermark(log.newest_offset)
        return log, records

    def sequential_read(self, value_bytes: int) -> Row:
        """Committed reads of 1 MiB, every byte touched once, as a socket would."""
        log, records = self.filled(value_bytes, segment_bytes=64 << 20)
        log.roll()
        log.flush()
        log.close()
        log = Log.open(DirectoryStorage(self.folder / str(self._made)), log.config)[0]

        def reads() -> None:
            offset = log.log_start_offset
            while offset < log.log_end_offset:
                result = log.read(offset, 1 << 20)
                for chunk in result.chunks:
                    _touch(chunk)
                offset = result.next_offset

        def mapped() -> None:
            for path in sorted((self.folder / str(self._made)).glob("*.log")):
                if path.stat().st_size:
                    with path.open("rb") as file:
                        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                        for position in range(0, len(view), 1 << 20):
                            _touch(view[position : position + (1 << 20)])

        seconds, plain = best(lambda: timed(reads), lambda: timed(mapped))
        return {
            "what": f"sequential read {value_bytes} B x 1000",
            "us_per_record": seconds / records * 1e6,
            "gb_per_s": log.size_bytes / seconds / 1e9,
            "baseline": "mmap of the same files",
            "ratio": seconds / plain,
        }

    def arrow(self, value_bytes: int) -> Row:
        """Record batches into one Arrow batch with all columns, beside a copy of the values."""
        values = distinct(value_bytes, 1000)
        batches = split_batches(b"".join(build_batch(values, base_offset=i * 1000, timestamp_ns=1) for i in range(16)))
        data = np.frombuffer(os.urandom(value_bytes * 16_000), dtype=np.uint8)
        repeat = 20

        def run() -> None:
            for _ in range(repeat):
                to_arrow(batches)

        def copies() -> None:
            for _ in range(repeat):
                data.copy()

        apart = distinct(value_bytes, 16_000)
        seconds, copy = (s / repeat for s in best(lambda: timed(run), lambda: timed(copies)))
        plain = min(timed(lambda: pa.array(apart, pa.binary())) for _ in range(ROUNDS))
        return {
            "what": f"to_arrow {value_bytes} B, 16 batches of 1000",
            "m_records_per_s": 16_000 / seconds / 1e6,
            "us_per_record": seconds / 16_000 * 1e6,
            "baseline": "memcpy of the values",
            "ratio": seconds / copy,
            "times_faster_than_pa_array_of_values": plain / seconds,
        }

    def open_after_crash(self) -> Row:
        """Opening a log that was not closed: the last segment, nearly a full one, is walked; the others are not."""
        log, _ = self.filled(1000, segment_bytes=max(self.total_bytes * 10 // 39, 1 << 20))
        size, last = log.size_bytes, log.segments[-1].size_bytes
        log.close(clean=False)
        folder = self.folder / str(self._made)
        report = {}

        def run() -> float:
            def opens() -> None:
                opened, found = Log.open(DirectoryStorage(folder), log.config)
                report["walked"] = found.walked_bytes
                opened.close(clean=False)

            return timed(opens)

        last_file = max(folder.glob("*.log"))
        seconds, plain = best(run, lambda: timed(last_file.read_bytes), 4)  # the first round fills the page cache
        return {
            "what": f"open after a crash, {size >> 20} MiB",
            "seconds": seconds,
            "walked_mib": report["walked"] / 2**20,
            "last_segment_mib": last / 2**20,
            "baseline": "reading the last segment's file",
            "ratio": seconds / plain,
        }


def _touch(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8)[::64].sum())


def rows(folder: Path, total_bytes: int, *, short: bool, only: str = "") -> list[Row]:
    """The benchmarks whose kind is ``only``, or all, one after the other."""
    bench, sizes = Bench(folder, total_bytes), (100, 1000)
    counts = (1000,) if short else (1, 100, 1000)
    large = Bench(folder / "large", total_bytes if short else 1 << 30)
    kinds: dict[str, list[Callable[[], Row]]] = {
        "append": [
            partial(bench.build_and_append, size, count, flush)
            for flush in ("none", "always", "interval:100")
            for size in sizes
            for count in counts
        ],
        "follower": [partial(bench.follower_append, size) for size in sizes],
        "read": [partial(bench.sequential_read, size) for size in sizes],
        "arrow": [partial(bench.arrow, size) for size in sizes],
        "open": [large.open_after_crash],
    }
    return [run() for kind, runs in kinds.items() if only in ("", kind) for run in runs]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="little data: only shows that everything runs")
    parser.add_argument("--only", default="", choices=["append", "follower", "read", "arrow", "open"], help="one kind")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    retain_freed_memory()  # as the sidecar does
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "large").mkdir()
        found = rows(Path(folder), 4 << 20 if given.short else 128 << 20, short=given.short, only=given.only)
    if given.json:
        print(json.dumps(found))
        return
    for row in found:
        figures = "  ".join(f"{k} {v:.3g}" for k, v in row.items() if isinstance(v, float) and k != "ratio")
        print(f"{row['what']:<46} {figures:<60} {row['ratio']:6.2f} x {row['baseline']}")


if __name__ == "__main__":
    main()
