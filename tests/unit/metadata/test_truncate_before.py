"""Test TruncateBefore: the requested log start never goes back. ``golden/elections.txt`` shows when it is reset."""

from __future__ import annotations

import pytest
from cluster_driver import Driver, Error

from liftpy.core.wire._pb import cluster_pb2 as pb


def ask(driver: Driver, offset: int, **more: object) -> pb.ControlResponse:
    about = {"stream": "orders", "uid": driver.fsm.image.streams["orders"].uid, "partition": 1} | more
    return driver.ask(truncateBefore=pb.TruncateBefore(offset=offset, **about))  # type: ignore[arg-type]


@pytest.mark.parametrize("offset", [40, 41])
def test_truncate_before_of_a_lower_offset_keeps_the_requested_log_start(offset: int) -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=2)
    ask(driver, 41)
    before = driver.fsm.image
    answer = ask(driver, offset)
    assert (answer.error, answer.partition.askedStart) == (Error.OK, 41)
    assert driver.fsm.image.streams == before.streams


@pytest.mark.parametrize(
    ("more", "error"),
    [({"uid": ""}, Error.NOT_FOUND), ({"uid": "of before"}, Error.NOT_FOUND), ({"partition": 2}, Error.NOT_FOUND),
     ({"stream": "other"}, Error.NOT_FOUND), ({"offset": -1}, Error.INVALID), ({"offset": (1 << 62) + 1}, Error.INVALID)],
)  # fmt: skip
def test_truncate_before_of_another_stream_or_an_impossible_offset_is_rejected(more: dict[str, object], error: int) -> None:
    driver = Driver(("a", "b", "c"))
    driver.create(partitions=2)
    before = driver.fsm.image.streams
    assert ask(driver, **({"offset": 41} | more)).error == error  # type: ignore[arg-type]
    assert driver.fsm.image.streams == before
    assert ask(driver, 1 << 62).error == Error.OK
