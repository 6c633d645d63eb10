"""Test the subject index against a plain comparison of all subjects."""

from __future__ import annotations

import itertools
import time

import pytest
from cluster_driver import Driver, Error
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.core.metadata.codec import decode_snapshot, encode_snapshot
from liftpy.core.metadata.image import ClusterImage, SubjectIndex
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.core.wire.subjects import data_subject, overlaps_inbox
from tests.each import each
from tests.long import examples
from tests.unit.metadata.image_checks import check_image

TOKENS = ("a", "b", "1", "2", "3", "01")
WORLD = [tokens for length in range(1, 6) for tokens in itertools.product(TOKENS[:4], repeat=length)]
"""Subjects that somebody may publish on; a pattern of up to four tokens that overlaps with another one does so on one of them."""


def heard(subject: str, partitions: int) -> set[tuple[str, ...]]:
    found = set()
    for number in range(partitions):
        wanted = data_subject(subject, number).split(".")
        for tokens in WORLD:
            if wanted[-1] == ">":
                fits = len(tokens) >= len(wanted)
            else:
                fits = len(tokens) == len(wanted)
            if fits and all(w in ("*", ">", t) for w, t in zip(wanted, tokens, strict=False)):
                found.add(tokens)
    return found


def _streams() -> st.SearchStrategy[tuple[str, int]]:
    head = st.sampled_from(("a", "b"))
    rest = st.lists(st.sampled_from(("a", "1", "2", "*")), max_size=3)
    tail = st.sampled_from(((), (">",)))
    return st.tuples(head, rest, tail, st.integers(1, 3)).map(
        lambda drawn: (".".join((drawn[0], *drawn[1][: 3 - len(drawn[2])], *drawn[2])), 1 if drawn[2] else drawn[3])
    )


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(_streams(), min_size=1, max_size=6), _streams())
def test_subject_index_search_returns_exactly_the_streams_with_overlapping_subjects(
    held: list[tuple[str, int]], wanted: tuple[str, int]
) -> None:
    index = SubjectIndex()
    for number, (subject, partitions) in enumerate(held):
        index = index.with_stream(f"s{number}", subject, partitions)
    found = index.overlapping(*wanted)
    overlapping = {f"s{number}" for number, stream in enumerate(held) if heard(*stream) & heard(*wanted)}
    assert found in overlapping if overlapping else found == "", (held, wanted)
    for number, (subject, _) in enumerate(held):
        index = index.without_stream(f"s{number}", subject)
    assert index == SubjectIndex()


def create(driver: Driver, name: str, subject: str, partitions: int = 1, ack: str = "") -> pb.ControlResponse:
    return driver.create(name, subject, partitions=partitions, config=pb.StreamConfig(ackPolicy=ack))


@each(
    ("held", "partitions", "wanted", "count"),
    [
        ("shop.orders", 1, "shop.orders", 1),
        ("shop.>", 1, "shop.orders", 1),
        ("shop.orders", 1, "shop.>", 1),
        ("shop.*.new", 1, "shop.eu.*", 1),
        ("shop.orders", 4, "shop.orders.3", 1),
        ("shop.orders.3", 1, "shop.orders", 4),
        ("shop.orders", 3, "shop.*", 2),
        ("shop.orders", 2, "shop.*.1", 1),
        ("shop.orders", 2, "shop.orders.>", 1),
        ("shop.orders.*", 1, "shop.orders", 2),
    ],
)
def test_create_stream_with_an_overlapping_subject_is_rejected(held: str, partitions: int, wanted: str, count: int) -> None:
    driver = Driver(("a",))
    assert create(driver, "one", held, partitions).error == Error.OK
    before = driver.fsm.image
    refused = create(driver, "two", wanted, count)
    assert refused.error == Error.INVALID
    assert "subjects overlap with an existing stream (err_code 10065)" in refused.detail
    assert "'one'" in refused.detail
    assert driver.fsm.image.streams == before.streams
    assert driver.fsm.image.counters == before.counters
    assert create(driver, "two", wanted, count, "none").error == Error.OK
    check_image(driver.fsm.image)


@pytest.mark.parametrize(
    ("held", "partitions", "wanted", "count"),
    [
        ("shop.orders", 1, "shop.orders.1", 1),
        ("shop.orders", 3, "shop.orders.3", 1),
        ("shop.orders", 3, "shop.orders.01", 1),
        ("shop.orders", 12, "shop.orders.x", 1),
        ("shop.>", 1, "shop", 1),
        ("shop.*", 1, "shop.a.b", 1),
        ("a.b", 1, "b.a", 1),
    ],
)
def test_create_stream_with_disjoint_subjects_is_accepted(held: str, partitions: int, wanted: str, count: int) -> None:
    driver = Driver(("a",))
    assert create(driver, "one", held, partitions).error == Error.OK
    assert create(driver, "two", wanted, count).error == Error.OK


def test_create_stream_with_a_subject_of_a_deleted_stream_or_a_stream_without_acks_is_accepted() -> None:
    driver = Driver(("a",))
    assert create(driver, "audit", "shop.>", ack="none").error == Error.OK
    assert create(driver, "all", "shop.>").error == Error.OK
    assert create(driver, "more", "shop.eu").error == Error.INVALID
    driver.ask(deleteStream=pb.DeleteStream(name="all"))
    assert create(driver, "more", "shop.eu").error == Error.OK
    image: ClusterImage = decode_snapshot(encode_snapshot(driver.fsm.image))
    assert image.answering == driver.fsm.image.answering
    check_image(image)


@each("name", ["control", "feed", "inbox", "info", "notify", "raft", "service", "status"])
def test_create_stream_with_a_name_of_protocol_words_is_rejected(name: str) -> None:
    assert "protocol's own" in create(Driver(("a",)), name, "shop").detail


@each(
    ("subject", "partitions", "under"),
    [
        ("acme.inbox", 1, False),
        ("acme.inbox", 2, True),
        ("acme.inbox.x", 1, True),
        ("acme.>", 1, True),
        ("acme.*", 1, False),
        ("acme.*", 2, True),
        ("*.*.x", 1, True),
        ("acme.inbox2.x", 1, False),
        ("acme", 9, False),
        ("shop.>", 1, False),
    ],
)
def test_create_stream_with_a_subject_under_an_inbox_prefix_is_rejected(subject: str, partitions: int, under: bool) -> None:
    assert overlaps_inbox(subject, partitions, "acme.inbox.") is under


def test_subject_index_search_in_many_streams_compares_few_streams() -> None:
    index = SubjectIndex()
    for number in range(20_000):
        index = index.with_stream(f"s{number}", f"data.s{number}", 3)
    began = time.process_time()
    for number in range(1000):
        assert index.overlapping(f"data.t{number}", 4) == ""
    assert time.process_time() - began < 1.0  # each is 10 us or so; a look at all of them would take 1000 x 20 ms
