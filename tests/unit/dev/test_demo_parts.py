"""Test what the demo reports when a part of it fails. tests/system/test_demo.py runs the whole demo."""

from __future__ import annotations

import asyncio
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from liftpy.errors import ConfigError, LiftError, UnavailableError
from sidecar.dev import demo_flights, demo_steps
from sidecar.dev.demo_spark import RECORDS_FILE, RESULT_FILE
from sidecar.dev.demo_steps import LineProcess, Step, first_difference


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


# ---- steps -----------------------------------------------------------------------------------------------------------------


def test_demo_comparison_of_different_records_returns_the_offset_of_the_first_difference() -> None:
    assert first_difference([b"a"], [b"a"]) == ""
    assert first_difference([b"a", b"b"], [b"a", b"c"]) == "offset 1: b'c' where b'b' was sent"
    assert first_difference([b"a", b"b"], [b"a"]) == "1 records came back, 2 were sent"
    assert first_difference([b"a"], [b"a", b"d"]) == "2 records came back, 1 were sent"


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
