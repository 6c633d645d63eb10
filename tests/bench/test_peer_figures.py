"""How the figures of many systems are made of their runs; the systems themselves are measured by the commands."""

from __future__ import annotations

import sys

import pytest

from tests.bench.peer import consume
from tests.bench.peer.batches import OURS, measured, median, row, with_ratios
from tests.clients.build import MissingError, Program

_PRINTS = 'print(\'go\', flush=True); print(\'{"acked": 200, "took_s": 4.0, "cpu_s": 0.5}\')'


def test_a_process_is_measured_from_the_moment_it_is_warm() -> None:
    run = measured([sys.executable, "-c", _PRINTS], None, [])
    assert run == {"acked": 200, "took_s": 4.0, "cpu_s": 0.5, "all_cpu_s": 0.5}
    assert row("peer", 100, run) == {"system": "peer", "size_bytes": 100, "records_per_s": 50.0, "all_cpu_us": 2500.0}
    with pytest.raises(SystemExit, match="fails with 3"):
        measured([sys.executable, "-c", "raise SystemExit(3)"], None, [])


def test_ratios_are_of_medians_at_the_same_size() -> None:
    def of(system: str, size_bytes: int, *rates: float) -> dict[str, object]:
        runs = [{"system": system, "size_bytes": size_bytes, "records_per_s": rate, "all_cpu_us": 1 / rate} for rate in rates]
        return median(runs)

    found = with_ratios([of(OURS, 100, 10, 900, 800), of(OURS, 1000, 90), of("peer", 100, 400, 1, 7000), of("peer", 1000, 180)])
    assert [(one["system"], one["records_per_s"], one["ours_to_theirs"]) for one in found] == [
        (OURS, 800, 1.0),
        (OURS, 90, 1.0),
        ("peer", 400, 2.0),
        ("peer", 180, 0.5),
    ]


def test_a_peer_whose_tools_are_not_here_is_left_out_with_the_reason() -> None:
    with pytest.raises(MissingError, match="no a-tool-that-nobody-has here"):
        Program(name="peer", sources="peer", tools=("a-tool-that-nobody-has",), build="", run=("./peer",)).ready()


def test_readers_are_compared_with_those_of_their_kind_and_size() -> None:
    def of(system: str, how: str, size_bytes: int, acked: int, all_cpu_s: float) -> consume.Row:
        run = {"acked": acked, "took_s": 2.0, "cpu_s": 1.0, "all_cpu_s": all_cpu_s}
        return consume.row(system, how, size_bytes, run)

    found = consume.with_ratios(
        [
            of(consume.OURS["liftpy-batch"], "liftpy-batch", 100, 4000, 2.0),
            of(consume.OURS["liftpy-values"], "liftpy-values", 100, 2000, 2.0),
            of(consume.OURS["liftpy-record"], "liftpy-record", 100, 1000, 2.0),
            of("theirs, many", "fetch", 100, 500, 2.0),
            of("theirs, one", "pull", 100, 500, 2.0),
        ]
    )
    assert [(one["kind"], one["records_per_s"], one["client_cpu_us"]) for one in found[2:4]] == [
        ("record", 500.0, 1000.0),
        ("batch", 250.0, 2000.0),
    ]
    assert [(one["ours_to_theirs"], one["ours_to_theirs_cpu"]) for one in found] == [
        (0.5, 0.5),
        (1.0, 1.0),
        (1.0, 1.0),
        (4.0, 4.0),
        (2.0, 2.0),
    ]
