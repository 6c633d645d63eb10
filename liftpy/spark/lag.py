"""The lag of a streaming query, from the progress that Spark reports.

The names are those of Spark's Kafka source. Importing this module does not import pyspark. The module can be called like its
function ``lag``, so that ``from liftpy.spark import lag`` gives something that returns the lag.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from liftpy.core.base.strict_json import load_json
from liftpy.errors import ConfigError, LiftError
from liftpy.spark.offsets import StreamOffsets

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag of one liftpy source of a query.

    Attributes:
        behind: Number of committed records that no micro-batch has read yet, by (stream, partition).
    """

    behind: dict[tuple[str, int], int]

    @property
    def total(self) -> int:
        """Number of committed records that no micro-batch has read yet, over all partitions."""
        return sum(self.behind.values())

    @property
    def metrics(self) -> dict[str, str]:
        """The metrics of Spark's Kafka source (``avgOffsetsBehindLatest`` and others), as text."""
        counts = list(self.behind.values()) or [0]
        return {
            "avgOffsetsBehindLatest": str(sum(counts) / len(counts)),
            "maxOffsetsBehindLatest": str(max(counts)),
            "minOffsetsBehindLatest": str(min(counts)),
        }


def lag(progress: Any) -> list[Lag]:
    """Return the lag of each liftpy source of a streaming query.

    Other sources are ignored.

    Args:
        progress: ``query.lastProgress``, the ``progress`` of a listener's event, or its JSON.

    Returns:
        One Lag per liftpy source, in the order of the query.

    Raises:
        ConfigError: ``progress`` is something else.

    Example:
        from liftpy.spark import lag

        print([one.total for one in lag(query.lastProgress)])
    """
    return [source_lag for source in _sources(progress) if (source_lag := _of(source)) is not None]


def _sources(progress: Any) -> list[Mapping[str, Any]]:
    document = progress
    if hasattr(progress, "json") and not isinstance(progress, Mapping):
        document = progress.json
    try:
        document = load_json(document) if isinstance(document, str) else document
        return [dict(source) for source in document["sources"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            "lag() needs the progress of a streaming query. Pass query.lastProgress, or event.progress of a listener."
        ) from None


def _of(source: Mapping[str, Any]) -> Lag | None:
    try:
        ended, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    except LiftError:
        return None
    if not latest.uids:
        return None
    behind = {}
    for key, newest in latest.next_offsets.items():
        same = ended.uids.get(key[0]) == latest.uids[key[0]]
        behind[key] = max(0, newest - (ended.next_offsets.get(key, 0) if same else 0))
    return Lag(behind)


def _offsets(text: object) -> StreamOffsets:
    """Parse the offsets in a progress report of Spark, an object or JSON text. Before the first micro-batch there are none."""
    try:
        document = load_json(text) if isinstance(text, str) else text
    except ValueError:
        document = None
    return StreamOffsets.from_json(document) if isinstance(document, Mapping) else StreamOffsets({}, {})


def lag_listener(tell: Callable[[str, list[Lag]], None]) -> StreamingQueryListener:
    """Return a listener that reports the lag after each micro-batch.

    Args:
        tell: Function of the query's name (or id) and its list of Lag.

    Returns:
        A listener for ``spark.streams.addListener``.

    Example:
        from liftpy.spark import lag_listener

        spark.streams.addListener(lag_listener(lambda name, lags: print(name, lags)))
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class LagListener(StreamingQueryListener):
        """Spark listener that calls ``tell`` with the lag after each micro-batch."""

        def onQueryStarted(self, event: Any) -> None:
            """Do nothing, because a query that starts has no lag to report yet."""

        def onQueryProgress(self, event: Any) -> None:
            """Call ``tell`` with the lag in the progress report of a micro-batch."""
            document = json.loads(event.progress.json)
            tell(document.get("name") or str(event.progress.id), lag(document))

        def onQueryTerminated(self, event: Any) -> None:
            """Do nothing, because a query that has ended reports no lag."""

    return LagListener()


class _CallableModule(ModuleType):
    """This module. The package has no room for both the module and the function of the name ``lag``."""

    def __call__(self, progress: Any) -> list[Lag]:
        return lag(progress)


sys.modules[__name__].__class__ = _CallableModule
