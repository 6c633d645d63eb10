"""Test what ``liftpy bench`` measures with its options. The measurements themselves are replaced."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest

from sidecar.cli.main import main


@pytest.mark.parametrize(
    ("given", "sizes"),
    [([], (100, 1000)), (["--sizes", "100B,64KiB, 2000"], (100, 65_536, 2000)), (["--sizes", "1MB"], (10**6,))],
)
def test_bench_command_measures_the_message_sizes_of_its_option_in_bytes(
    given: list[str], sizes: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    def report(systems: Any, cases: Any, asked: Any, *_: Any) -> dict[str, Any]:
        return {"rows": [], "failures": [], "is_complete": True, "sizes": asked.sizes, "cases": list(cases)}

    with patch("sidecar.cli.bench.report", report), pytest.raises(SystemExit) as ended:
        main(["bench", "--system", "liftpy", "--case", "acked", "--json", *given])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert (tuple(found["sizes"]), found["cases"]) == (sizes, ["acked"])
