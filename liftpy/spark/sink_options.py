"""The options of the format ``liftpy`` when it is written to: a list of their own, for Spark passes some of its own along. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from liftpy.core.base.ids import check_published, shown
from liftpy.errors import ConfigError
from liftpy.spark.options import KAFKA, OPTIONS, Access, access_of, check_no_table, choice_of, seconds_of, whole_number_of
from liftpy.spark.schema import did_you_mean

SINK_OPTIONS = {
    "stream": "the stream to append to, the same as save(NAME) and start(NAME); without it the column stream says it, row by row",
    "order": "content (default): each task sorts its rows, so that a micro-batch that is run again is the same one whatever the order "
    "of a shuffle was; plan: as the plan gives them, for plans without a shuffle",
    "nullValues": "error (default), or tombstone: a null value deletes its key in a compacted stream",
    "writeId": "batch only: a name of this write; one that is run again under it writes nothing twice",
    "maxTaskBytes": "rows of one task of a write that is exactly once: so much memory (default 1073741824)",
    "patience": "seconds to keep trying while NATS, or a leader, does not answer (default 120)",
    **{name: what for name, what in OPTIONS.items() if name.split(".")[0] in ("nats", "namespace")},
}
"""Every option and what it means."""

SPARKS_OWN = ("checkpointlocation", "queryname", "path", "outputmode")
"""That Spark passes along; ``path`` is what ``save(NAME)`` and ``start(NAME)`` come as."""
_SPELLING = {name.lower(): name for name in SINK_OPTIONS}
_MAX_ID_BYTES = 100
DEFAULT_TASK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """One sink's options, checked. ``stream`` '': the column says it. ``write_id`` '': there is none."""

    access: Access
    stream: str = ""
    write_id: str = ""
    by_content: bool = True
    tombstones: bool = False
    max_task_bytes: int = DEFAULT_TASK_BYTES
    patience_s: float = 120.0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """From Spark's option map; ConfigError for what is unknown, twice or out of bounds."""
        values = {_known(name): value for name, value in given.items() if name.lower() not in SPARKS_OWN}
        path = next((value for name, value in given.items() if name.lower() == "path"), "")
        if path and values.setdefault("stream", path) != path:
            raise ConfigError(
                f"save or start({path!r}) and the option stream = {values['stream']!r} name two streams. Remove one of them."
            )
        write_id = values.get("writeId", "")
        if "writeId" in values and not 0 < len(write_id.encode(errors="replace")) <= _MAX_ID_BYTES:
            raise ConfigError(f"Invalid writeId. Use 1 to {_MAX_ID_BYTES} bytes.")
        if not write_id.isprintable():
            raise ConfigError(f"Invalid writeId = {shown(write_id)}. Use printable characters.")
        return cls(
            access=access_of(values),
            stream=check_published(values["stream"]) if "stream" in values else "",
            write_id=write_id,
            by_content=choice_of(values, "order", ("content", "plan")) == "content",
            tombstones=choice_of(values, "nullValues", ("error", "tombstone")) == "tombstone",
            max_task_bytes=whole_number_of(values, "maxTaskBytes", 1 << 40) or DEFAULT_TASK_BYTES,
            patience_s=seconds_of(values, "patience", 120.0),
        )

    def check_streaming(self) -> None:
        """Raise ConfigError for what makes no sense in a streaming query."""
        if self.write_id:
            raise ConfigError(
                "writeId is for batch writes only. A streaming query has an id in its checkpoint. Remove writeId."
            )


def _known(name: str) -> str:
    spelled = _SPELLING.get(name.lower())
    if spelled is not None:
        return spelled
    if name.lower() == "atomic":
        raise ConfigError(
            "The option atomic does not exist. Each row is visible once, as soon as it is committed, before its "
            "micro-batch ends. Remove the option."
        )
    if name.lower() in KAFKA:
        raise ConfigError(f"{name} is an option of Kafka's sink. Use {KAFKA[name.lower()]}.")
    check_no_table(name)
    near = did_you_mean(name, SINK_OPTIONS)
    whose = " is one of reading, not of writing" if name.lower() in map(str.lower, OPTIONS) else ""
    raise ConfigError(f"Unknown option {shown(name)}{whose}{near}. Known options: {', '.join(SINK_OPTIONS)}.")
