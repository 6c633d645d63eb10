"""The Spark job of the demo, in a separate process.

So Spark starts while the records are replicated, and ends with its process.

It prints ``ready`` when Spark is up, and waits for a line. Then it reads the stream with the format ``liftpy``. It writes
the records as an Arrow file and the computed table as JSON into a directory, and prints ``done``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from sidecar.dev.demo_flights import CARRIER_COLUMN, DELAY_COLUMN, MISSING, Delays

RECORDS_FILE = "records.arrow"
RESULT_FILE = "result.json"


def start_session(folder: Path) -> Any:
    """Return a local Spark session that keeps its files in ``folder``."""
    from liftpy.spark.session import local_session

    files = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    return local_session("liftpy-demo", settings={**files, "spark.driver.maxResultSize": "0"})


def read_stream(spark: Any, urls: str, namespace: str, stream: str, columns: str) -> Any:
    """Return the whole stream as a DataFrame of ``columns``.

    The columns must be named, because Spark does not prune the columns of a Python source.
    """
    reader = spark.read.format("liftpy").option("nats", urls).option("namespace", namespace).option("stream", stream)
    reader = reader.option("columns", columns)
    return reader.option("startingOffsets", "earliest").option("endingOffsets", "latest").load()


def delays_by_carrier(frame: Any) -> Delays:
    """Return the table of ``demo_flights.mean_delays``, computed by Spark from the rows of ``frame``."""
    from pyspark.sql import functions as F

    fields = F.split(F.col("value").cast("string"), ",", CARRIER_COLUMN + 2)
    flights = frame.select(fields[CARRIER_COLUMN].alias("carrier"), fields[DELAY_COLUMN].alias("delay"))
    known = flights.filter(F.col("delay") != MISSING.decode()).withColumn("delay", F.col("delay").cast("long"))
    rows = known.groupBy("carrier").agg(F.count("delay").alias("flights"), F.sum("delay").alias("minutes")).collect()
    return {row["carrier"]: (row["flights"], row["minutes"]) for row in rows}


def run_job(spark: Any, urls: str, namespace: str, stream: str, folder: Path) -> None:
    """Read the stream with Spark, compute the table of delays, and write records and table into ``folder``."""
    import pyarrow as pa

    started = time.monotonic()
    delays = delays_by_carrier(read_stream(spark, urls, namespace, stream, "value"))
    computed = time.monotonic()
    table = read_stream(spark, urls, namespace, stream, "offset,value").toArrow()
    read = time.monotonic()
    with pa.OSFile(str(folder / RECORDS_FILE), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    result = {"delays": delays, "compute_s": computed - started, "read_s": read - computed, "records": table.num_rows}
    (folder / RESULT_FILE).write_text(json.dumps(result), encoding="utf-8")


@click.command()
@click.option("--nats", "urls", required=True)
@click.option("--namespace", required=True)
@click.option("--stream", required=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True)
def main(urls: str, namespace: str, stream: str, folder: Path) -> None:
    """Start Spark, wait for a line of input, run the job, and write the result into FOLDER."""
    spark = start_session(folder)
    try:
        spark.range(1).count()  # the first query loads much of Spark, so it runs now, while the records are replicated
        print("ready", flush=True)
        if sys.stdin.readline():
            run_job(spark, urls, namespace, stream, folder)
            print("done", flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
