"""Scripts about messages that no node of liftpy sends: a program with too many NATS permissions, or a bug of another version."""

from __future__ import annotations

import asyncio
import struct

from sidecar.quorum import codec
from tests.simulation.world.scripts.stage import Stage, script

_FRAME = struct.Struct("<BBQQQQ")
"""Header of a frame between controllers: kind, flags, epoch of the sender, epoch of the receiver, sequence number, term."""
_HELLO, _DATA, _MEMBERS = 1, 2, 3
_FIRST_AND_LAST = 3
_ANSWERS_NOBODY, _STALE = "refused: hellos that answer nobody", "refused: stale frame"


class _Forger:
    """Sends frames to the controller ``to`` in the name of the controller ``sender``."""

    def __init__(self, s: Stage, to: str, sender: str) -> None:
        self._s = s
        self.to, self.sender = to, sender

    def newest(self) -> tuple[int, int, int, int]:
        """Return (epoch of the sender, epoch of the receiver, sequence number, term) of the newest real frame with data."""
        subject = f"liftpy.raft.{self.to}.{self.sender}"
        for name, message, _ in reversed(self._s.messages):
            if message.subject == subject and name == f"liftpy-{self.sender}-group":
                kind, _, epoch, own, sequence, term = _FRAME.unpack_from(codec.unseal(self.to, self.sender, message.content))
                if kind == _DATA:
                    return epoch, own, sequence, term
        raise AssertionError("no frame with data")

    async def next(self) -> tuple[int, int, int, int]:
        """Wait for a real frame with data, and return ``newest``. The real sender sends no other one in the next milliseconds."""
        before = self.newest()
        while self.newest() == before:
            await asyncio.sleep(0.002)
        return self.newest()

    async def send(self, frame: bytes, sender: str = "") -> None:
        """Send a frame. ``sender``: default the controller of this forger."""
        sender = sender or self.sender
        content = codec.seal(self.to, sender, frame)
        await self._s.client.transport.connection.publish(f"liftpy.raft.{self.to}.{sender}", content)
        await asyncio.sleep(0.01)

    async def counters(self) -> dict[str, int]:
        """Return the counters of rejected frames and ended sessions of the receiver."""
        counters = (await self._s.status(self.to))["counters"]
        names = {name.removeprefix("metadata: "): count for name, count in counters.items() if name.startswith("metadata: ")}
        return {name: count for name, count in names.items() if "refused" in name or "ended" in name or "beyond" in name}


async def _rejects(s: Stage, forger: _Forger, frame: bytes, *names: str, sender: str = "") -> None:
    """Expect that the receiver counts a forged frame under ``names``, and nothing else."""
    before = await forger.counters()
    await forger.send(frame, sender)
    after = await forger.counters()
    changes = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
    if any("ended" in name for name in names):
        changes.pop(_ANSWERS_NOBODY, None)  # both sides may begin the next session at the same time
        changes.pop(_STALE, None)  # a frame of the session that has ended may still arrive
    s.expect(changes, dict.fromkeys(names, 1), f"counters after a forged frame {frame[:2]!r}")


@script()
async def script_controller_gets_frames_that_no_controller_sends(s: Stage) -> None:
    """Given forged frames between controllers, their receiver counts each by its fault. Most of them disturb nothing."""
    await s.create("orders", leader="n2")
    leader = await s.controller()
    sender = s.others(leader)[0]
    forger = _Forger(s, leader, sender)
    await asyncio.sleep(3)
    s.forget_log()
    epoch, own, sequence, term = forger.newest()
    data = _FRAME.pack(_DATA, _FIRST_AND_LAST, epoch, own, sequence, term)
    await _rejects(s, forger, b"", "refused: short frame")
    await _rejects(s, forger, data[:-1], "refused: short frame")
    await _rejects(s, forger, data, "refused: unknown sender", sender="n9")
    await _rejects(s, forger, _FRAME.pack(_DATA, 3, epoch + 2, own, sequence + 1, term), _STALE)
    await _rejects(s, forger, _FRAME.pack(_DATA, 3, epoch, own + 2, sequence + 1, term), _STALE)
    await _rejects(s, forger, _FRAME.pack(9, 3, epoch, own, sequence + 1, term), _STALE)
    await _rejects(s, forger, _FRAME.pack(_DATA, 3, epoch, own, sequence + 1, 1 << 62), _STALE)
    await _rejects(s, forger, _FRAME.pack(_HELLO, 0, epoch, own, 0, 1 << 62), _STALE)
    await _rejects(s, forger, _FRAME.pack(_DATA, 3, *forger.newest()), "refused: duplicate frame")
    await _rejects(s, forger, _FRAME.pack(_HELLO, 0, epoch, own, 0, term) + b"\1", "refused: hellos")
    await _rejects(s, forger, _FRAME.pack(_HELLO, 0, epoch, own, 0, term) + bytes(17), "refused: hellos")
    await _rejects(s, forger, _FRAME.pack(_HELLO, 0, epoch, own + 2, 0, term), _ANSWERS_NOBODY)
    await _rejects(s, forger, _FRAME.pack(_HELLO, 0, epoch, own, 0, term + (1 << 24)), "refused: terms out of reach")
    s.expect_log(leader, f"WARNING *: impossible term rejected peer={sender} peer_term={term + (1 << 24)} term={term}")
    s.expect((await s.status(leader))["metadata_leader"], leader, "metadata leader")

    # These frames fit into the session. Their content ends it, and both sides begin another one at once.
    s.accepts_rejected_messages = True
    answer = {"type": "next_node_idx", "reset": False, "success": True}
    for body, name in (
        (b"\xff", "refused: messages"),
        (b"", "refused: messages"),
        (codec.encode({**answer, "next_node_idx": 1 << 62}), "refused: messages"),
        (codec.encode({"type": "pre_vote", "term": 1, "last_log_index": 1, "last_log_term": 2}), "refused: messages"),
        (codec.encode({"type": "response_vote", "term": term + 1}), "refused: messages"),
        (codec.encode({**answer, "next_node_idx": 0}), "append_answers_beyond_log"),
        (codec.encode({**answer, "next_node_idx": 10_000}), "append_answers_beyond_log"),
    ):
        epoch, own, sequence, term = await forger.next()
        ended = "sessions ended: refused message"
        frame = _FRAME.pack(_DATA, _FIRST_AND_LAST, epoch, own, sequence + 1, term) + body
        await _rejects(s, forger, frame, name, ended)
        await asyncio.sleep(1)
    epoch, own, sequence, term = await forger.next()
    await _rejects(s, forger, _FRAME.pack(_DATA, 0, epoch, own, sequence + 1, term) + b"part", "sessions ended: bad chunk")
    await asyncio.sleep(1)
    epoch, own, sequence, term = await forger.next()
    await _rejects(s, forger, _FRAME.pack(_DATA, 3, epoch, own, sequence + 2, term), "sessions ended: gap")
    await asyncio.sleep(1)
    epoch, own, sequence, term = await forger.next()
    members = _FRAME.pack(_MEMBERS, 0, epoch, own, 0, term)
    counted = "refused: other lists of controllers", "sessions ended: another list of controllers"
    await _rejects(s, forger, members + b"n1, n2, n3, n4", *counted)
    await asyncio.sleep(3)
    s.expect(s.count_log(leader, "ERROR metadata.lists_differ: * here=n1, n2, n3 there=n1, n2, n3, n4"), 1, "log lines")
    await s.create("more")
    s.expect(await s.controller(), leader, "metadata leader")
    s.expect(len({(await s.status(node))["metadata_index"] for node in s.names}), 1, "number of different metadata")
    s.expect([one["connected"] for one in await _controllers(s, leader)], [True, True, True], "connected controllers")


async def _controllers(s: Stage, leader: str) -> list[dict[str, bool]]:
    described = await s.client.admin.describe_cluster()
    return [{"connected": one.connected} for one in described.controllers]
