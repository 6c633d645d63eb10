"""Test the channel of a worker process to its node: pings, the end of the node, limits, and the metadata that it receives."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.core.wire._pb import cluster_pb2 as cluster
from liftpy.core.wire.worker_frames import Frame, FrameKind, FrameReader, encode
from liftpy.errors import ProtocolError
from sidecar.node import worker_node as channels
from sidecar.node.worker_node import EXIT_NODE_ENDED, Channel, RelayedGroup
from tests.until import block_until


class Ends:
    """Both ends of a channel, and the exit codes of the worker. The event loop of the worker runs nothing until ``turn``."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(30)
        self.codes: list[int] = []
        self.left = threading.Event()
        self.channel = Channel(theirs, self._leave)
        self.heard: list[Frame] = []
        self.calls: list[tuple[Any, Frame]] = []
        self._reader = FrameReader()

    def _leave(self, code: int) -> None:
        self.codes.append(code)
        self.left.set()

    def start(self, session_s: float = 30.0) -> None:
        self.channel.start(session_s, lambda call, frame: self.calls.append((call, frame)), self.heard.append)
        assert self.received(FrameKind.HELLO) == [FrameKind.HELLO]

    def turn(self) -> None:
        """Let the event loop of the worker run once."""
        calls, self.calls = self.calls, []
        for call, frame in calls:
            call(frame)

    def received(self, last: FrameKind) -> list[FrameKind]:
        """Return the kinds of the frames that the node receives up to the next one of the kind ``last``."""
        found: list[FrameKind] = []
        while not found or found[-1] is not last:
            data = self.ours.recv(1000)
            assert data, "the worker has closed the connection"
            found += [frame.kind for frame in self._reader.feed(data)]
        return found

    def pongs(self, number: int) -> int:
        """Send a ping. Return the number of answers. ``number``: token of the frame behind the ping."""
        self.ours.sendall(encode(FrameKind.PING) + encode(FrameKind.HEARTBEAT_ANSWERED, number))
        block_until(lambda: any(frame == Frame(FrameKind.HEARTBEAT_ANSWERED, number, b"") for _, frame in self.calls))
        self.channel.send(FrameKind.PARTITIONS_OPENED)
        return self.received(FrameKind.PARTITIONS_OPENED).count(FrameKind.PONG)

    def close(self) -> None:
        """End the node. The worker leaves."""
        self.ours.close()
        assert self.left.wait(20)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_worker_channel_passes_frames_to_the_event_loop_and_ends_with_the_node() -> None:
    ends = Ends()
    ends.ours.sendall(encode(FrameKind.SETUP, 0, b"{}") + encode(FrameKind.HEARTBEAT_ANSWERED, 3))
    assert ends.channel.setup() == b"{}"
    ends.start()
    assert ends.pongs(4) == 1
    ends.turn()
    assert ends.heard == [Frame(FrameKind.HEARTBEAT_ANSWERED, number, b"") for number in (3, 4)]
    ends.close()
    assert ends.codes[0] == EXIT_NODE_ENDED


def test_worker_channel_answers_no_ping_after_the_event_loop_is_blocked_for_a_session_timeout(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(channels, "time", SimpleNamespace(monotonic=lambda: now[0]))
    now[0] = 10.0  # the time before the loop runs does not count
    ends.start(session_s=1.0)

    def pongs(at_s: float) -> int:
        now[0] = at_s
        return ends.pongs(round(at_s * 10))

    assert [pongs(10.5), pongs(11.5)] == [1, 0]
    assert [frame.kind for _, frame in ends.calls].count(FrameKind.PING) == 1, "the loop is asked once for several pings"
    ends.turn()
    assert [pongs(12.4), pongs(12.6)] == [1, 0]
    assert [frame.kind for _, frame in ends.calls].count(FrameKind.PING) == 1, "the loop is asked again after each turn"


@pytest.mark.parametrize("first", [encode(FrameKind.HEARTBEAT_ANSWERED, 3), b"x" * 100])
def test_worker_channel_without_a_setup_frame_ends_the_worker_process(ends: Ends, first: bytes) -> None:
    ends.ours.sendall(first)
    ends.channel.setup()
    assert ends.codes[0] == EXIT_NODE_ENDED


def test_worker_channel_of_a_node_that_does_not_read_ends_the_worker_process(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "MOST_UNSENT_BYTES", 1000)
    ends.start()
    for _ in range(5):
        ends.channel.send(FrameKind.HEALTH_REPORT, 0, bytes(400))
        ends.received(FrameKind.HEALTH_REPORT)
        block_until(lambda: not ends.channel._unsent_bytes)
    assert ends.codes == []
    for _ in range(1000):  # more than the socket holds
        ends.channel.send(FrameKind.HEALTH_REPORT, 0, bytes(900))
    assert ends.codes[0] == EXIT_NODE_ENDED


def test_worker_channel_closed_by_the_node_ends_a_hanging_worker_stop() -> None:
    ends = Ends()
    ends.start()
    ends.ours.sendall(encode(FrameKind.STOP))
    block_until(lambda: ends.calls)
    assert ends.codes == []
    ends.close()
    assert ends.codes[0] == EXIT_NODE_ENDED


def test_worker_channel_answers_pings_during_the_stop_while_the_event_loop_runs() -> None:
    ends = Ends()
    ends.start()
    ends.ours.sendall(encode(FrameKind.STOP))
    block_until(lambda: ends.calls)
    ends.ours.sendall(encode(FrameKind.PING))
    ends.received(FrameKind.PONG)
    ends.close()


# ---- metadata ------------------------------------------------------------------------------------------------------------------
async def test_worker_process_metadata_applies_only_consecutive_feed_entries() -> None:
    group, shown = RelayedGroup(lambda kind, token, body: None), list[tuple[int, bool]]()
    group.watch(lambda old, new: shown.append((new.index, group.image is new)))
    group.apply_entry(cluster.FeedEntry(previousIndex=0, index=4).SerializeToString())
    for wrong in (3, 5):
        with pytest.raises(ProtocolError):
            group.apply_entry(cluster.FeedEntry(previousIndex=wrong, index=9).SerializeToString())
    assert (shown, group.image.index) == ([(4, True)], 4), "watchers find the new image"
    assert not group.decides, "data is deleted only when a controller says so"


async def test_worker_process_metadata_passes_each_answer_to_its_proposal() -> None:
    said: list[tuple[FrameKind, int, bytes]] = []
    group = RelayedGroup(lambda kind, token, body: said.append((kind, token, body)))
    canceled = asyncio.ensure_future(group.propose(cluster.ControlRequest()))
    await asyncio.sleep(0)
    canceled.cancel()
    group.process_answer(said[0][1], b"")  # at the same time
    await asyncio.wait([canceled])
    group.process_answer(said[0][1], b"")  # late
    asking = asyncio.ensure_future(group.propose(cluster.ControlRequest(barrier=cluster.Barrier()), 2.5))
    await asyncio.sleep(0)
    kind, token, body = said[1]
    assert (kind, body[:4]) == (FrameKind.CONTROL_REQUEST, (2500).to_bytes(4, "big"))
    group.process_answer(token + 1, b"")
    group.process_answer(token, cluster.ControlResponse(index=8).SerializeToString())
    assert (await asking).index == 8
    assert group._asked == {}
