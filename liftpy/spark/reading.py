"""``read()`` of both readers: one planned range, fetched and turned into Arrow batches."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa

from liftpy.client.consumer import PartitionReader, ReadOptions
from liftpy.client.slices import one_by_one
from liftpy.errors import DataLossError, LogTruncatedError, UnavailableError
from liftpy.spark.failures import coded
from liftpy.spark.fetching import FetchRules
from liftpy.spark.link import Link, link_to
from liftpy.spark.local_files import read_nearest
from liftpy.spark.options import SourceOptions
from liftpy.spark.planning import PlannedRange
from liftpy.spark.rows import RowBuilder
from liftpy.spark.schema import left_out

OLD_PLAN_S = 300.0
"""A batch query's plan that is older is mentioned with each read."""
_logger = logging.getLogger(__name__)


def read_planned(planned: PlannedRange | None, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Arrow batches of the range's records, in order; a SourceError whose text begins with its code when it can't be had.

    ``planned`` None: what Spark makes of an empty plan.
    """
    if planned is None:
        return
    age_s = (time.time_ns() - planned.planned_ns) / 1e9 if planned.planned_ns else 0.0
    if age_s > OLD_PLAN_S:
        _logger.warning(
            "%s was planned %.0f s ago, when its DataFrame first ran: Spark keeps that plan, so that later records are not seen; "
            "load() again for a newer one",
            planned,
            age_s,
        )
    rules = FetchRules(
        patience_s=options.patience_s,
        leader_first=options.read_from_leader,
        files=not options.read_from_leader,
        expects_files=options.expects_files,
        fail_on_data_loss=options.fail_on_data_loss,
        left_out=left_out(options.columns),
    )
    builder = RowBuilder(planned.stream, planned.partition, options.columns)
    link = link_to(options.access)
    with coded():
        fetched = read_nearest(link, planned, rules)
        try:
            yield from builder.batches(itertools.chain.from_iterable(map(one_by_one, fetched)))
        except UnavailableError:
            _must_be_there(link, planned, options)
            raise
        finally:
            fetched.close()


def _must_be_there(link: Link, planned: PlannedRange, options: SourceOptions) -> None:
    """Raise DataLossError if no replica serves the range because an unclean election has lost records of it; the leader says so."""
    if not planned.last[1]:
        return

    async def ask() -> None:
        asking = ReadOptions(patience_s=options.patience_s)
        transport = await link.transport(options.patience_s)
        reader = PartitionReader(transport, link.subjects, planned.stream, planned.partition, asking)
        await reader.bounds(planned.uid, last=planned.last)

    with suppress(UnavailableError):
        try:
            link.call(ask(), 2 * options.patience_s)
        except LogTruncatedError as error:
            raise DataLossError(f"{planned}: records of it are gone since it was planned: {error}") from None
