"""Records browser of ``liftpy dashboard --show-records``: shows a few records of one partition, with the permissions of its
user.

The page of a node never shows records. The browser reads at most ``MOST_RECORDS`` records and ``MOST_BYTES`` bytes, for
at most ``MOST_S`` seconds. Before each read, it reports an audit event. If the report fails, it shows no records.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from liftpy.client import Client, ReadOptions
from liftpy.client.positions import Start, parse_start
from liftpy.core.base.ids import check_name
from liftpy.core.wire.batch import Record
from liftpy.errors import LiftError

MOST_RECORDS = 100
MOST_BYTES = 1 << 20
MOST_S = 5.0
_MOST_SHOWN = 2000
"""Maximum number of characters of a value or a header on the page."""
FIELDS = ("partition", "start", "subject", "key", "limit")
"""Fields of the query of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsQuery:
    """Records that a viewer requests. ``start``: as ``--from`` of ``liftpy consume``, or '' for the newest records."""

    stream: str
    partition: int = 0
    start: str = ""
    subject: str = ""
    key: str = ""
    limit: int = 20

    def parsed_start(self) -> Start:
        """Return the position at which ``Client.consume`` starts. Raises ConfigError if ``start`` is invalid."""
        return parse_start(self.start, datetime.now(UTC)) if self.start else ""


Report = Callable[[RecordsQuery], Awaitable[None]]
"""Function that reports a query before its records are read. If it raises LiftError, no records are shown."""


def records_query(stream: str, fields: Mapping[str, str]) -> RecordsQuery:
    """Return the records that an HTTP request asks for. ``fields``: query of the request. Raises ConfigError or ValueError."""
    texts = {name: fields.get(name, "").strip() for name in FIELDS}
    if any(len(text) > _MOST_SHOWN for text in texts.values()):
        raise ValueError(f"A field has more than {_MOST_SHOWN} characters. Shorten it.")
    partition, limit = int(texts["partition"] or 0), int(texts["limit"] or 20)
    if not 0 <= partition < 1 << 31:
        raise ValueError(f"Invalid partition {partition}. Use 0 or more.")
    if not 1 <= limit <= MOST_RECORDS:
        raise ValueError(f"Invalid limit {limit}. Use 1 to {MOST_RECORDS}.")
    query = RecordsQuery(
        stream=check_name(stream, "stream"),
        partition=partition,
        start=texts["start"],
        subject=texts["subject"],
        key=texts["key"],
        limit=limit,
    )
    query.parsed_start()
    return query


def query_text(query: RecordsQuery) -> str:
    """Return the query as text for the audit event, such as ``from=newest key="a" limit=20``."""
    filters = {"from": query.start or "newest", "subject": query.subject, "key": query.key}
    parts = [f"{name}={json.dumps(value)}" for name, value in filters.items() if value]
    return " ".join([*parts, f"limit={query.limit}"])


class RecordsBrowser:
    """Reads records for the page ``/records/<stream>``, through a client with the permissions of its user."""

    def __init__(self, client: Client, report: Report) -> None:
        self._client = client
        self._report = report

    async def read(self, query: RecordsQuery) -> dict[str, Any]:
        """Return the data of the page: ``rows`` with the requested records, and ``note``.

        Without a start, the newest record comes first. ``note``: why there are fewer records than requested. '': there are not.
        """
        rows: list[dict[str, Any]] = []
        note, size_bytes = "", 0
        try:
            await self._report(query)
        except LiftError as error:
            return {"rows": [], "note": f"No record is shown, because the audit event cannot be stored: {error}"}
        consumer = self._client.consume(
            query.stream,
            query.partition,
            start=query.parsed_start(),
            until=None if not query.start else "end",
            subjects=(query.subject,) if query.subject else (),
            keys=(query.key.encode(),) if query.key else (),
            backwards=not query.start,
            options=ReadOptions(patience_s=MOST_S, read_ahead=1, max_bytes=MOST_BYTES),
        )
        try:
            async with asyncio.timeout(MOST_S), aclosing(aiter(consumer)) as records:
                async for record in records:
                    size_bytes += len(record.value or b"") + len(record.key or b"")
                    size_bytes += sum(len(name) + len(value) for name, value in record.headers)
                    if size_bytes > MOST_BYTES and rows:
                        note = (
                            f"The records after these exceed {MOST_BYTES:,} bytes. Start at offset {record.offset} to see them."
                        )
                        break
                    rows.append(record_row(record))
                    if len(rows) == query.limit:
                        break
        except TimeoutError:
            note = f"The search ended after {MOST_S:g} s. Narrow it with a start."
        except LiftError as error:
            note = str(error)
        return {"rows": rows, "note": note}


def record_row(record: Record) -> dict[str, Any]:
    """Return the row of a record for the page, each field as text."""
    moment = datetime.fromtimestamp(record.timestamp_ns / 1e9, UTC)
    headers = ", ".join(f"{name}: {readable(value)}" for name, value in record.headers)
    return {
        "offset": record.offset,
        "time": moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3],
        "subject": record.subject,
        "key": "" if record.key is None else readable(record.key),
        "headers": _shorten(headers, len(headers)),
        "value": "(tombstone)" if record.value is None else readable(record.value),
    }


def readable(data: bytes) -> str:
    """Return ``data`` as text if it is UTF-8 without control characters, otherwise as hex."""
    text: str | None = None
    with suppress(UnicodeDecodeError):
        text = data.decode()
    if text is None or any(ord(sign) < 32 and sign not in "\t\r\n" for sign in text):
        return _shorten(data[: _MOST_SHOWN // 2].hex(), 2 * len(data))
    return _shorten(text[:_MOST_SHOWN], len(text))


def _shorten(text: str, length: int) -> str:
    return text if length <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({length:,} characters)"
