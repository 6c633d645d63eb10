"""Test the lag of a streaming query, calculated from its progress."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.errors import ConfigError
from liftpy.spark.lag import Lag, lag, lag_listener


def progress(end: object, latest: object, description: str = "PythonMicroBatchStream@7bea8754") -> dict[str, Any]:
    return {"name": "q", "sources": [{"description": description, "endOffset": end, "latestOffset": latest}]}


END = {"orders": {"0": 10, "1": 5, "uid": "u"}}
LATEST = {"orders": {"0": 25, "1": 5, "2": 6, "uid": "u"}}


@pytest.mark.parametrize("shape", [lambda p: p, json.dumps, lambda p: SimpleNamespace(json=json.dumps(p))])
@pytest.mark.parametrize("text", [lambda o: o, json.dumps])
def test_spark_lag_per_partition_uses_the_metric_names_of_the_kafka_source(shape: Any, text: Any) -> None:
    assert lag(shape(progress(text(END), text(LATEST)))) == [Lag({("orders", 0): 15, ("orders", 1): 0, ("orders", 2): 6})]
    found = lag(shape(progress(text(END), text(LATEST))))[0]
    assert found.total == 21
    assert found.metrics == {"avgOffsetsBehindLatest": "7.0", "maxOffsetsBehindLatest": "15", "minOffsetsBehindLatest": "0"}


def test_spark_lag_imported_in_any_way_can_be_called() -> None:
    """The function has the name of its module."""
    script = (
        "{}; from liftpy.spark import *; import liftpy.spark as package, liftpy.spark.lag as module\n"
        "from liftpy.spark.lag import lag as function\n"
        "assert lag({{'sources': []}}) == package.lag({{'sources': []}}) == function({{'sources': []}}) == []\n"
        "assert module.Lag is package.Lag\n"
        "assert {{name for name in dir(package) if not name.startswith('__')}} == {{*package.__all__}}\n"
    )
    for first in ("from liftpy.spark import lag", "from liftpy.spark.lag import lag", "from liftpy.spark import Lag"):
        subprocess.run([sys.executable, "-c", script.format(first)], check=True, timeout=60)


def test_spark_lag_before_the_first_micro_batch_is_the_number_of_all_records() -> None:
    assert lag(progress(None, LATEST))[0].total == 36
    assert lag(progress({"orders": {"0": 10, "uid": "before"}}, LATEST))[0].total == 36
    assert lag(progress(LATEST, END))[0].total == 0
    assert Lag({}).metrics["maxOffsetsBehindLatest"] == "0"


def test_spark_lag_ignores_progress_entries_of_other_sources() -> None:
    for latest in (None, "null", "{", 5, {}, {"orders": {"0": 5}}, {"a b": {"uid": "u"}}, '{"orders": {"0": "5", "uid": "u"}}'):
        assert lag(progress(END, latest)) == []
    for wrong in (None, 5, "{", "{}", {"sources": 5}, {"sources": [3]}):
        with pytest.raises(ConfigError, match="lastProgress"):
            lag(wrong)


def test_spark_lag_listener_reports_each_micro_batch_with_query_name_or_id() -> None:
    pytest.importorskip("pyspark")
    told: list[tuple[str, int]] = []
    listener = lag_listener(lambda name, lags: told.append((name, lags[0].total)))
    for name in ("q", None):
        found = {**progress(END, LATEST), "name": name}
        event: Any = SimpleNamespace(progress=SimpleNamespace(json=json.dumps(found), id="an-id"))
        listener.onQueryStarted(event)
        listener.onQueryProgress(event)
        listener.onQueryTerminated(event)
    assert told == [("q", 21), ("an-id", 21)]
