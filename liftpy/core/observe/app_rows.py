"""Rows of groups, queues and services for the status page. Pure.

Each node makes rows. The node that serves the page checks and combines the rows of all nodes.

A node answers ``{"groups": {...}}`` for the groups whose coordinators lead on it, and ``{"services": {...}}`` for the
services that are connected to it. Values of other nodes are checked before they are shown. The parameter ``answers`` has
the answer of each node, by node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from liftpy.core.observe.cluster_health import MOST_ROWS, checked_fields, limit_of

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
