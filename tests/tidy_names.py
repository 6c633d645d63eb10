"""Find names that nothing refers to, for ``test_tidy``.

An exception is listed here by name with its reason; one that is not needed any more has to go.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import get_args

from liftpy.core.replication.effects import Effect, method_name
from tests.tidy_imports import folder_of

_PYSYNCOBJ = "PySyncObj calls it"
_SPARK = "Spark calls it"
_CLICK = "click calls it"
_READS_BACK = "the other direction of what is sent, for tests and peers"
_ASYNCIO = "asyncio calls it"
_NATS = "nats-py calls it"
_CHECKS = "checks of the control plane, for tests and simulators"
_FIXTURES = "pytest finds fixtures by their names"
_FAULTS = "for tests of applications"
UNREFERENCED = {
    "liftpy.client.awaitable_context.AwaitableContext.throw": "coroutines have it: asyncio cancels by it",
    "liftpy.nats.connection.StrictConnection._connect_command": _NATS,
    "liftpy.nats.connection.StrictConnection._process_info": _NATS,
    "liftpy.nats.connection.StrictConnection._connect_to_server": _NATS,
    "liftpy.nats.connection.StrictConnection._select_next_server": _NATS,
    "sidecar.runtime.logs.TextFormatter.formatMessage": "the logging module calls it",
    "liftpy.client.batch_view.BatchSlice.to_pandas": "for applications",
    "liftpy.core.log.storage.MemoryStorage.fail_after": "for tests",
    "sidecar.tracing.exporting._SpanCollector.on_end": "OpenTelemetry's SDK calls it",
    "liftpy.testing.services.ServiceTest.run_effects": "for tests of applications",
    "liftpy.testing.services.run_in_child": "a line for another interpreter names it",
    "liftpy.spark.pipelines.archive_source.ManifestDataSource.streamReader": _SPARK,
    "liftpy.spark.source.LiftDataSource.streamReader": _SPARK,
    "liftpy.spark.source.LiftDataSource.streamWriter": _SPARK,
    "liftpy.spark.source.LiftStreamReader.getDefaultReadLimit": _SPARK,
    "liftpy.spark.source.LiftStreamReader.initialOffset": _SPARK,
    "liftpy.spark.source.LiftStreamReader.prepareForTriggerAvailableNow": _SPARK,
    "liftpy.spark.source.LiftStreamReader.reportLatestOffset": _SPARK,
    "liftpy.testing.memory.cluster.MemoryCluster.restart_nats": _FAULTS,
    "liftpy.testing.memory.cluster.MemoryCluster.serve_groups": "for applications",
    "liftpy.testing.memory.cluster.MemoryCluster.sync_client": "for applications",
    "liftpy.testing.memory.nats.MemoryTransport.connect_tls": _NATS,
    "liftpy.testing.plugin.liftpy_client": _FIXTURES,
    "liftpy.testing.plugin.liftpy_connect": _FIXTURES,
    "liftpy.testing.plugin.liftpy_memory": _FIXTURES,
    "liftpy.testing.plugin.liftpy_url": _FIXTURES,
    "liftpy.testing.plugin.pytest_addoption": "pytest calls it",
    "liftpy.core.wire.frames.decode_replication_piece": _READS_BACK,
    "liftpy.core.wire.frames.decode_replication_response": _READS_BACK,
    "liftpy.nats.connection.Receiver.data_received": _ASYNCIO,
    "liftpy.nats.connection.Receiver.eof_received": _ASYNCIO,
    "liftpy.nats.connection.Receiver.pause_writing": _ASYNCIO,
    "liftpy.nats.connection.Receiver.resume_writing": _ASYNCIO,
    "liftpy.core.metadata.controller.admission.ADMISSION": _CHECKS,
    "sidecar.workers.workers.WorkerHandle.connection_made": _ASYNCIO,
    "sidecar.workers.workers.WorkerHandle.data_received": _ASYNCIO,
    "sidecar.cli.help.HelpCommand.format_epilog": _CLICK,
    "sidecar.cli.help.HelpCommand.format_options": _CLICK,
    "sidecar.cli.help.HelpGroup.format_options": _CLICK,
    "sidecar.cli.help.HelpGroup.resolve_command": _CLICK,
    "sidecar.cli.main.LazyGroup.invoke": _CLICK,
    "sidecar.cli.main.LazyGroup.make_context": _CLICK,
    "sidecar.cli.completion.ClusterName.shell_complete": _CLICK,
    "sidecar.cli.help.HelpCommand.invoke": _CLICK,
    "sidecar.cli.options.OutputFile.shell_complete": _CLICK,
    "sidecar.dev.under_test.ClusterUnderTest.restart_nats": _FAULTS,
    "sidecar.quorum.library.RaftCore._SyncObj__sendAppendEntries": _PYSYNCOBJ,
    "sidecar.quorum.journal.GroupJournal._destroy": _PYSYNCOBJ,
    "sidecar.quorum.journal.GroupJournal.getRaftCommitIndex": _PYSYNCOBJ,
    "sidecar.quorum.journal.GroupJournal.getVotedForNodeId": _PYSYNCOBJ,
    "sidecar.quorum.journal.GroupJournal.onOneSecondTimer": _PYSYNCOBJ,
    "sidecar.quorum.transport.SessionTransport.addNode": _PYSYNCOBJ,
    "sidecar.quorum.transport.SessionTransport.dropNode": _PYSYNCOBJ,
}
"""Name -> why it is there though nothing that is shipped refers to it."""

_CODE = "a code of the protocol that no node of this version sends"
_SETS = "nats-py reads it"
UNREAD = {
    "liftpy.core.publish.standby.StandbyCounters.recognised": "the report of the standby has all counters",
    "liftpy.nats.connection.StrictConnection._pings_outstanding": _SETS,
    "liftpy.nats.connection.StrictConnection._public_nkey": _SETS,
    "liftpy.nats.connection.StrictConnection._user_jwt_cb": _SETS,
    "sidecar.transport.connection.SinkSubscription._max_msgs": _SETS,
    "sidecar.transport.connection.SinkSubscription._pending_next_msgs_calls": _SETS,
    "liftpy.client.publisher.Publisher.foreign_answers": "for applications",
    "liftpy.core.log.recovery.OpenReport.walked_bytes": "the tests of recovery count it",
    "liftpy.core.services.bad_records.OnError.SKIP": "the other of two",
    "liftpy.core.wire.envelope.MessageType.PARTITION_STATUS_REQUEST": _CODE,
    "liftpy.core.wire.envelope.MessageType.PARTITION_STATUS_RESPONSE": _CODE,
    "liftpy.core.wire.envelope.MessageType.PROPAGATED_REQUEST": _CODE,
    "liftpy.core.wire.envelope.MessageType.PROPAGATED_RESPONSE": _CODE,
    "liftpy.core.wire.envelope.MessageType.SERVER_INFO_REQUEST": _CODE,
    "liftpy.core.wire.envelope.MessageType.SERVER_INFO_RESPONSE": _CODE,
    "liftpy.core.wire.envelope.MessageType.STATUS_RESPONSE": _CODE,
    "sidecar.cli.help.HelpGroup.command_class": "click reads it",
    "sidecar.transport.connection.BusConnection._pings_outstanding": _SETS,
    "sidecar.transport.ingest_connection.IngestConnection._pings_outstanding": _SETS,
}
"""Attribute -> why it is stored though nothing that is shipped reads it."""


def _is_command(node: ast.stmt) -> bool:
    """Registered by its decorator: a command of the command line."""
    decorators = getattr(node, "decorator_list", [])
    return any(isinstance(d, ast.Call) and re.search(r"\.(command|group)$", ast.unparse(d.func)) for d in decorators)


def _defined(tree: ast.Module) -> list[str]:
    """Functions, classes, constants of a module, and the methods of its classes, without special names."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not _is_command(node):
            found.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [target.id for target in targets if isinstance(target, ast.Name)]
        if isinstance(node, ast.ClassDef):
            methods = (m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef))
            found += [f"{node.name}.{method.name}" for method in methods]
    return [name for name in found if not name.split(".")[-1].startswith("__")]


def _referred(trees: Iterable[ast.Module]) -> set[str]:
    """Every name that is read, by itself, as an attribute or as a string; importing it is no use of it, nor is its own body."""
    read: set[str] = set()

    def visit(node: ast.AST, inside: frozenset[str]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name | ast.Attribute) and isinstance(child.ctx, ast.Load):
                name = child.id if isinstance(child, ast.Name) else child.attr
                read.update({name} - inside)
            elif isinstance(child, ast.Constant) and isinstance(child.value, str) and child.value.isidentifier():
                read.add(child.value)
            defines = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            visit(child, inside | {child.name} if defines else inside)

    for tree in trees:
        visit(tree, frozenset())
    return read


def unreferenced(trees: Mapping[str, ast.Module], readers: Iterable[ast.Module] = ()) -> set[str]:
    """What neither these modules nor ``readers`` refer to. Methods named after effects are found by that name."""
    read = _referred([*trees.values(), *readers])
    by_name = {method_name(effect) for effect in get_args(Effect)}
    return {
        f"{module}.{name}"
        for module, tree in trees.items()
        for name in _defined(tree)
        if name.split(".")[-1] not in read and not ("." in name and name.split(".")[-1] in by_name)
    }


def unread_attributes(trees: Mapping[str, ast.Module], readers: Iterable[ast.Module] = ()) -> set[str]:
    """Return attributes, fields and enum members that a class stores, and that neither these modules nor ``readers`` read."""
    read = _referred([*trees.values(), *readers])
    stored = {
        f"{name}.{attribute}" for name, node in _classes(trees) for attribute in _attributes(node) | _class_constants(node)
    }
    return {name for name in stored if name.rpartition(".")[2] not in read and not name.endswith("__")}


def _class_constants(node: ast.ClassDef) -> set[str]:
    targets = [target for statement in node.body if isinstance(statement, ast.Assign) for target in statement.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _classes(trees: Mapping[str, ast.Module]) -> list[tuple[str, ast.ClassDef]]:
    found = ((module, node) for module, tree in trees.items() for node in ast.walk(tree))
    return [(f"{module}.{node.name}", node) for module, node in found if isinstance(node, ast.ClassDef)]


def _attributes(node: ast.ClassDef) -> set[str]:
    found = {s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)}
    for inner in ast.walk(node):
        stored = isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
        if stored and isinstance(inner.value, ast.Name) and inner.value.id == "self":
            found.add(inner.attr)
    return found


def repeated_classes(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return the classes of one name that several modules of one folder define, by folder and name."""
    places: dict[str, list[str]] = {}
    for name, _ in _classes(trees):
        module, _, own = name.rpartition(".")
        places.setdefault(f"{folder_of(module, trees)}.{own}", []).append(module)
    return {name: modules for name, modules in places.items() if len(modules) > 1}


def assigned_twice(tree: ast.Module) -> list[str]:
    """Names that a module or a class gives two values one after the other: two names have become one."""
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    return sorted(
        name for body in bodies for name, times in Counter(name for one in body for name in _given(one)).items() if times > 1
    )


def _given(statement: ast.stmt) -> list[str]:
    """Names to which a statement assigns a value that does not come from their earlier value."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return []
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    reads = {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}
    return [target.id for target in targets if isinstance(target, ast.Name) and target.id not in reads]
