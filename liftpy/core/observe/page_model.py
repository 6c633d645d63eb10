"""JSON of the status pages, from the model of ``liftpy top``, histories, and the partitions of the nodes. Pure.

Numbers are plain, in the unit that their name ends with. None means that a number is not known. ``figure`` formats a number as text.
``static/format.js`` formats it in the browser in the same way, and a test compares the two. Both round halves up.

Each node makes rows of its partitions, streams, groups, queues and services. The node that serves the page checks and combines the
rows of all nodes. Lists of partitions begin with the most urgent one. A node answers ``{"groups": {...}}`` for the groups whose
coordinators lead on it, and ``{"services": {...}}`` for the services that are connected to it. The parameter ``answers`` has the
answer of each node, by node.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from math import floor, isnan
from typing import Any

from liftpy.config import StreamConfig
from liftpy.core.base.partition import PartitionState, PartitionStatus, Pause
from liftpy.core.base.strict_json import is_count
from liftpy.core.observe.cluster_health import newest_summary
from liftpy.core.observe.cluster_model import RATES, Model, NodeRow
from liftpy.core.observe.history import NAMES, HistoryRows
from liftpy.core.observe.node_summary import MOST_TEXT_CHARS, NodeSummary

PROBLEMS = ("damaged", "offline", "electing", "under min_isr", "under-replicated", "moving", "paused", "")
"""Problems of a partition, the most urgent first. The last one means that the partition has no problem."""
FINE = len(PROBLEMS) - 1
MOST_ROWS = 500
"""Maximum number of rows in one answer, and on one page."""
MOST_MATCH = 200
"""Maximum number of characters of a search text."""
Place = tuple[int, str, int]
"""(urgency, stream, partition). Lists of partitions are sorted by it."""
FIRST: Place = (-1, "", -1)
"""The place before all partitions."""


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


# ---- groups, queues and services -------------------------------------------------------------------------------------


NO_MEMBERS = "no members"
"""Problem of a group that has records to read and no member."""
UNREAD_QUEUE = "not taken"
"""Problem of a queue whose first record has waited for ``UNREAD_QUEUE_S`` while no worker holds a record."""
UNREAD_QUEUE_S = 30.0

_GROUP = {
    "group": str, "kind": str, "members": int, "partitions": int, "streams": str, "lag_records": int, "lag_s": float, "unknown": int,
    "in_flight": int,
}  # fmt: skip
_MEMBER = {"member": str, "client": str, "instance": str, "partitions": int, "streams": str, "session_s": float}
_POSITION = {
    "stream": str, "partition": int, "member": str, "position": int, "end": int, "lag_records": int, "lag_s": float, "in_flight": int,
    "returned": int, "dead": int,
}  # fmt: skip
_LAG = {"at": int, "lag_records": int, "lag_s": float}
_SERVICE = {
    "service": str, "stream": str, "instances": int, "leaders": int, "gone": int, "blocked": int, "lag": int, "snapshot_age_s": float,
    "output_backlog": int, "versions": str, "problem": str,
}  # fmt: skip
_INSTANCE = {
    "service": str, "stream": str, "partition": int, "state": str, "position": int, "lag": int, "snapshot": int,
    "snapshot_age_s": float, "output_backlog": int, "queries_waiting": int, "timers_waiting": int, "effects_waiting": int,
    "version": str, "problem": str,
}  # fmt: skip

_OPTIONAL = frozenset({"position", "end", "snapshot_age_s", "returned", "dead", "timers_waiting", "effects_waiting"})
"""Names of the numbers that may be None or absent, because they are not known."""


def names_question(kind: str, name: str = "", limit: int = MOST_ROWS, match: str = "") -> dict[str, Any]:
    """Return a request to a node, as JSON object, for its consumer groups or services, or for the details of one of them.

    ``kind``: ``groups`` or ``services``. ``name``: the one to describe, '' for all. ``limit``: maximum number of rows in the
    answer. ``match``: only those with this text in their name.
    """
    return {kind: {kind.removesuffix("s"): name, "limit": limit, **({"match": match} if match else {})}}


def name_and_limit_in(query: object, field: str) -> tuple[str, int]:
    """Return (name, limit) of a request, where ``query`` is the request and ``field`` the parameter with the name.

    Raises ValueError if one of them is invalid. The name '' stands for all.
    """
    if not isinstance(query, dict) or not isinstance(query.get(field, ""), str):
        raise ValueError(f"Invalid parameter {field}. Use a name, or an empty text for all.")
    return query.get(field, ""), limit_of(query.get("limit", MOST_ROWS))


def instance_row(stream: str, partition: int, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of one service for one partition of this node, as the status page shows it."""
    if figures["role"] == "GONE":
        state = str(figures["ending"])
    elif figures["failing"]:
        state = "blocked"
    elif figures.get("promotion_waits"):
        state = "catching up"
    else:
        state = str(figures["role"]).lower()
    age_s = figures.get("since_snapshot_s")
    return {
        "service": str(figures["service"]), "stream": stream, "partition": partition, "state": state, "position": figures["position"],
        "lag": figures["lag"], "snapshot": figures["snapshot"], "snapshot_age_s": age_s,
        "output_backlog": figures.get("output_backlog", 0), "queries_waiting": figures.get("queries_waiting", 0),
        "timers_waiting": figures.get("timers_waiting"), "effects_waiting": figures.get("effects_waiting"),
        "version": str(figures.get("version", "")), "problem": str(figures["problem"]),
    }  # fmt: skip


def service_totals(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per service and stream with the totals of its instances. Services with problems come first."""
    totals: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        one = _as_total(row)
        key = one["service"], one["stream"]
        total = totals.get(key)
        if total is None:
            totals[key] = one
            continue
        for name in ("instances", "leaders", "gone", "blocked", "output_backlog"):
            total[name] += one[name]
        total["lag"] = max(total["lag"], one["lag"])
        total["snapshot_age_s"] = max(
            (age for age in (total["snapshot_age_s"], one["snapshot_age_s"]) if age is not None), default=None
        )
        total["versions"] = " ".join(sorted({*total["versions"].split(), *one["versions"].split()}))
        total["problem"] = total["problem"] or one["problem"]
    return sorted(totals.values(), key=_service_order)


def joined_groups(parts: Iterable[Mapping[str, Any]], limit: int) -> dict[str, Any]:
    """Combine the answers of a node's processes to a request for groups into one answer with at most ``limit`` rows."""
    tables: dict[str, list[Any]] = {"rows": [], "members": [], "positions": [], "history": []}
    is_cut = False
    for part in parts:
        is_cut = is_cut or part.get("more") is True
        for name, rows in tables.items():
            rows += part.get(name, ())
    tables["rows"].sort(key=lambda row: (-row["lag_s"], row["group"]))
    tables["positions"].sort(key=lambda row: (-row["lag_records"], row["stream"], row["partition"]))
    more = is_cut or any(len(rows) > limit for rows in tables.values())
    return {**{name: rows[:limit] for name, rows in tables.items()}, "more": more}


def joined_services(parts: Iterable[Mapping[str, Any]], limit: int, *, of_one: bool) -> dict[str, Any]:
    """Combine the answers ``parts`` of a node's processes to a request for services into one answer with at most ``limit`` rows.

    ``of_one``: True for each instance of one service, False for the totals of each service.
    """
    parts = list(parts)
    rows = [row for part in parts for row in part.get("rows", ())]
    rows = sorted(rows, key=_instance_order) if of_one else service_totals(rows)
    return {"rows": rows[:limit], "more": len(rows) > limit or any(part.get("more") is True for part in parts)}


def _as_total(row: Mapping[str, Any]) -> dict[str, Any]:
    if "instances" in row:
        return dict(row)
    is_here = row["state"] in ("leader", "follower", "blocked", "catching up")
    return {
        "service": row["service"], "stream": row["stream"], "instances": int(is_here), "leaders": int(row["state"] == "leader"),
        "gone": int(not is_here), "blocked": int(row["state"] == "blocked"), "lag": row["lag"], "snapshot_age_s": row["snapshot_age_s"],
        "output_backlog": row["output_backlog"], "versions": row["version"],
        "problem": f"{row['state']}: {row['problem']}" if row["problem"] else "",
    }  # fmt: skip


def _service_order(row: Mapping[str, Any]) -> tuple[bool, str, str]:
    return not row["problem"], row["service"], row["stream"]


def _instance_order(row: Mapping[str, Any]) -> tuple[bool, str, str, int, str]:
    return not row["problem"], row["service"], row["stream"], row["partition"], str(row.get("node", ""))


def shown_groups(answers: Mapping[str, object]) -> dict[str, Any]:
    """Return the content of the page that lists the groups: groups with a problem first, then by lag, the largest first."""
    best: dict[str, dict[str, Any]] = {}
    for node, row in _rows(answers, "rows", _GROUP):
        problem = _group_problem(row)
        other = best.get(row["group"])
        if other is None or row["members"] > other["members"]:
            best[row["group"]] = {**row, "coordinator": node, "problem": problem}
    rows = sorted(best.values(), key=lambda row: (not row["problem"], -row["lag_s"], -row["lag_records"], row["group"]))
    return {"rows": rows[:MOST_ROWS], "count": len(rows), "more": len(rows) > MOST_ROWS or _has_more(answers)}


def _group_problem(row: Mapping[str, Any]) -> str:
    if row["kind"] == "group" and row["lag_records"] and not row["members"]:
        return NO_MEMBERS
    if row["kind"] == "queue" and row["lag_s"] >= UNREAD_QUEUE_S and not row["in_flight"]:
        return UNREAD_QUEUE
    return ""


def shown_group(answers: Mapping[str, object]) -> dict[str, Any]:
    """Return the content of the page of one group: its row (None: not found), its members, its positions and its lag over time."""
    groups = shown_groups(answers)["rows"]
    own = groups[0] if groups else None
    own_answer = {node: one for node, one in answers.items() if own is not None and node == own["coordinator"]}
    positions = [row for _, row in _rows(own_answer, "positions", _POSITION)]
    positions.sort(key=lambda row: (-row["lag_records"], row["stream"], row["partition"]))
    members = sorted((row for _, row in _rows(own_answer, "members", _MEMBER)), key=lambda row: row["member"])
    history = sorted((row for _, row in _rows(own_answer, "history", _LAG)), key=lambda row: row["at"])
    return {"group": own, "members": members, "positions": positions, "history": history, "more": _has_more(own_answer)}


def shown_services(answers: Mapping[str, object]) -> dict[str, Any]:
    """Return the content of the page that lists the services, those with problems first."""
    rows = service_totals(row for _, row in _rows(answers, "rows", _SERVICE))
    return {"rows": rows[:MOST_ROWS], "count": len(rows), "more": len(rows) > MOST_ROWS or _has_more(answers)}


def shown_service(answers: Mapping[str, object]) -> dict[str, Any]:
    """Return the content of the page of one service: each of its instances, and its totals."""
    rows = [{**row, "node": node} for node, row in _rows(answers, "rows", _INSTANCE)]
    rows.sort(key=_instance_order)
    totals = service_totals(rows)
    facts = {
        "streams": len(totals),
        **{name: sum(row[name] for row in totals) for name in ("instances", "leaders", "gone", "blocked", "output_backlog")},
        "lag": max((row["lag"] for row in totals), default=None),
    }
    return {"service": facts, "instances": rows[:MOST_ROWS], "more": len(rows) > MOST_ROWS or _has_more(answers)}


def _has_more(answers: Mapping[str, object]) -> bool:
    return any(isinstance(one, dict) and one.get("more") is True for one in answers.values())


def _rows(answers: Mapping[str, object], name: str, wanted: Mapping[str, type]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yield (node, row) for the rows in the list ``name`` of each node's answer. Rows with a value of a wrong type are left out.

    ``answers``: answer of each node, by node. ``wanted``: type of each value, by its name in a row.
    """
    for node, one in answers.items():
        rows = one.get(name) if isinstance(one, dict) else None
        for row in rows[:MOST_ROWS] if isinstance(rows, list) else ():
            if (valid_row := checked_fields(row, wanted, optional=_OPTIONAL)) is not None:
                yield node, valid_row


# ---- texts of numbers ------------------------------------------------------------------------------------------------


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


def urgency(state: PartitionState | None, config: StreamConfig, *, failed: bool = False) -> int:
    """Return the urgency of a partition: the index of its problem in ``PROBLEMS``, 0 for the most urgent one.

    ``state`` None: the metadata of the partition is not known. ``failed``: the log on this node is unusable.
    """
    if failed:
        return 0
    if state is None:
        return FINE
    if state.status is not PartitionStatus.ONLINE:
        return 1 if state.status is PartitionStatus.OFFLINE else 2
    members = len(state.isr)
    if members < state.min_isr(config):
        return 3
    if members < len(state.replicas):
        return 4
    if state.target or state.joining:
        return 5
    return FINE if state.pause is Pause.NOT_PAUSED else 6


def partitions_question(stream: str = "", after: Place = FIRST, limit: int = MOST_ROWS) -> dict[str, Any]:
    """Return a request to a node, as JSON object, for the next page of its partitions, most urgent first.

    ``stream``: only the partitions of this stream, '' for all. ``after``: place of the last partition of the page before.
    ``limit``: maximum number of rows.
    """
    return {"partitions": {"stream": stream, "after": list(after), "limit": limit}}


def streams_question(after: tuple[int, str] = (-1, ""), limit: int = MOST_ROWS, match: str = "") -> dict[str, Any]:
    """Return a request to a node, as JSON object, for the next page of the streams of the cluster, most urgent first.

    ``after``: (urgency, name) of the last stream of the page before. ``limit``: maximum number of rows. ``match``: only streams
    with this text in their name or subject.
    """
    return {"streams": {"after": list(after), "limit": limit, **({"match": match} if match else {})}}


def place_of(value: object) -> Place:
    """Return the start of the page in a request: (urgency, stream, partition) of the last partition of the page before.

    Raises ValueError if it is invalid.
    """
    match value:
        case [int(rank), str(stream), int(partition)] if -1 <= rank <= FINE and -1 <= partition < 1 << 31:
            return rank, stream, partition
    raise ValueError("Invalid parameter 'after'. Use [urgency, stream, partition].")


def match_in(query: Mapping[str, Any]) -> str:
    """Return the search text that the request ``query`` contains, in lower case. Raises ValueError if it is invalid."""
    match = query.get("match", "")
    if not isinstance(match, str) or len(match) > MOST_MATCH:
        raise ValueError(f"Invalid parameter match. Use a text of at most {MOST_MATCH} characters.")
    return match.lower()


def checked_fields(
    row: object, wanted: Mapping[str, type], *, optional: Container[str] = (), most_chars: int | None = MOST_TEXT_CHARS
) -> dict[str, Any] | None:
    """Check ``row``, a table row from another node. Return it with only the known fields, or None if a type is wrong.

    ``wanted``: type of each value (text, count or number from 0 on), by name. ``optional``: names that may be missing or None.
    ``most_chars``: length to which texts are cut. None: they are not cut.
    """
    if not isinstance(row, dict):
        return None
    kept: dict[str, Any] = {}
    for name, kind in wanted.items():
        value = row.get(name)
        if value is None and name in optional:
            kept[name] = None
        elif kind is str and isinstance(value, str):
            kept[name] = value[:most_chars]
        elif is_count(value) if kind is int else kind is float and _is_measure(value):
            kept[name] = value
        else:
            return None
    return kept


def _is_measure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


def limit_of(value: object) -> int:
    """Return ``value``, the maximum number of rows in a request, if it is in range. Otherwise raise ValueError."""
    if type(value) is int and 1 <= value <= MOST_ROWS:
        return value
    raise ValueError(f"Invalid parameter limit. Use 1 to {MOST_ROWS}.")
