"""Test the inbox rule: which reply subjects a node may answer on."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.core.wire.subjects import DEFAULT_INBOX_PREFIXES, InboxRule, Subjects, check_inbox_prefixes, overlaps_inbox
from liftpy.errors import ConfigError
from liftpy.nats.credentials import Credentials
from sidecar.runtime.settings import NodeSettings
from tests.each import each
from tests.long import examples


@each(
    ("subject", "allowed"),
    [
        (b"_INBOX.x", True),
        (b"_INBOX_alice.x.y", True),
        (b"_INBOX-7\xc3\xa9.x", True),
        (b"_INBOX.x.", True),
        (b"_INBOX.", False),
        (b"_INBOX", False),
        (b"_INBOX_alice", False),
        (b"_INBOX_alice.", False),
        (b"_INBOX*.x", False),
        (b"_INBOX_\xff.x", False),
        (b"_INBOX_a b.x", False),
        (b"_INBO.x", False),
        (b"x._INBOX.y", False),
        (b"liftpy.inbox.n1.x", False),
        (b"liftpy.control.admin", False),
        (b"orders", False),
        (b"_INBOX_" + b"x" * 250 + b".y", False),
        (b"_INBOXX.x", False),
        (b"_INBOX7.x", False),
        (b"_INBOX\xc3\xa9.x", False),
    ],
)
def test_inbox_rule_by_default_allows_the_inbox_of_every_user(subject: bytes, allowed: bool) -> None:
    assert InboxRule(DEFAULT_INBOX_PREFIXES).allows(subject) is allowed


GOOD = (b"_INBOX.x", b"_INBOX_alice.x.y", b"_INBOX." + b"x" * 248)
BAD = (
    b"", b"_INBOX.", b"orders", b"_INBOX.a b", b"_INBOX.a*", b"_INBOX_\xff.x", b"_INBOX." + b"x" * 249, b"_INBOX.a\n",
    b"\n_INBOX.a", b"_INBOX.a\n_INBOX.b", b"liftpy.inbox.n1.x", b"_INBOX.a\r", b"x_INBOX.a", b"_INBOX.\x7f", b"_INBOX.a\x00b",
    b"_INBOX.a\x0bb", b"_INBOX.a\x1fb", b"_INBOX.a\r\nPUB x 0", b"_INBOX.*", b"_INBOX.>",
)  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.sampled_from(GOOD + BAD) | st.binary(max_size=12).map(lambda tail: b"_INBOX." + tail), min_size=1, max_size=6)
)
def test_inbox_rule_allows_a_list_of_subjects_only_if_each_is_allowed(subjects: list[bytes]) -> None:
    rule = InboxRule(DEFAULT_INBOX_PREFIXES)
    each = [rule.allows(subject) for subject in subjects]
    if rule.allows_all(subjects):
        assert all(each)
    elif all(each):
        assert not b"".join(subjects).isascii(), "what is not ASCII is looked at on its own"


@each("bad", BAD)
def test_inbox_rule_rejects_a_forbidden_subject_alone_and_in_a_list(bad: bytes) -> None:
    rule = InboxRule(DEFAULT_INBOX_PREFIXES)
    assert not rule.allows(bad)
    assert rule.allows_all(GOOD * 50)
    for place in (0, 75, 150):
        subjects = list(GOOD * 50)
        subjects.insert(place, bad)
        assert not rule.allows_all(subjects)


def test_inbox_rule_prefix_without_a_star_allows_only_that_exact_prefix() -> None:
    rule = InboxRule(("_INBOX.", "acme.box."))
    assert [rule.allows(s) for s in (b"_INBOX.x", b"_INBOX_a.x", b"acme.box.x", b"acme.boxes.x", b"acmexbox.x")] == [
        True, False, True, False, False,
    ]  # fmt: skip


@each("prefix", ["", ".", "_INBOX", "*.", "a.*.", "a*b.", ">.", "a.>.", "a b.", "a..b.", "a\x00.", "_INBOX**."])
def test_inbox_prefix_that_is_invalid_is_rejected(prefix: str) -> None:
    with pytest.raises(ConfigError, match="must end with a dot"):
        check_inbox_prefixes((prefix,))
    with pytest.raises(ConfigError, match=r"must end with a dot|is not a prefix of subjects"):
        Credentials(inbox_prefix=prefix.removesuffix(".") + ".") if prefix else check_inbox_prefixes(())


@pytest.mark.parametrize("prefix", ["liftpy.", "liftpy.inbox.", "liftpy.inbox.n1.", "lift*.", "liftpy.x."])
def test_inbox_prefix_inside_the_namespace_of_the_cluster_is_rejected(prefix: str) -> None:
    with pytest.raises(ConfigError, match="must not contain"):
        NodeSettings("n1", Path("x"), inbox_prefixes=(prefix,))
    NodeSettings("n1", Path("x"), namespace="other", inbox_prefixes=(prefix,))


@pytest.mark.parametrize("prefix", ["_INBOX_*.", "box-*."])
def test_inbox_rule_prefix_with_a_star_after_a_separator_allows_any_suffix(prefix: str) -> None:
    rule, stem = InboxRule((prefix,)), prefix[:-2].encode()
    assert rule.allows(stem + b"alice.x")
    assert rule.allows(stem + b".x")
    assert not rule.allows(stem[:-1] + b".x")


def test_inbox_prefix_with_a_star_rejects_stream_subjects_below_it() -> None:
    assert overlaps_inbox("acme-box7.x", 1, "acme*.")
    assert overlaps_inbox("*.x", 1, "acme*.")
    assert not overlaps_inbox("other.x", 1, "acme*.")
    assert not overlaps_inbox("acme7", 1, "acme*.")
    assert not overlaps_inbox("acme7.x", 1, "acme*."), "answers never go there"


def test_principal_name_of_more_than_one_subject_token_is_rejected() -> None:
    assert Subjects("ns", principal="alice").control_admin() == "ns.control.admin.alice"
    assert Subjects("ns").control_admin() == "ns.control.admin"
    for wrong in ("a.b", "*", ">", "a b"):
        with pytest.raises(ConfigError):
            Credentials(principal=wrong)
