"""``read()`` of both readers: one planned range, fetched and turned into Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from liftpy.client.slices import one_by_one
from liftpy.spark.failures import coded
from liftpy.spark.fetching import FetchRules, fetch_range
from liftpy.spark.link import link_to
from liftpy.spark.options import SourceOptions
from liftpy.spark.planning import PlannedRange
from liftpy.spark.rows import RowBuilder


def read_planned(planned: PlannedRange | None, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Arrow batches of the range's records, in order; a SourceError whose text begins with its code when it can't be had.

    ``planned`` None: what Spark makes of an empty plan.
    """
    if planned is None:
        return
    rules = FetchRules(
        patience_s=options.patience_s,
        leader_first=options.read_from_leader,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    builder = RowBuilder(planned.stream, planned.partition, options.columns)
    with coded():
        for pieces in fetch_range(link_to(options.access), planned, rules):
            yield from builder.batches(one_by_one(pieces))
