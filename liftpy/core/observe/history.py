"""Keeps the last minutes of a node as series of numbers: ten minutes at 1 s, four hours at 10 s, in about 200 KB. Pure.

A second without data is NaN in every series. It stays a gap, and is neither joined nor counted as 0. Seconds are those of
the wall clock, so that the series of several nodes can be compared. If the clock goes back, the history starts again.

Each series says how ten seconds become one value: the mean for rates and counts of partitions, the maximum for times.
Percentiles are computed from the bands of ack times. The values of nodes are combined by their sum, their maximum, or the
sums of the bands.
"""

from __future__ import annotations

import base64
import binascii
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from liftpy.core.base.instruments import LATENCY_S

SECONDS, TENS = 1, 10
LENGTHS = {SECONDS: 600, TENS: 1440}
"""Step in seconds -> number of values that are kept at this step."""
BAND_BOUNDS_S = LATENCY_S[1:12]
"""Upper bounds of the bands of ack times, in seconds: 0.5 ms, 1 ms ... 512 ms, and above. Each is twice the previous one."""
MOST_ROWS = 600
"""Maximum number of rows in one answer. They take 77 KB."""
MOST_COVERED_S = 10
"""Maximum time that a sample covers, in seconds. After a longer pause the process was stopped, and the history has a gap."""
_STARTS_ANEW_S = 2
"""If the clock goes back by more than this, in seconds, the history starts again."""
AHEAD_S = 60
"""Maximum time in seconds by which the rows of a node may be ahead of the clock of the reader."""
SUM, LARGEST, BANDS = "sum", "largest", "bands"


class Series(NamedTuple):
    """One series of a node's history. ``joined``: how the values of several nodes, and of ten seconds, become one value."""

    name: str
    unit: str
    joined: str


SERIES: tuple[Series, ...] = (
    Series("records_in", "records/s", SUM),
    Series("bytes_in", "B/s", SUM),
    Series("records_out", "records/s", SUM),
    Series("bytes_out", "B/s", SUM),
    Series("ack_p50", "s", BANDS),
    Series("ack_p99", "s", BANDS),
    Series("flush_p99", "s", LARGEST),
    Series("lag", "s", LARGEST),
    Series("loop_p99", "s", LARGEST),
    Series("isr_full", "partitions", SUM),
    Series("isr_below", "partitions", SUM),
    Series("isr_under_min", "partitions", SUM),
    *(Series(f"acks_{number}", "acks/s", SUM) for number in range(len(BAND_BOUNDS_S) + 1)),
)
NAMES = tuple(one.name for one in SERIES)
_BANDS_AT = NAMES.index("acks_0")
_LARGEST = [number for number, one in enumerate(SERIES) if one.joined == LARGEST]
_P50, _P99 = NAMES.index("ack_p50"), NAMES.index("ack_p99")
_EMPTY = (nan,) * len(SERIES)


def bands_of(counts: Sequence[float]) -> list[float]:
    """Return the number of acks in each latency band. ``counts``: acks in each bucket of ``LATENCY_S``."""
    last = len(BAND_BOUNDS_S) + 1
    return [counts[0] + counts[1], *counts[2:last], sum(counts[last:])]


def join_histories(histories: npt.NDArray[np.float32], *, over_time: bool = False) -> npt.NDArray[np.float32]:
    """Combine the values of several nodes, or of several seconds of one node, into one value per series and moment.

    ``histories``: array [node or second, series, moment]. ``over_time``: True if its first axis has seconds, False for nodes. The
    result is an array [series, moment] with NaN where nothing is known.
    """
    known = ~np.isnan(histories[:, 0, :])
    count = known.sum(axis=0)
    joined_values = np.where(known[:, None, :], np.nan_to_num(histories), 0).sum(axis=0)
    if over_time:
        joined_values /= np.maximum(count, 1)
    largest = np.fmax.reduce(histories, axis=0)  # NaN only where all values are NaN
    joined_values[_LARGEST] = largest[_LARGEST]
    for place, part in ((_P50, 0.5), (_P99, 0.99)):
        joined_values[place] = _percentiles(joined_values[_BANDS_AT:], part)
    joined_values[:, count == 0] = nan
    result: npt.NDArray[np.float32] = joined_values.astype(np.float32)
    return result


def _percentiles(bands: npt.NDArray[np.float32], part: float) -> npt.NDArray[np.float32]:
    """Return the percentile ``part`` (0 to 1) of the ack times at each moment, in s. NaN where there were no acks.

    ``bands``: array [latency band, moment] with numbers of acks.
    """
    upper = np.array([*BAND_BOUNDS_S, BAND_BOUNDS_S[-1]])
    lower = np.array([0.0, *BAND_BOUNDS_S])
    below = np.cumsum(bands, axis=0, dtype=np.float64)
    wanted = below[-1] * part
    band = np.minimum((below < wanted).sum(axis=0), len(BAND_BOUNDS_S))
    moments = np.arange(bands.shape[1])
    within = bands[band, moments]
    share = (wanted - (below[band, moments] - within)) / np.where(within > 0, within, 1)
    value = lower[band] + (upper[band] - lower[band]) * share
    return np.where(below[-1] > 0, value, nan).astype(np.float32)


class History:
    """Values of one node's series over time: one row per second, and one row per ten seconds for older values."""

    def __init__(self) -> None:
        self._held = {step: [array("f", [nan]) * length for _ in SERIES] for step, length in LENGTHS.items()}
        self._newest = dict.fromkeys(LENGTHS, 0)
        """Step -> time of the newest value in seconds. 0: there is none."""
        self._oldest = dict.fromkeys(LENGTHS, 0)
        """Step -> time of the oldest value in seconds. 0: there is none."""

    @property
    def newest(self) -> int:
        """Last second with values, as wall clock in s since 1970. 0: there is none."""
        return self._newest[SECONDS]

    def known_before(self, second: float) -> float:
        """Return the last time at or before ``second`` for which the history has values. Times are s since 1970. 0: there is none.

        If only ten-second values are known there, return the end of the ten seconds.
        """
        for step, covers in ((SECONDS, 1), (TENS, TENS)):
            length, at = LENGTHS[step], min(self._newest[step], int(second) // step * step)
            while self._oldest[step] and at >= max(self._oldest[step], self._newest[step] - (length - 1) * step):
                if not isnan(self._held[step][0][at // step % length]):
                    return min(at + covers - 1, second)
                at -= step
        return 0

    @property
    def size_bytes(self) -> int:
        return sum(one.itemsize * len(one) for series in self._held.values() for one in series)

    def add_values(self, second: int, values: Sequence[float], covers: int = 1) -> None:
        """Add the values of the ``covers`` seconds up to ``second`` (wall clock in s). The values are in the order of ``SERIES``.

        Earlier seconds without values become gaps. If the clock has gone back, the history starts again.
        """
        newest = self._newest[SECONDS]
        if second < newest - _STARTS_ANEW_S:
            self._clear()
            newest = 0
        elif second <= newest:
            return
        if newest and second - newest > LENGTHS[SECONDS] and newest % TENS != TENS - 1:
            self._sum_up(newest // TENS * TENS, newest % TENS + 1)  # no more values follow for these ten seconds
        first = max(second - covers, newest, second - LENGTHS[SECONDS]) + 1
        self._oldest[SECONDS] = self._oldest[SECONDS] or first
        for at in range(max(newest, second - LENGTHS[SECONDS]) + 1 if newest else first, second + 1):
            self._write(SECONDS, at, values if at >= first else _EMPTY)
            if at % TENS == TENS - 1:
                self._sum_up(at - TENS + 1)
        self._newest[SECONDS] = second

    def add_rows(self, rows: HistoryRows) -> None:
        """Add rows of an earlier history of the same node. Only rows that are newer than the known ones are added."""
        for number, values in enumerate(zip(*rows.columns, strict=True)):
            at = rows.first + number * rows.step
            if rows.step == SECONDS:
                if at > self.newest:
                    self.add_values(at, values, covers=1)
            elif at > self._newest[TENS] and not isnan(values[0]):
                self._advance_tens(at)
                self._write(TENS, at, values)

    def rows(self, step: int, after: int, most: int = MOST_ROWS) -> HistoryRows:
        """Return at most ``most`` rows after the time ``after`` (wall clock in s), oldest first. ``step``: seconds per row.

        The next request continues after the last returned row.
        """
        length, newest = LENGTHS[step], self._newest[step]
        first = max(after // step * step + step, newest - (length - 1) * step, self._oldest[step])
        count = max(0, min(most, (newest - first) // step + 1)) if newest else 0
        places = [(first // step + number) % length for number in range(count)]
        return HistoryRows(step, first, tuple(array("f", [series[place] for place in places]) for series in self._held[step]))

    def _sum_up(self, first: int, count: int = TENS) -> None:
        length = LENGTHS[SECONDS]
        places = [at % length for at in range(first, first + count)]
        seconds = np.array([[series[place] for series in self._held[SECONDS]] for place in places], np.float32)
        self._advance_tens(first)
        place = first // TENS % LENGTHS[TENS]
        if isnan(self._held[TENS][0][place]):  # otherwise the value came from a history that knew all ten seconds
            self._write(TENS, first, join_histories(seconds[:, :, None], over_time=True)[:, 0].tolist())

    def _advance_tens(self, first: int) -> None:
        newest = self._newest[TENS]
        self._oldest[TENS] = self._oldest[TENS] or first
        for at in range(max(newest, first - LENGTHS[TENS] * TENS) + TENS if newest else first, first + 1, TENS):
            self._write(TENS, at, _EMPTY)
        self._newest[TENS] = max(newest, first)

    def _write(self, step: int, at: int, values: Sequence[float]) -> None:
        place = at // step % LENGTHS[step]
        for series, value in zip(self._held[step], values, strict=True):
            series[place] = value

    def _clear(self) -> None:
        for step, series in self._held.items():
            for one in series:
                one[:] = array("f", [nan]) * len(one)
            self._newest[step] = self._oldest[step] = 0


@dataclass(frozen=True, slots=True)
class HistoryRows:
    """Part of a history. The first row is at ``first`` (wall clock in s), each next one ``step`` s later.

    ``columns``: one per series, in the order of ``SERIES``.
    """

    step: int
    first: int
    columns: tuple[array[float], ...]

    @property
    def count(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    def as_object(self) -> dict[str, Any]:
        """Return the rows as a JSON object.

        Its field ``data`` is base64 of 32-bit numbers, little endian, one series after the other.
        """
        ordered = [array("f", one) for one in self.columns]
        if sys.byteorder == "big":
            for one in ordered:
                one.byteswap()
        data = base64.b64encode(b"".join(one.tobytes() for one in ordered)).decode()
        return {"step": self.step, "first": self.first, "count": self.count, "series": list(NAMES), "data": data}


def rows_of(value: object) -> HistoryRows | None:
    """Decode ``value``, the result of ``as_object`` of any version. Return None if it is invalid.

    Unknown series are ignored. Missing ones are NaN.
    """
    if not isinstance(value, dict):
        return None
    step, first, count, names, data = (value.get(name) for name in ("step", "first", "count", "series", "data"))
    if (
        type(step) is not int
        or step not in LENGTHS
        or type(first) is not int
        or type(count) is not int
        or not 0 <= count <= MOST_ROWS
    ):
        return None
    if not 0 <= first < 1 << 40 or first % step or not isinstance(names, list) or not isinstance(data, str):
        return None
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(raw) != 4 * count * len(names):
        return None
    columns = {}
    for number, name in enumerate(names):
        column = array("f", raw[4 * count * number : 4 * count * (number + 1)])
        if sys.byteorder == "big":
            column.byteswap()
        columns[str(name)] = column
    return HistoryRows(step, first, tuple(columns.get(name) or array("f", [nan]) * count for name in NAMES))


def question(step: int, after: int, node: str = "") -> dict[str, Any]:
    """Return a request for rows of a history, as JSON object."""
    return {"history": {"step": step, "after": after, **({"node": node} if node else {})}}


def select_rows(history: History, query: object) -> HistoryRows | None:
    """Return the rows of ``history`` for the request ``query``. None: the request is invalid."""
    if not isinstance(query, dict):
        return None
    step, after = query.get("step"), query.get("after", 0)
    if type(step) is not int or step not in LENGTHS or type(after) is not int or not 0 <= after < 1 << 40:
        return None
    return history.rows(step, after)


def with_gaps(rows: HistoryRows, unknown: Sequence[tuple[float, float]]) -> HistoryRows:
    """Return a copy of ``rows`` with NaN in the time ranges ``unknown``: pairs (after, until), wall clock in s."""
    moments = [rows.first + number * rows.step for number in range(rows.count)]
    gaps = [n for n, at in enumerate(moments) if any(at + rows.step - 1 > after and at <= until for after, until in unknown)]
    if not gaps:
        return rows
    columns = tuple(array("f", column) for column in rows.columns)
    for column in columns:
        for number in gaps:
            column[number] = nan
    return HistoryRows(rows.step, rows.first, columns)


def of_cluster(histories: Sequence[History], step: int, after: int, now_s: int) -> HistoryRows:
    """Return the rows of the whole cluster: the values of all ``histories`` combined. NaN where no node knows a value.

    ``now_s``: wall clock in s. Rows that are more than ``AHEAD_S`` later come from a node with a wrong clock, and are left out.
    """
    until = (now_s + AHEAD_S) // step * step
    parts = [rows for history in histories if (rows := history.rows(step, after, LENGTHS[step])).count and rows.first < until]
    if not parts:
        return HistoryRows(step, after // step * step + step, tuple(array("f") for _ in SERIES))
    end = min(until, max(rows.first + rows.count * step for rows in parts))
    first = max(min(rows.first for rows in parts), end - LENGTHS[step] * step)
    laid = np.full((len(parts), len(SERIES), (end - first) // step), nan, np.float32)
    for number, rows in enumerate(parts):
        begins, skipped = max(0, (rows.first - first) // step), max(0, (first - rows.first) // step)
        for place, column in enumerate(rows.columns):
            shown = column[skipped : skipped + laid.shape[2] - begins]
            laid[number, place, begins : begins + len(shown)] = shown
    return HistoryRows(step, first, tuple(array("f", column.tobytes()) for column in join_histories(laid)))
