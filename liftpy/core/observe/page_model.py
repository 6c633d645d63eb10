"""JSON of the status pages, from the model of ``liftpy top``, histories, and the partitions of the nodes. Pure.

Numbers are plain, in the unit that their name ends with. None means that a number is not known. ``figure`` formats a number as text.
``static/format.js`` formats it in the browser in the same way, and a test compares the two. Both round halves up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import floor, isnan
from typing import Any

from liftpy.core.observe.cluster_health import FINE, PROBLEMS, checked_fields, newest_summary
from liftpy.core.observe.cluster_model import RATES, Model, NodeRow
from liftpy.core.observe.history import NAMES, HistoryRows
from liftpy.core.observe.node_summary import NodeSummary


def newest_of(rows: HistoryRows) -> dict[str, float | None]:
    """Return the newest values in ``rows`` by series, from the last row that has values. None: the series has no value there."""
    for number in range(rows.count - 1, -1, -1):
        if not isnan(rows.columns[0][number]):
            values = (column[number] for column in rows.columns)
            return {name: None if isnan(value) else value for name, value in zip(NAMES, values, strict=True)}
    return dict.fromkeys(NAMES)


def cluster_object(model: Model, newest: Mapping[str, float | None]) -> dict[str, Any]:
    """Return the summary of the cluster for the status page.

    ``newest``: values of the last second by series. They replace rates that ``model`` does not know yet.
    """
    glances = {row.node: row.glance for row in model.rows if row.glance is not None}
    controllers = [one for one in glances.values() if one.is_controller]
    image = newest_summary(controllers)
    leader = glances.get(model.metadata_leader)
    states = [row.state for row in model.rows]
    summaries = list(glances.values())
    return {
        "namespace": model.namespace,
        **model.verdict.as_object(),
        "nodes": {state: states.count(state) for state in ("live", "fenced", "drained", "silent")},
        "streams": model.streams,
        "metadata": {
            "leader": model.metadata_leader,
            "term": leader.term if leader is not None and leader.term else None,
            "lag": max((lag for lag in leader.members.values() if lag >= 0), default=0) if leader is not None else None,
            "members": len(leader.members) if leader is not None and leader.members else len(controllers),
            "away": sum(lag < 0 for lag in leader.members.values()) if leader is not None else None,
        },
        "partitions": {
            "offline": image.offline if image is not None else None,
            "electing": image.electing if image is not None else None,
            "under_min_isr": sum(one.under_min_isr for one in summaries),
            "under_replicated": sum(one.under_replicated for one in summaries),
            "damaged": sum(one.failed for one in summaries),
            "led": sum(one.leads for one in summaries),
        },
        "now": {
            **{f"{name}_s": _first(getattr(model, f"{name}_s"), newest.get(name)) for name in RATES},
            "ack_p50_s": _first(model.ack_p50_s, newest.get("ack_p50")),
            "ack_p99_s": _first(model.ack_p99_s, newest.get("ack_p99")),
            "lag_s": max((one.lag_s for one in summaries), default=None),
            "slowest": max(summaries, key=lambda one: one.lag_s).node if any(one.lag_s for one in summaries) else "",
        },
        "feature": feature_object(summaries),
        "rows": [node_row(row) for row in model.rows],
    }


def feature_object(summaries: Iterable[NodeSummary]) -> dict[str, Any]:
    """Return the feature levels for the status page: the finalized one, the one that all nodes support, and what to do.

    ``summaries``: summaries of the nodes.
    """
    known = [one for one in summaries if one.feature_level]
    level = max((one.feature_level for one in known), default=None)
    speaks = min((one.speaks for one in known), default=None)
    waits = level is not None and speaks is not None and speaks > level
    return {"level": level, "all_speak": speaks, "todo": "liftpy upgrade finalize" if waits else "nothing to finalize"}


def node_row(row: NodeRow) -> dict[str, Any]:
    """Return the row of a node for the table of nodes."""
    glance = row.glance
    cells: dict[str, Any] = {
        "node": row.node, "state": row.state, "leads_metadata": row.leads_metadata,
        **{f"{name}_s": getattr(row, f"{name}_s") for name in RATES},
        "ack_p50_s": row.ack_p50_s, "ack_p99_s": row.ack_p99_s, "loop_p99_s": row.loop_p99_s,
    }  # fmt: skip
    for name in _SUMMARY_FIELDS:
        cells[name] = getattr(glance, name) if glance is not None else None
    return cells


_SUMMARY_FIELDS = (
    "leads", "replicas", "under_replicated", "under_min_isr", "failed", "lag_records", "lag_s", "disk_free", "queued", "uptime_s",
    "version", "incarnation", "is_controller", "applied", "nats_connected",
)  # fmt: skip


def stream_rows(answers: Mapping[str, object]) -> list[dict[str, Any]]:
    """Combine the partition rows of all nodes into one row for each partition, most urgent first.

    The row of the leader with the highest epoch wins. Without a leader, the most complete row wins. Invalid rows are ignored.

    ``answers``: answer of each node, by node.
    """
    best: dict[int, tuple[tuple[int, int, bool], dict[str, Any]]] = {}
    for node, rows in answers.items():
        for row in rows if isinstance(rows, list) else ():
            if (valid_row := checked_row(row)) is None:
                continue
            weight = (valid_row["epoch"], valid_row["role"] == "LEADER", bool(valid_row["role"]))
            number = valid_row["partition"]
            if number not in best or weight > best[number][0]:
                best[number] = weight, {**valid_row, "told_by": node}
    return sorted((row for _, row in best.values()), key=lambda row: (row["urgency"], row["partition"]))


_ROW: dict[str, type] = {
    "stream": str, "partition": int, "urgency": int, "role": str, "leader": str, "epoch": int, "newest": int, "high_watermark": int,
    "start": int, "log_bytes": int, "records_in": int, "bytes_in": int, "lag_records": int, "lag_s": float, "waiting_acks": int,
}  # fmt: skip


def checked_row(row: object) -> dict[str, Any] | None:
    """Check ``row``, a partition row from another node. Return it with only the known fields, or None if a type is wrong."""
    values = checked_fields(row, _ROW, most_chars=None)
    if values is None or not isinstance(row, dict):
        return None
    for name in ("isr", "replicas"):
        names = row.get(name)
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            return None
        values[name] = " ".join(names)
    if not 0 <= values["urgency"] <= FINE:
        return None
    return {**values, "problem": PROBLEMS[values["urgency"]]}


_STREAM_ROW: dict[str, type] = {
    "stream": str, "subject": str, "urgency": int, "partitions": int, "replicas": int, "offline": int, "electing": int,
    "under_min_isr": int, "under_replicated": int,
}  # fmt: skip


def checked_stream(row: object) -> dict[str, Any] | None:
    """Check ``row``, a stream row from another node. Return it with only the known fields, or None if a type is wrong."""
    values = checked_fields(row, _STREAM_ROW, most_chars=None)
    return {**values, "problem": PROBLEMS[values["urgency"]]} if values is not None and 0 <= values["urgency"] <= FINE else None


def checked_streams(said: object) -> list[dict[str, Any]]:
    """Return the valid stream rows in ``said``, the answer of another node to a request for streams."""
    rows = said.get("rows") if isinstance(said, dict) else None
    return [kept for row in (rows if isinstance(rows, list) else []) if (kept := checked_stream(row)) is not None]


def stream_about(answers: Iterable[object]) -> dict[str, Any]:
    """Return the description of a stream: subject, partitions, replicas, and settings that differ from the default.

    ``answers``: descriptions from several nodes. The first valid one is returned.
    """
    for one in answers:
        match one:
            case {
                "subject": str(subject),
                "partitions": int(partitions),
                "replicas": int(replicas),
                "settings": list(settings),
            }:
                rows = [
                    {"setting": pair[0][:_MOST_TEXT], "value": pair[1][:_MOST_TEXT]}
                    for pair in settings[:_MOST_SETTINGS]
                    if isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
                ]
                return {"subject": subject[:_MOST_TEXT], "partitions": partitions, "replicas": replicas, "settings": rows}
    return {"subject": "", "partitions": None, "replicas": None, "settings": []}


_MOST_SETTINGS, _MOST_TEXT = 100, 200


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


NOTHING = "–"
KINDS = ("text", "int", "rate", "bytes", "span", "share", "age")
_UNITS = ("", " k", " M", " G", " T")


def figure(kind: str, value: Any) -> str:
    """Return ``value`` as a text of one of ``KINDS``: text, count, rate, bytes, seconds, percentage or uptime."""
    if value is None or value == "" or isinstance(value, Mapping):
        return NOTHING
    if kind == "text" or isinstance(value, (str, bool)):
        return ("yes" if value else "no") if isinstance(value, bool) else str(value)
    if kind == "int":
        return f"{_round(value, 0):,.0f}"
    if kind == "rate":
        return (
            f"{_round(value, 1):.1f}"
            if 0 < value < 9.95
            else f"{_round(value, 0):,.0f}"
            if value < 99_999.5
            else _unit(value, "")
        )
    if kind == "bytes":
        return _unit(value, "B")
    if kind == "span":
        return _span(value)
    if kind == "share":
        return f"{_round(value * 100, 0):.0f} %"
    return _age(value)


def value_at(value: Any, path: str) -> Any:
    """Return the value at a path such as ``a.b.c`` in ``value``, nested JSON objects. None: it does not exist."""
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _round(value: float, digits: int) -> float:
    scale: float = 10.0**digits
    return floor(value * scale + 0.5) / scale


def _unit(value: float, unit: str) -> str:
    number = 0
    while number < len(_UNITS) - 1 and value >= 999.5:
        value, number = value / 1000, number + 1
    digits = 0 if number == 0 or value >= 99.95 else 1 if value >= 9.995 else 2
    text = f"{_round(value, digits):.{digits}f}{_UNITS[number]}"
    return f"{text}{unit}" if number else f"{text} {unit}".strip()


def _span(value: float) -> str:
    if value >= 0.9995:
        return f"{_round(value, 1):,.1f} s"
    ms = value * 1000
    digits = 2 if ms < 9.995 else 1 if ms < 99.95 else 0
    return f"{_round(ms, digits):.{digits}f} ms" if ms else "0 ms"


def _age(value: float) -> str:
    minutes = floor(value / 60)
    if minutes < 1:
        return f"{floor(value)} s"
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} days"
