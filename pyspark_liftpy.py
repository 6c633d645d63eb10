"""Makes the format ``liftpy`` known to Spark, which imports every top-level module named ``pyspark_*`` and takes DefaultSource.

Keep it light: an error here would break the lookup of every Python data source. The class is loaded when Spark asks for it.
"""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from liftpy.spark.source import LiftDataSource
        except ImportError as error:
            warnings.warn(f"the format liftpy is not available: {error}", stacklevel=2)
            raise AttributeError(name) from error
        return LiftDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
