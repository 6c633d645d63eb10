"""Scripts about messages that no node of liftpy sends: a program with too many NATS permissions, or a bug of another version."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from dataclasses import replace

from liftpy.core.metadata.state_checksum import DIGEST_SIZE
from liftpy.core.wire._pb import raft_pb2 as pb
from sidecar.quorum import codec, driver
from sidecar.quorum.snapshot_file import decode_snapshot_file, encode_snapshot_file
from tests.simulation.world.checks.raft_files import read_journal
from tests.simulation.world.scripts.stage import Stage, script

_FRAME = struct.Struct("<BBQQQQ")
"""Header of a frame between controllers: kind, flags, epoch of the sender, epoch of the receiver, sequence number, term."""
_HELLO, _DATA, _MEMBERS = 1, 2, 3
_FIRST_AND_LAST = 3
_ANSWERS_NOBODY, _STALE = "refused: hellos that answer nobody", "refused: stale frame"
_FLOOD = 100
"""Number of frames that are sent at once."""
_HEARTBEAT_BYTES = 150
"""Maximum size of a message between controllers without an entry, in bytes."""


class _Forger:
    """Sends frames to the controller ``to`` in the name of the controller ``sender``."""

    def __init__(self, s: Stage, to: str, sender: str) -> None:
        self._s = s
        self.to, self.sender = to, sender
        self._sequence = 0

    def newest(self) -> tuple[int, int, int, int]:
        """Return (epoch of the sender, epoch of the receiver, sequence number, term) of the newest real frame of the session.

        The sequence number is that of the newest frame with data. If the session has none, it is that of the last frame that
        ``send_next`` has sent.
        """
        subject = f"liftpy.raft.{self.to}.{self.sender}"
        session: tuple[int, int, int] | None = None
        for name, message, _ in reversed(self._s.messages):
            if message.subject == subject and name == f"liftpy-{self.sender}-group":
                kind, _, epoch, own, sequence, term = _FRAME.unpack_from(codec.unseal(self.to, self.sender, message.content))
                session = session or (epoch, own, term)
                if kind == _DATA and (epoch, own) == session[:2]:
                    return epoch, own, sequence, session[2]
        assert session is not None, "no frame"
        return *session[:2], self._sequence, session[2]

    async def send_next(self, body: bytes, *, ahead: int = 0) -> None:
        """Send a message that fits into the session. ``ahead``: difference between its term and that of the sender."""
        epoch, own, sequence, term = self.newest()
        self._sequence = sequence + 1
        await self.send(_FRAME.pack(_DATA, _FIRST_AND_LAST, epoch, own, self._sequence, term + ahead) + body)

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
        kinds = ("refused", "ended", "beyond", "other_term")
        return {name: count for name, count in names.items() if any(kind in name for kind in kinds)}


def _wrong_bodies(term: int) -> list[pb.RaftMessage]:
    """Return messages that can be decoded and contradict themselves. ``term``: term of their sender."""
    entry, no_command = pb.RaftEntry(command=b"x", index=7, term=term), pb.RaftEntry(index=7, term=term)
    later = pb.RaftEntry(command=b"x", index=7, term=term + 1)
    appends = (
        pb.RaftAppendEntries(term=term, previousIndex=6),
        pb.RaftAppendEntries(term=term, previousTerm=term),
        pb.RaftAppendEntries(term=term, previousIndex=6, previousTerm=term, entries=[no_command]),
        pb.RaftAppendEntries(term=term, previousIndex=6, previousTerm=term, entries=[later]),
        pb.RaftAppendEntries(term=term, previousIndex=6, previousTerm=term, entries=[entry, entry]),
        pb.RaftAppendEntries(term=term, previousIndex=5, previousTerm=term, entries=[entry]),
    )
    answers = (
        pb.RaftNextIndex(nextIndex=1, success=True, digestIndex=5, digest=b"x"),
        pb.RaftNextIndex(nextIndex=1, success=True, digest=bytes(DIGEST_SIZE)),
        pb.RaftNextIndex(nextIndex=1, success=True, digestIndex=codec.MAX_NUMBER, digest=bytes(DIGEST_SIZE)),
    )
    return [
        *(pb.RaftMessage(appendEntries=one) for one in appends),
        *(pb.RaftMessage(nextIndex=one) for one in answers),
    ]


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
    s.allow("append_answers_beyond_log", "append_answers_of_other_term", "refused: *", "sessions ended: *")
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

    # An earlier version sends hellos without nonces. An answer of an earlier term is no answer to this leader.
    answer = {"type": "next_node_idx", "reset": False, "success": True}
    await _rejects(s, forger, _FRAME.pack(_HELLO, 0, epoch, own, 0, term))
    epoch, own, sequence, term = await forger.next()
    late = _FRAME.pack(_DATA, _FIRST_AND_LAST, epoch, own, sequence + 1, term - 1) + codec.encode(
        {**answer, "next_node_idx": 1}
    )
    await _rejects(s, forger, late, "append_answers_of_other_term")
    await asyncio.sleep(1)

    # These frames fit into the session. Their content ends it, and both sides begin another one at once.
    for body, name in (
        *((body.SerializeToString(), "refused: messages") for body in _wrong_bodies(term)),
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


@script()
async def script_controller_gets_more_frames_than_it_has_room_for(s: Stage) -> None:
    """Given more frames at once than a controller has room for, it drops the oldest ones, counts them, and has room again."""
    s.allow("refused: stale frame", "refused: too many frames at once", "sessions ended: gap")
    await s.create("orders")
    leader = await s.controller()
    forger = _Forger(s, leader, s.others(leader)[0])
    epoch, own, _, term = forger.newest()
    frame = _FRAME.pack(_DATA, 3, epoch + 2, own, 1, term) + bytes(200)
    room_bytes, driver.MAX_INBOX_BYTES = driver.MAX_INBOX_BYTES, 10 * len(frame)
    before = await forger.counters()
    subject, content = f"liftpy.raft.{leader}.{forger.sender}", codec.seal(leader, forger.sender, frame)
    for _ in range(_FLOOD):
        await s.client.transport.connection.publish(subject, content)
    await s.client.transport.connection.flush()
    await asyncio.sleep(0.5)
    after = await forger.counters()
    lost, stale = (after.get(name, 0) - before.get(name, 0) for name in ("refused: too many frames at once", _STALE))
    s.expect(lost >= _FLOOD // 2, True, f"the controller drops {lost} of {_FLOOD} frames")
    s.expect(_FLOOD <= lost + stale <= _FLOOD + 5, True, f"it counts {lost} dropped and {stale} stale frames of {_FLOOD}")
    driver.MAX_INBOX_BYTES = room_bytes
    await s.create("more")
    s.expect((await forger.counters())["refused: too many frames at once"], lost, "dropped frames at the end")


async def _controllers(s: Stage, leader: str) -> list[dict[str, bool]]:
    described = await s.client.admin.describe_cluster()
    return [{"connected": one.connected} for one in described.controllers]


async def ask_for_vote(s: Stage, to: str, asker: str, *, ahead: int) -> None:
    """Ask a controller for its vote in the name of another one, before an election. A leader steps down if the term is later.

    ``ahead``: difference between the term of the question and that of the group.
    """
    forger = _Forger(s, to, asker)
    term = forger.newest()[-1] + ahead
    question = {"type": "pre_vote", "term": term, "last_log_index": 0, "last_log_term": 0}
    await forger.send_next(codec.encode(question), ahead=ahead)


class _Repeater:
    """Sends a controller what its metadata leader may send again: entries and snapshots that it has."""

    def __init__(self, s: Stage, to: str, leader: str) -> None:
        self._s = s
        self.to = to
        self._forger = _Forger(s, to, leader)
        self._raft = s[to].disk.folder / "raft"

    @property
    def journal(self) -> dict[int, tuple[int, bytes]]:
        """Index -> term and command of each entry in the journal of the receiver."""
        return read_journal((self._raft / "journal").read_bytes()).entries

    @property
    def snapshot(self) -> bytes:
        """Content of the snapshot file of the receiver."""
        return (self._raft / "snapshot").read_bytes()

    async def append(self, first: int, last: int, **changed: object) -> dict[str, int]:
        """Send the entries from ``first`` to ``last`` again. Return what the receiver counts."""
        entries = [(command, index, term) for index, (term, command) in self.journal.items() if first <= index <= last]
        before = {"prevLogIdx": first - 1, "prevLogTerm": self.journal[first - 1][0]}
        return await self.send(**{**before, "entries": entries, "commit_index": last, **changed})

    async def send(self, **message: object) -> dict[str, int]:
        """Send an append message of the leader, in its session. Return what the receiver counts."""
        term = self._forger.newest()[-1]
        body = codec.encode({"type": "append_entries", "term": term, "commit_index": 1, "sent_ns": 0, **message})
        before = await self._counters()
        await self._forger.send_next(body)
        after = await self._counters()
        await asyncio.sleep(1)  # the next message of the leader has the same sequence number, and is lost
        return {name: count - before[name] for name, count in after.items() if count != before[name]}

    async def _counters(self) -> Counter[str]:
        counters = (await self._s.status(self._forger.to))["counters"]
        ordinary = ("messages_sent", "sessions_started", _ANSWERS_NOBODY, "refused: duplicate frame")
        names = {name.removeprefix("metadata: "): count for name, count in counters.items() if name.startswith("metadata: ")}
        return Counter({name: count for name, count in names.items() if name not in ordinary})


@script()
async def script_controller_gets_entries_and_snapshots_again(s: Stage) -> None:
    """Given a controller, when messages of its leader come again, it confirms what it has and changes nothing.

    A snapshot that no controller has written ends the session, and both sides begin another one.
    """
    s.allow("entries_known", "refused: duplicate frame", "sessions ended: refused message", "snapshot*")
    for name in ("orders", "bills", "more"):
        await s.create(name)
    leader = await s.controller()
    repeater = _Repeater(s, s.others(leader)[0], leader)
    await asyncio.sleep(3)
    s.forget_log()
    journal, snapshot = repeater.journal, repeater.snapshot
    last = max(journal)
    s.expect(await repeater.append(last - 2, last), {"entries_known": 3}, "counters after the newest entries")
    since = len(s.messages)
    s.expect(await repeater.append(last - 4, last - 2), {"entries_known": 3}, "counters after earlier entries")
    sizes = [len(one.content) for one in s.messages_to(f"liftpy.raft.{repeater.to}.{leader}", since)][
        1:
    ]  # without the repeated one
    s.expect(max(sizes) < _HEARTBEAT_BYTES, True, "the leader sends no entry again")
    s.expect(
        await repeater.append(last, last, commit_index=last + 100), {"entries_known": 1}, "counters after a late commit index"
    )
    earlier = {"term": 0, "prevLogIdx": last, "prevLogTerm": 0, "entries": [], "commit_index": last}
    s.expect(await repeater.send(**earlier), {}, "counters after a message of an earlier leader")
    for pieces in ([snapshot], [snapshot[:100], snapshot[100:]]):
        counted: dict[str, int] = {}
        for number, piece in enumerate(pieces):
            counted |= await repeater.send(serialized=(piece, number == 0, number == len(pieces) - 1))
        s.expect(counted, {"snapshots_known": 1}, f"counters after a known snapshot in {len(pieces)} pieces")
    s.expect(await repeater.send(serialized=None), {}, "counters after a snapshot without bytes")
    s.expect(await repeater.send(serialized=(snapshot, True, True), term=0), {}, "counters after one of an earlier leader")
    later = decode_snapshot_file(snapshot)
    later = replace(later, last=(b"\1", last + 2, 99), previous=(b"\1", last + 1, 99))
    for name, chunk in (
        ("snapshots_rejected", (snapshot[:-1], True, True)),
        ("snapshots_rejected", (encode_snapshot_file(later), True, True)),
        ("snapshot_chunks_out_of_order", (snapshot, False, True)),
    ):
        ended = {name: 1, "sessions ended: refused message": 1}
        s.expect(await repeater.send(serialized=chunk), ended, "counters after a snapshot of nobody")
    s.expect(repeater.journal, journal, "entries of the journal")
    s.expect(s.log(repeater.to), [], "log lines")
    await s.create("last")
    s.expect(await s.controller(), leader, "metadata leader")


@script()
async def script_controller_is_asked_for_votes_in_the_name_of_others(s: Stage) -> None:
    """Given a metadata leader, when requests for votes are forged, no controller gives one, and the leader stays.

    A question with a later term makes the leader step down: the real sender would ignore it. Then one election follows.
    """
    s.allow("refused: duplicate frame", "votes_rejected_leader_known")
    await s.create("orders", leader="n2")
    await asyncio.sleep(3)
    leader = await s.controller()
    asker, voter = s.others(leader)
    s.forget_log()
    forgers = {to: _Forger(s, to, asker) for to in (leader, voter)}

    async def ask(to: str, kind: str, ahead: int) -> int:
        """Ask for a vote in the term ``ahead`` of the present one. Return the growth of the counters of rejected votes."""
        term = forgers[to].newest()[-1]
        body = codec.encode({"type": kind, "term": term + ahead, "last_log_index": 1_000, "last_log_term": term})
        names = ("metadata: votes_rejected_leader_known", "metadata: pre_votes_rejected")
        before = [await s.counter(to, name) for name in names]
        await forgers[to].send_next(body, ahead=ahead)
        after = [await s.counter(to, name) for name in names]
        await asyncio.sleep(1)
        return sum(after) - sum(before)

    term = (await s.client.admin.describe_cluster()).controllers[0].term
    s.expect(await ask(voter, "request_vote", 1), 1, "rejected requests for votes")
    s.expect(await ask(voter, "pre_vote", 1), 1, "rejected questions to a controller that hears its leader")
    s.expect(await ask(leader, "pre_vote", 0), 1, "rejected questions to the leader")
    terms = {one.term for one in (await s.client.admin.describe_cluster()).controllers}
    s.expect((await s.controller(), terms), (leader, {term}), "leader and term")
    s.expect(sum(s.count_log(node, "metadata.leadership") for node in s.names), 0, "changes of the leader")

    s.expect(await ask(leader, "pre_vote", 5), 1, "rejected questions to the leader")
    await s.becomes(
        lambda: any(s.count_log(node, "metadata.leadership_gained") for node in s.names), within_s=3, what="a leader"
    )
    s.expect(s.count_log(leader, "metadata.leadership_lost"), 1, "log lines of the former leader")
    await s.create("more")
    terms = {one.term for one in (await s.client.admin.describe_cluster()).controllers}
    s.expect((len(terms), min(terms) > term + 5), (1, True), f"terms of the controllers after {term + 5}: {terms}")
    s.expect(sum(s.count_log(node, "metadata.leadership_gained") for node in s.names), 1, "elections")
