"""Every message that a node or a service publishes goes to a subject that this project builds, or is an answer to an inbox [A5]."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.sources import nodes

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = {"testing", "spark", "bench", "dev", "cli", "_pb", "backup"}
"""Packages that run in no node and no service, or answer nobody."""
PUBLISH = {"send", "publish", "send_lines", "try_write", "put", "respond"}
CARRIERS = {"bus", "connection", "transport", "link", "outgoing", "shell", "ours", "message", "nc"}

BUILT = {
    "_subjects", "subjects", "_subject", "subject", "_replicate_subject", "_offset_subject", "data_subject", "SERVER_CONNECTIONS",
}  # fmt: skip
"""What the subject of a request or a notice is made of."""
EXCEPTIONS = {
    ("sidecar/transport/connection.py", "send"): "send_answer, which asks the rule, and the queue of the metadata group",
    ("liftpy/core/publish/acks.py", "send_lines"): "acks: MessageDecoder asks the rule of each reply subject, many at once",
    ("liftpy/nats/transport.py", "publish"): "the way that all publishes take",
    ("liftpy/nats/transport.py", "try_write"): "the same",
    ("sidecar/quorum/library.py", "send"): "frames of the metadata group, to members by their names",
    (
        "sidecar/partition/replication.py",
        "send",
    ): "FetchClient asks on .replicate and .offset; the leader checks reply subjects first",
}
"""(file, method) -> why its first argument may be anything."""


def _calls() -> Iterator[tuple[str, ast.Call, str, str]]:
    """(file, call, carrier, method) of everything that looks like a publish."""
    for path in sorted([*(ROOT / "liftpy").rglob("*.py"), *(ROOT / "sidecar").rglob("*.py")]):
        if LEFT_OUT & set(path.relative_to(ROOT).parts):
            continue
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PUBLISH:
                carrier = ast.unparse(node.func.value).rpartition(".")[2].strip("_")
                if carrier in CARRIERS:
                    yield str(path.relative_to(ROOT)), node, carrier, node.func.attr


def _is_built(argument: ast.expr) -> bool:
    words = {node.attr for node in ast.walk(argument) if isinstance(node, ast.Attribute)}
    words |= {node.id for node in ast.walk(argument) if isinstance(node, ast.Name)}
    return bool(words & BUILT) and not any("reply" in word or "inbox" in word for word in words)


def test_source_publishes_go_to_built_subjects_or_answers_to_inboxes() -> None:
    wrong = [
        f"{file}:{call.lineno} {ast.unparse(call)[:100]}"
        for file, call, _, method in _calls()
        if (file, method) not in EXCEPTIONS and not (call.args and _is_built(call.args[0]))
    ]
    assert not wrong, f"answer with send_answer or publish_answer, which ask the inbox rule: {wrong}"


def test_source_publish_methods_are_passed_only_to_publish_answer() -> None:
    wrong = []
    for path in sorted([*(ROOT / "liftpy").rglob("*.py"), *(ROOT / "sidecar").rglob("*.py")]):
        if LEFT_OUT & set(path.relative_to(ROOT).parts):
            continue
        for function in nodes(path):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            called = {id(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and node.attr in ("send", "publish") and id(node) not in called:
                    carrier = ast.unparse(node.value).rpartition(".")[2].strip("_")
                    if carrier in CARRIERS and "publish_answer(" not in ast.unparse(function):
                        wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}")
    assert not wrong, f"hand a request's way back on as its reply subject, and answer with publish_answer: {wrong}"


def test_source_publish_exceptions_are_all_needed() -> None:
    assert {(file, method) for file, _, _, method in _calls()} >= EXCEPTIONS.keys()


def test_source_node_subscriptions_are_guarded_against_handler_errors() -> None:
    """A handler of requests is wrapped by a RequestGuard [A15]; what only hears answers and data is named here."""
    only_hear = {
        "sidecar/transport/ingest_connection.py": "the way that all listeners take, and answers of the NATS server",
        "sidecar/transport/credentials.py": "nothing",
        "sidecar/transport/connections.py": "data, of the standby connection",
        "sidecar/metadata/feed.py": "records of the feed, beside the guarded questions",
        "sidecar/partition/replication.py": "answers to this node, beside the guarded requests",
        "liftpy/core/publish/ingest.py": "data",
        "liftpy/service/host.py": "orders of the node",
    }
    unguarded = []
    for path in sorted(
        [
            *(ROOT / "sidecar").rglob("*.py"),
            *(ROOT / "liftpy" / "service").rglob("*.py"),
            *(ROOT / "liftpy" / "core").rglob("*.py"),
            *(ROOT / "liftpy" / "nats").rglob("*.py"),
        ]
    ):
        file = str(path.relative_to(ROOT))
        if LEFT_OUT & set(path.relative_to(ROOT).parts) or file in only_hear:
            continue
        for node in nodes(path):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("listen", "subscribe")
            ):
                if ast.unparse(node.func.value).rpartition(".")[2].strip("_") not in ("bus", "connection", "link"):
                    continue
                handler = ast.unparse(node)
                if not any(guarded in handler for guarded in ("guard.", "handler", "callback")):
                    unguarded.append(f"{file}:{node.lineno} {handler[:100]}")
    assert not unguarded, f"wrap the handler with a RequestGuard: {unguarded}"
