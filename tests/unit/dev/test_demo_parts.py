"""Test what the demo reports when a part of it fails. tests/system/test_demo.py runs the whole demo."""

from __future__ import annotations

import asyncio
import json
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats.errors
import pyarrow as pa
import pytest

from liftpy.errors import ConfigError, DataLossError, LiftError, UnavailableError
from sidecar.dev import demo_flights, demo_steps
from sidecar.dev.demo_spark import RECORDS_FILE, RESULT_FILE
from sidecar.dev.demo_steps import LineProcess, Positions, Step, first_difference


def flight(carrier: str, delay: str, number: int = 0) -> bytes:
    return f"2013,1,1,1,2,3,4,{number},{delay},{carrier},1545".encode()


LINES = [flight("UA", "11"), flight("UA", "NA"), flight("AA", "-25"), flight("UA", "9"), flight("B6", "NA")]


# ---- the flights -----------------------------------------------------------------------------------------------------------
def test_demo_flight_delays_are_counted_and_summed_by_carrier() -> None:
    assert demo_flights.mean_delays(LINES) == {"UA": (2, 20), "AA": (1, -25)}
    assert demo_flights.mean_delays([]) == {}


def test_demo_flights_are_read_in_order_without_the_header(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", b"\n".join([b"header", *LINES, b""]))
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path / "elsewhere"), str(tmp_path)])
    monkeypatch.setattr(demo_flights.importlib.util, "find_spec", lambda name: found)
    assert demo_flights.read_flights(2) == LINES[:2]
    assert demo_flights.read_flights(1000) == LINES
    monkeypatch.setattr(demo_flights.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'liftpy\[demo\]'"):
        demo_flights.flights_file()


class Wire:
    """Stand in for a connection: acknowledge the publish of the next offset, if it is below ``silent_from``."""

    def __init__(self, silent_from: int) -> None:
        self.stored: set[int] = set()
        self._silent_from = silent_from

    async def request(self, subject: str, line: bytes, timeout: float, headers: dict[str, str]) -> Any:
        offset = int(headers["Nats-Expected-Last-Sequence"])
        if offset >= self._silent_from or offset != len(self.stored):
            raise nats.errors.NoRespondersError
        self.stored.add(offset)
        return SimpleNamespace(data=b'{"stream":"s","seq":%d}' % (offset + 1))


# ---- a leader is lost ------------------------------------------------------------------------------------------------------
class Cluster:
    """Stand in for a client of one stream. ``isr``: its ISR at each request, the last one forever."""

    def __init__(self, wire: Wire, *isr: list[str]) -> None:
        self.wire = wire
        self.isr = list(isr)

    async def stream(self, name: str) -> Any:
        isr = self.isr.pop(0) if len(self.isr) > 1 else self.isr[0]
        return SimpleNamespace(partitions=[SimpleNamespace(isr=isr, replicas=["n2", "n3", "n1"])])

    async def bounds(self, name: str) -> Any:
        return SimpleNamespace(high_watermark=len(self.wire.stored) - 1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_steps, "_PAUSE_S", 0.0)


async def test_demo_failover_publisher_without_acks_raises_unavailable_error(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_steps, "_PATIENCE_S", 0.01)
    wire: Any = Wire(3)
    client: Any = Cluster(wire)
    with pytest.raises(UnavailableError, match="flights was not acknowledged within"):
        await demo_steps._publish(wire, client, "flights", "demo", [b"%d" % n for n in range(10)], 0, 0, 10)


async def test_demo_wait_for_the_isr_raises_after_its_timeout(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = Cluster(Wire(0), ["n1", "n3"], ["n1", "n2", "n3"])
    await demo_steps._until_in_sync(client, "flights")
    monkeypatch.setattr(demo_steps, "_PATIENCE_S", 0.01)
    client.isr = [["n1", "n3"]]
    with pytest.raises(UnavailableError, match=r"is n1, n3 after 0\.01"):
        await demo_steps._until_in_sync(client, "flights")


# ---- steps -----------------------------------------------------------------------------------------------------------------
class Watched:
    """Stand in for a client whose cluster commits the records that the publisher may send."""

    def __init__(self, begun: int = 0) -> None:
        self.at = begun
        self.paces: list[int] = []
        self.begun = begun
        self.stuck = False
        self.admin = self

    def write_line(self, line: str) -> None:
        self.paces.append(int(line))

    async def lines(self) -> AsyncIterator[str]:
        yield str(self.paces[-1] if self.paces else 0)
        await asyncio.Event().wait()

    async def bounds(self, stream: str) -> Any:
        assert stream == "flights"
        if not self.stuck:
            self.at = min(self.at + 3, self.begun + self.paces[-1])
        return SimpleNamespace(high_watermark=self.at - 1, leader="n1")

    async def node_status(self, node: str) -> Any:
        return {"partitions": [{"stream": "flights", "partition": 0, "newest_offset": self.at - 1}]}


async def test_demo_publisher_sends_at_most_the_limit_of_uncommitted_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_steps, "_CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(demo_steps, "AHEAD_RECORDS", 5)
    watched: Any = Watched(begun=10)
    shown: list[Positions] = []
    seconds = await demo_steps._watch(
        watched, watched, range(10, 22), ["n1", "n2"], lambda at: shown.append(Positions(at.sent, at.committed, at.leader))
    )
    assert watched.paces == [0, 5, 8, 11, 12], "by so much ahead, and no further than there is"
    assert [at.committed for at in shown] == sorted(at.committed for at in shown)
    assert (shown[-1].committed, shown[-1].leader) == (22, "n1")
    assert seconds >= 0


async def test_demo_watch_of_a_cluster_without_progress_raises_unavailable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_steps, "_CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(demo_steps, "STALL_S", 0.01)
    watched: Any = Watched()
    watched.stuck = True
    with pytest.raises(UnavailableError, match=r"No progress for 0\.01 s"):
        await demo_steps._watch(watched, watched, range(5), ["n1"], lambda _: None)


async def test_demo_watch_ends_when_the_publisher_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_steps, "_CHECK_INTERVAL_S", 0.0)
    watched: Any = Watched()

    async def lines() -> AsyncIterator[str]:
        yield "0"
        raise LiftError("the demo's publisher failed")

    watched.stuck, watched.lines = True, lines
    with pytest.raises(LiftError, match="publisher failed"):
        await demo_steps._watch(watched, watched, range(5), ["n1"], lambda _: None)


def test_demo_comparison_of_different_records_returns_the_offset_of_the_first_difference() -> None:
    assert first_difference([b"a"], [b"a"]) == ""
    assert first_difference([b"a", b"b"], [b"a", b"c"]) == "offset 1: b'c' where b'b' was sent"
    assert first_difference([b"a", b"b"], [b"a"]) == "1 records came back, 2 were sent"
    assert first_difference([b"a"], [b"a", b"d"]) == "2 records came back, 1 were sent"


@pytest.mark.parametrize(
    ("offsets", "gap"), [([2, 0, 1], False), ([0, 1, 3], True), ([1, 2, 3], True), ([0, 1, 1], True), ([], False)]
)
def test_demo_spark_records_with_an_offset_gap_raise_data_loss_error(offsets: list[int], gap: bool, tmp_path: Path) -> None:
    table = pa.table({"offset": pa.array(offsets, pa.int64()), "value": pa.array([b"%d" % o for o in offsets], pa.binary())})
    with pa.OSFile(str(tmp_path / "r"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    if gap:
        with pytest.raises(DataLossError, match="a record is missing"):
            demo_steps._values_by_offset(tmp_path / "r")
    else:
        assert demo_steps._values_by_offset(tmp_path / "r") == [b"%d" % o for o in sorted(offsets)]


@pytest.mark.parametrize("same", [True, False])
async def test_demo_spark_step_reports_a_result_that_differs_from_the_local_result(same: bool, tmp_path: Path) -> None:
    class Job:
        said: list[str]

        def write_line(self, line: str) -> None:
            self.said.append(line)

        async def expect(self, line: str, timeout_s: float) -> None:
            assert (self.said, line) == (["go"], "done")
            delays = {"UA": [2, 20], "AA": [1, -25]} if same else {"UA": [2, 21]}
            result = {"delays": delays, "compute_s": 2.0, "read_s": 3.0}
            (tmp_path / RESULT_FILE).write_text(json.dumps(result), encoding="utf-8")
            table = pa.table({"offset": range(len(LINES)), "value": LINES})
            with pa.OSFile(str(tmp_path / RECORDS_FILE), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)

    job: Any = Job()
    job.said = []
    (read, table), delays = await demo_steps.compute_by_spark(job, tmp_path, LINES)
    size_bytes = sum(map(len, LINES))
    assert read == Step("read back by Spark", 5, size_bytes, 3.0)
    assert (table.records, table.size_bytes, table.seconds, table.agrees) == (5, size_bytes, 2.0, same)
    assert table.note == ("" if same else "the table computed here differs")
    assert delays == ({"UA": (2, 20), "AA": (1, -25)} if same else {"UA": (2, 21)})


# ---- its helpers -----------------------------------------------------------------------------------------------------------
class Helper:
    """Stand in for an asyncio process."""

    pid = 4321

    def __init__(self, code: int, *lines: bytes, hangs: bool = False) -> None:
        self.stdout = asyncio.StreamReader()
        self.stdout.feed_data(b"".join(lines))
        self.stdout.feed_eof()
        self.stdin: Any = SimpleNamespace(
            write=self.written, close=lambda: self.calls.append("closed"), is_closing=lambda: False
        )
        self.calls: list[Any] = []
        self.code, self.hangs = code, hangs

    def written(self, data: bytes) -> None:
        if self.code:
            raise ConnectionResetError
        self.calls.append(data)

    async def wait(self) -> int:
        if self.hangs and "killed" not in self.calls:
            await asyncio.Event().wait()
        return self.code


def helper(tmp_path: Path, process: Helper, errors: bytes = b"") -> LineProcess:
    (tmp_path / "log").write_bytes(errors)
    return LineProcess("job", process, tmp_path / "log")  # type: ignore[arg-type]


async def test_demo_helper_process_exchanges_lines_and_raises_when_an_expected_line_is_missing(tmp_path: Path) -> None:
    process = Helper(0, b"one \n", b"ready\n", b"later\n")
    job = helper(tmp_path, process)
    job.write_line("go")
    assert process.calls == [b"go\n"]
    await job.expect("ready", 30)
    assert [line async for line in job.lines()] == ["later"]
    with pytest.raises(LiftError, match="printed 'done': it said nothing"):
        await job.expect("done", 30)
    silent = Helper(0)
    silent.stdout = asyncio.StreamReader()
    with pytest.raises(UnavailableError, match=r"did not print 'done' within 0\.01 s"):
        await helper(tmp_path, silent).expect("done", 0.01)


async def test_demo_helper_process_that_fails_reports_its_last_output(tmp_path: Path) -> None:
    job = helper(tmp_path, Helper(3, b"one\n"), b"x" * 5000 + b"\nlast words \n")
    job.write_line("nobody hears it")
    lines = job.lines()
    assert await anext(lines) == "one"
    with pytest.raises(LiftError, match=r"job process of the demo failed: x+\nlast words$"):
        await anext(lines)
    assert len(job.read_last_output()) < 2000


@pytest.mark.parametrize("hangs", [True, False])
async def test_demo_helper_process_is_killed_with_its_process_group(
    hangs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Helper(0, b"left\n", hangs=hangs)
    killed: list[int] = []

    def killpg(group: int, number: int) -> None:
        killed.append(group)
        process.calls.append("killed")
        if not hangs:
            raise ProcessLookupError

    monkeypatch.setattr(demo_steps.os, "killpg", killpg)
    monkeypatch.setattr(demo_steps, "_ABANDON_TIMEOUT_S", 0.02)
    with pytest.raises(ZeroDivisionError):
        async with helper(tmp_path, process):
            raise ZeroDivisionError
    assert (process.calls, killed) == (["closed", "killed"], [4321])
    assert process.stdout.at_eof()
