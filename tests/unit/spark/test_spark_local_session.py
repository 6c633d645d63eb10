"""Test the settings of a local Spark session, error codes, and the read of one range to rows, without Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from liftpy.errors import UnavailableError
from liftpy.spark import session
from liftpy.spark.failures import SourceError, with_error_code


def test_spark_worker_script_removes_the_pyspark_zips_from_the_python_path() -> None:
    zips = ["/x/pyspark/python/lib/pyspark.zip", "/x/pyspark/python/lib/py4j-0.10.9.9-src.zip"]
    surroundings = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": ":".join([zips[0], "/a b/py4j.zip", zips[1], "/c*"])}
    command = [str(session._WORKER), "-c", "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='|')", "one two"]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True)
    assert done.stdout == "/a b/py4j.zip:/c*|one two\n"


def test_spark_source_error_contains_the_liftpy_error_code_once() -> None:
    def fail(error: Exception) -> None:
        with with_error_code():
            raise error

    with pytest.raises(SourceError, match=r"^\[UNAVAILABLE\] nobody$") as raised:
        fail(UnavailableError("nobody"))
    again = raised.value
    with pytest.raises(SourceError) as raised:
        fail(again)
    assert raised.value is again
    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError())
