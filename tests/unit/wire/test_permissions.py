"""Test the table of subjects and the permissions of each role that follow from it."""

from __future__ import annotations

import ast
import csv
import inspect
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from liftpy.core.base.ids import check_data_subject, check_publisher_subject
from liftpy.core.metadata.controller.admission import RequestSubject, refusal
from liftpy.core.wire import subjects as built
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.permissions import USES, AccessRole, Scope, as_nsc, partition_subjects, rights_of
from liftpy.core.wire.subjects import PARTITION_TOKENS, SERVER_CONNECTIONS, Subjects, check_node_or_principal
from liftpy.errors import ConfigError
from sidecar.cli import permissions as rights_command
from sidecar.cli.main import liftpy
from tests.each import each
from tests.fake_node import FakeNode  # noqa: F401  (its subjects are looked for, too)

ROOT = Path(__file__).resolve().parents[3]
LISTENERS_ONLY = {"raft_inbox": "raft", "control_admin_all": "control_admin", "inboxes": "inbox"}
"""Functions that build what is subscribed to where another one builds what is published on."""
ARGUMENTS = {
    "stream": "orders",
    "partition": 0,
    "node_id": "n1",
    "kind": "election",
    "to": "n1",
    "sender": "n2",
    "service": "bank",
}


def matches(pattern: str, subject: str) -> bool:
    tokens = [{"*": r"[^.]+", ">": r".+"}.get(t, re.escape(t)) for t in pattern.split(".")]
    return re.fullmatch(r"\.".join(tokens), subject) is not None


def build(name: str) -> list[str]:
    function = getattr(Subjects(), name)
    made = function(**{p: ARGUMENTS[p] for p in inspect.signature(function).parameters})
    return [made] if isinstance(made, str) else list(made)


def test_permission_table_has_a_row_for_every_subject() -> None:
    functions = {name for name, _ in inspect.getmembers(Subjects, inspect.isfunction) if not name.startswith("_")}
    rows = {use.built_by for use in USES} - {"", "data_subject"}
    assert functions - set(LISTENERS_ONLY) == rows
    assert hasattr(built, "data_subject")
    for name in rows:
        (use,) = (use for use in USES if use.built_by == name)
        pattern = use.pattern.format(ns="liftpy", stream="*", principal="", data="", inbox="", queried="*")
        for subject in build(name):
            assert matches(pattern, subject if name != "inbox" else f"{subject}.x"), (pattern, subject)


def test_subscriptions_of_controllers_match_the_subjects_of_members_and_operators() -> None:
    subjects = Subjects("ns")
    assert [matches(subjects.raft_inbox("n1"), subjects.raft(to, "n3")) for to in ("n1", "n2")] == [True, False]
    for principal in ("", "me"):
        subject = Subjects("ns", principal=principal).control_admin()
        assert any(matches(pattern, subject) for pattern in subjects.control_admin_all())
    assert subjects.inbox("n1").startswith(subjects.inboxes())


def test_subjects_are_built_only_by_the_subjects_class() -> None:
    """No other module puts a namespace in front of something."""
    found = []
    for path in [*(ROOT / "liftpy").rglob("*.py"), *(ROOT / "sidecar").rglob("*.py")]:
        if "_pb" in path.parts or path.name in ("subjects.py", "permissions.py", "credentials.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("$SYS."):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}")
            if isinstance(node, ast.JoinedStr):
                text = ast.unparse(node)
                if re.search(r"namespace\}\.(?!\{subject_kind|>|,| )", text):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text}")
    fake = [line for line in found if "fake_node" in line]
    assert len(fake) <= 2, "the wildcard subscriptions of a node for tests"
    assert [line for line in found if line not in fake and "raise" not in line and "startswith" not in line] == []


def test_permissions_of_each_role_equal_the_expected_subjects() -> None:
    scope = Scope("ns", ("orders",), ("shop.orders",), "_INBOX_me", "me")
    assert {role.value: (*rights_of(role, scope).publish, "|", *rights_of(role, scope).subscribe) for role in AccessRole} == {
        "publisher": ("shop.orders", "|", "_INBOX_me.>"),
        "reader": ("ns.orders.*.read", "ns.orders.*.read.*", "ns.info", "|", "_INBOX_me.>"),
        "node": (
            "ns.>", "ns-groups", "ns-groups.*", "ns-events", "_INBOX_liftpy-groups.>", SERVER_CONNECTIONS, "_INBOX_me.>", "|",
            "ns.>", "shop.orders", "ns-groups", "ns-groups.*", "ns-events", "_INBOX_liftpy-groups.>",
        ),
        "member": (
            "ns.orders.*.read", "ns.orders.*.read.*", "ns.info", "shop.orders", "ns-groups", "ns-groups.*", "|", "_INBOX_me.>",
        ),
        "operator": (
            "ns.info", "ns.control.admin.me", "ns.control.level.*", "ns.control.settings.*", "ns.control.events.*", "ns.status.*",
            "ns._liftpy-events.*.read", "ns._liftpy-events.*.read.*", "|",
            "ns.events.*", "_INBOX_me.>",
        ),
        "status": ("ns.info", "ns.status.*", "|", "_INBOX_me.>"),
        "service": (
            "ns.orders.*.read",
            "ns.orders.*.read.*",
            "ns.info",
            "ns.status.*",
            "ns.service.*.session.orders.*",
            "ns.service.*.snapshot.*",
            "shop.orders",
            "|",
            "ns.service.*.query",
            "ns.service.*.query.*",
            "ns.service.*.snapshot.*",
            "_INBOX_me.>",
        ),
    }  # fmt: skip
    bank = Scope("ns", ("orders",), (), services=("bank",))
    queries = ("ns.service.bank.query", "ns.service.bank.query.*")
    for role in (AccessRole.READER, AccessRole.OPERATOR):
        assert set(queries) <= set(rights_of(role, bank).publish)
        assert rights_of(role, bank).responses is None
    assert rights_of(AccessRole.SERVICE, bank).subscribe[:2] == queries
    assert rights_of(AccessRole.SERVICE, bank).responses == (1, 5), "it answers each query once"
    assert "_INBOX.>" not in rights_of(AccessRole.SERVICE, bank).publish
    assert rights_of(AccessRole.SERVICE, replace(bank, replies=("_INBOX_a",))).publish[-1] == "_INBOX_a.>"
    assert rights_of(AccessRole.NODE, Scope(replies=("_INBOX_a",))).publish[-1] == "_INBOX_a.>", "it answers members of groups"
    words = ["--role", "service", "--reply-prefix"]
    assert '"_INBOX_b.>"' in CliRunner().invoke(liftpy, ["permissions", *words, "_INBOX_b"]).output
    for wrong in ([*words, "_INBOX*"], [*words, "_INBOX.>"], ["--role", "reader", "--reply-prefix", "_INBOX"]):
        assert isinstance(CliRunner().invoke(liftpy, ["permissions", *wrong]).exception, ConfigError), wrong


@each("role", AccessRole)
def test_security_page_names_each_subject_that_a_role_may_use(role: AccessRole) -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\w+) \|(.*)$", page, re.MULTILINE))
    row = rows[role.value] + (rows["reader"] if "as reader" in rows[role.value] else "")
    rights = rights_of(role, Scope("<ns>", ("<stream>",), ("data",), "inbox", "<its name>", services=("<name>",)))
    subjects = {subject for subject in (*rights.publish, *rights.subscribe) if not subject.startswith(("data", "inbox"))}
    assert {subject for subject in subjects if f"`{subject}`" not in row} == set()


def test_role_may_publish_on_a_subject_of_another_role_only_if_a_token_is_a_reserved_word() -> None:
    """NATS's wildcards are whole tokens: what a role may publish on beside its own rows, whatever names the tokens are."""
    words = ["x", *PARTITION_TOKENS]
    for role in set(AccessRole) - {AccessRole.NODE}:
        allowed = rights_of(role, Scope()).publish
        for use in USES:
            if role in use.publish or not use.pattern.startswith("{ns}"):
                continue
            pattern = use.pattern.format(ns="liftpy", stream="x", principal=".*", queried="x")
            for word in words:
                subject = pattern.replace("*", word).replace(">", word)
                if any(matches(a, subject) for a in allowed):
                    assert word in PARTITION_TOKENS, (role, subject, "a name that anybody may have")


@pytest.mark.parametrize("word", sorted(PARTITION_TOKENS))
def test_principal_or_node_name_that_is_a_protocol_word_is_rejected(word: str) -> None:
    for request in (pb.ControlRequest(deleteStream=pb.DeleteStream(name="s")), pb.ControlRequest(describeStream={"name": "s"})):
        assert refusal(RequestSubject.ADMIN, word, request)
        assert refusal(RequestSubject.ADMIN, "alice", request) == ""
    assert refusal(RequestSubject.NODE, word, pb.ControlRequest(registerNode=pb.RegisterNode(nodeId=word)))
    assert refusal(RequestSubject.NODE, "n1", pb.ControlRequest(registerNode=pb.RegisterNode(nodeId="n1"))) == ""
    with pytest.raises(ConfigError, match=f"node '{word}' is a word of the protocol's own subjects: choose another"):
        check_node_or_principal(word, "node")


def test_permission_subjects_of_many_partitions_are_one_wildcard_subject() -> None:
    assert partition_subjects("a.b", 3) == ("a.b", "a.b.1", "a.b.2")
    assert partition_subjects("a.b", 1000) == ("a.b", "a.b.*")


@pytest.mark.parametrize("subject", ['a"b', "a b", "a..b", "", "a\\", "'", "a.>.b"])
def test_permissions_command_rejects_an_invalid_subject(subject: str) -> None:
    done = CliRunner().invoke(liftpy, ["permissions", "--role", "publisher", "--subject", subject])
    assert isinstance(done.exception, ConfigError)


NSC_FLAGS = {
    "--name": r"\S+",
    "--allow-pub": None,
    "--allow-sub": None,
    "--allow-pub-response": r"[1-9]\d*",
    "--response-ttl": r"\d+(ms|s|m|h)",
}
"""Of ``nsc edit user --help``, and the form of what follows; None: a list of subjects as a line of CSV.
The fourth has a default where no value follows, so its value is tied to it with a '='."""


def nsc_rights(command: str) -> dict[str, list[str]]:
    """Flag -> values, as a shell and then nsc understand ``command``."""
    words = shlex.split(command.replace("\\\n", ""))  # as a shell joins lines
    assert words[:3] == ["nsc", "edit", "user"]
    given: dict[str, list[str]] = {}
    rest = iter(words[3:])
    for word in rest:
        flag, tied, value = word.partition("=")
        assert bool(tied) == (flag == "--allow-pub-response"), word
        value = value if tied else next(rest)
        form = NSC_FLAGS[flag]
        if form is not None:
            assert re.fullmatch(form, value), (flag, value)
        given.setdefault(flag, []).extend([value] if form is not None else next(csv.reader([value])))
    return given


@each("role", list(AccessRole))
@each("data_subject", ["shop.orders", "a,secret.>", "$(id).`id`.;&|.*", "#.~!{x,y}"])
def test_permissions_command_for_nsc_prints_the_permissions_as_nsc_flags(role: AccessRole, data_subject: str) -> None:
    rights = rights_of(role, Scope("ns", ("orders",), (check_publisher_subject(data_subject),), "_INBOX_me", "me"))
    given = nsc_rights(as_nsc(rights, "me"))
    assert given.pop("--name") == ["me"]
    assert given.pop("--allow-pub", []) == list(rights.publish)
    assert given.pop("--allow-sub", []) == list(rights.subscribe)
    responses = rights.responses or ("", "")
    assert given.pop("--allow-pub-response", [""]) == [str(responses[0])]
    assert given.pop("--response-ttl", [""]) == [f"{responses[1]}s" if rights.responses else ""]
    assert given == {}


@pytest.mark.parametrize("form", ["nsc", "nats-conf"])
@pytest.mark.parametrize("subject", ["a'$(id)'", 'a"]}}.b', "a\\b"])
def test_permissions_command_rejects_a_hostile_stream_subject_without_output(
    subject: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream's subject may hold what a shell or a configuration would not take as a name: whoever made it wrote it."""
    monkeypatch.setattr(rights_command, "with_client", lambda target, work, **_: (check_data_subject(subject, "ns"),))
    done = CliRunner().invoke(liftpy, ["permissions", "--role", "publisher", "--stream", "orders", "--format", form])
    assert isinstance(done.exception, ConfigError), done.output
    assert done.output == ""
