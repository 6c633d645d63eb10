"""Options of the format ``liftpy`` for writing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from liftpy.core.base.ids import check_published, shown
from liftpy.errors import ConfigError
from liftpy.spark.options import KAFKA, OPTIONS, Access, access_of, check_no_table, choice_of, seconds_of, whole_number_of
from liftpy.spark.schema import did_you_mean

SINK_OPTIONS = {
    "stream": "name of the stream to append to, or save(NAME) or start(NAME); without it, the column stream names it for each row",
    "order": "content (default): each task sorts its rows, so that a repeated micro-batch is equal after a shuffle; plan: the order "
    "of the plan, for plans without a shuffle",
    "nullValues": "error (default), or tombstone: a null value deletes its key in a compacted stream",
    "writeId": "batch only: name of this write, 1 to 100 bytes; a second run under the same name writes nothing twice",
    "maxTaskBytes": "maximum memory for the rows of one task of an exactly-once write, in bytes (default 1073741824)",
    "patience": "seconds to retry while NATS or a leader does not answer (default 120)",
    **{name: what for name, what in OPTIONS.items() if name.split(".")[0] in ("nats", "namespace")},
}
"""Option -> description."""

SPARKS_OWN = ("checkpointlocation", "queryname", "path", "outputmode")
"""Options that Spark adds itself. ``path`` is the name in ``save(NAME)`` and ``start(NAME)``."""
_SPELLING = {name.lower(): name for name in SINK_OPTIONS}
_MAX_ID_BYTES = 100
DEFAULT_TASK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Checked options of one sink. ``stream`` '': the column ``stream`` names it. ``write_id`` '': none."""

    access: Access
    stream: str = ""
    write_id: str = ""
    by_content: bool = True
    tombstones: bool = False
    max_task_bytes: int = DEFAULT_TASK_BYTES
    patience_s: float = 120.0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Read Spark's option map. Raise ConfigError if an option is unknown, given twice or out of range."""
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
        """Raise ConfigError if an option is only for batch writes."""
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
    whose = ". It is an option for reading, not for writing" if name.lower() in map(str.lower, OPTIONS) else ""
    raise ConfigError(f"Unknown option {shown(name)}{whose}{near or '.'} Known options: {', '.join(SINK_OPTIONS)}.")
