"""Scripts about the raft directory of a controller: damage of each kind, and directories from which no rescue is possible."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from liftpy.core.log.small_files import seal_frame
from liftpy.core.metadata.codec import decode_snapshot, encode_snapshot
from liftpy.core.metadata.controller_list import ControllerList
from liftpy.core.metadata.state_checksum import DIGEST_SIZE, AppliedDigests
from liftpy.errors import ConfigError, CorruptionError, InvariantError, LiftError, MetadataDivergedError, UnknownFormatError
from sidecar.disk.files import decode_checked_json, encode_checked_json
from sidecar.quorum.rescue import lock_directories, newest, read_survivor, rescue
from sidecar.quorum.snapshot_file import decode_snapshot_file, encode_snapshot_file
from tests.simulation.world.checks.raft_files import read_journal
from tests.simulation.world.machine.scheduler import NS_PER_S
from tests.simulation.world.scripts.stage import Stage, script

_RECORD = struct.Struct("<BQQI")
"""Beginning of a record of the journal: kind, two numbers, size of the body in bytes."""
_ENTRY, _META = 1, 3
_SNAPSHOT_HEAD = struct.Struct("<4sII")
_FEW_TERMS = 4
"""Maximum difference of the terms before a stop of all controllers and after their next start."""
_CHECKPOINT_ENTRIES = 16
"""Number of entries between two comparisons of the images, instead of 1024."""


def _record(kind: int, a: int, b: int, body: bytes, size_bytes: int = -1) -> bytes:
    """Return a record of the journal. ``size_bytes``: size that it says, default: that of its body."""
    return _RECORD.pack(kind, a, b, len(body) if size_bytes < 0 else size_bytes) + body


async def _start_and_stop(s: Stage) -> Path:
    """Start a node with one stream, and stop it. Return its raft directory."""
    await s.start("n1")
    raft = s["n1"].disk.folder / "raft"
    await s.becomes((raft / "snapshot").exists, within_s=2, what="n1 has a snapshot")
    await s.create("orders")
    await s.stop("n1")
    return raft


def _files(folder: Path) -> dict[str, bytes]:
    """Return the content of each file in a folder, {} if there is no folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)


async def _expect_failures(s: Stage, file: Path, cases: list[tuple[bytes, type[LiftError], str]]) -> None:
    """Expect that a start fails with each content of ``file``, names the reason, and leaves the file. Then put it back."""
    before = _files(file.parent)
    for content, error, reason in cases:
        _write(file, content)
        text = await s.start_fails(s["n1"], error)
        s.expect_in(reason, text, "error of the start")
        after = _files(file.parent)
        s.expect(after.keys(), before.keys(), "files after a failed start")
        s.expect(after[file.name] == content, True, f"a failed start has left the file as it was: {reason}")
    _write(file, before[file.name])
    await s.start("n1")
    s.expect([stream.name for stream in await s.client.admin.list_streams()], ["orders"], "streams")


@script(nodes=1, controllers=1, starts=False)
async def script_journal_with_impossible_records_is_damaged(s: Stage) -> None:
    """Given a journal with right checksums and impossible records, the start fails, and says at which position. It leaves the file."""
    journal = await _start_and_stop(s) / "journal"
    data = journal.read_bytes()
    end = read_journal(data).last_index + 1
    impossible = (
        (_record(9, 1, 1, b""), "unknown kind of record 9"),
        (_record(_ENTRY, 1 << 62, 1, b"x"), "is not a term or an index"),
        (_record(_ENTRY, end, 1 << 62, b"x"), "is not a term or an index"),
        (_record(_ENTRY, end, 1, b""), f"entry {end} is empty or does not follow the one before it"),
        (_record(_ENTRY, end + 1, 1, b"x"), f"entry {end + 1} is empty or does not follow the one before it"),
        (_record(_ENTRY, end, 1, b"x", 2), "a record is longer than its frame"),
        (_record(_META, 1, 1, b"\xff"), "can't decode byte 0xff"),
        (_record(_META, 1, 1, b"")[:-1], "unpack_from requires a buffer"),
    )
    damaged: list[tuple[bytes, type[LiftError], str]] = [
        (data + seal_frame(records), CorruptionError, f"journal is damaged at position {len(data)} (*{reason}")
        for records, reason in impossible
    ]
    good, torn = seal_frame(_record(_META, 9, 1, b"n1")), data[:-1]
    await _expect_failures(
        s,
        journal,
        [
            *damaged,
            (torn + b"x" + good, CorruptionError, "This controller may have lost entries and must not vote."),
            (torn + good, CorruptionError, "This controller may have lost entries and must not vote."),
            (
                b"LFRJ\2" + data[5:],
                UnknownFormatError,
                "has another format version than this version of liftpy. Start the version",
            ),
            (b"a journal of another program", CorruptionError, "is not a journal of the metadata group. Check --data."),
            (b"LFRJ", CorruptionError, "is not a journal of the metadata group. Check --data."),
            (b"", CorruptionError, "has lost its journal. This cluster has only one controller"),
        ],
    )


@script(nodes=1, controllers=1, starts=False)
async def script_power_cut_tears_the_last_frame_of_a_journal(s: Stage) -> None:
    """Given a journal whose last frame is incomplete, the start drops the frame: nobody has learned of it. All entries before stay."""
    journal = await _start_and_stop(s) / "journal"
    data = journal.read_bytes()
    before = read_journal(data)
    lost = seal_frame(_record(_ENTRY, before.last_index + 1, before.term, b"\1"))
    for size_bytes in (1, len(lost) // 2, len(lost) - 1):
        journal.write_bytes(data + lost[:size_bytes])
        await s.start("n1")
        after = read_journal(journal.read_bytes())
        s.expect({index: after.entries[index] for index in before.entries}, before.entries, "entries")
        s.expect([stream.name for stream in await s.client.admin.list_streams()], ["orders"], "streams")
        await s.stop("n1")
        data = journal.read_bytes()
        before = read_journal(data)
        lost = seal_frame(_record(_ENTRY, before.last_index + 1, before.term, b"\1"))


@script(nodes=1, controllers=1, starts=False)
async def script_snapshot_of_a_controller_is_damaged(s: Stage) -> None:
    """Given a snapshot with damage of each kind, the start fails, names the kind, and leaves the file."""
    file = await _start_and_stop(s) / "snapshot"
    data = file.read_bytes()
    good = decode_snapshot_file(data)
    command, index, term = good.last
    other = replace(good, previous=(command, index, term))
    later = replace(good, controllers=ControllerList(("n1",), index=index + 1))
    nobody = replace(good, nodes=(), controllers=ControllerList((), index=index))
    reasons = {
        data[:8]: "it is shorter than its header",
        data[:-1] + bytes((data[-1] ^ 1,)): "its checksum does not match",
        b"XXXX" + data[4:]: "its checksum does not match",
        encode_snapshot_file(other): "its entries are not contiguous",
        encode_snapshot_file(later): "its list of controllers is invalid",
        encode_snapshot_file(nobody): "its list of controllers is invalid",
    }
    cases: list[tuple[bytes, type[LiftError], str]] = [
        (content, CorruptionError, f"The metadata snapshot is damaged: {reason}") for content, reason in reasons.items()
    ]
    magic, _, crc = _SNAPSHOT_HEAD.unpack_from(data)
    newer = _SNAPSHOT_HEAD.pack(magic, 2, crc) + data[_SNAPSHOT_HEAD.size :]
    cases.append((newer, UnknownFormatError, "The metadata snapshot has version 2, but this version reads 1."))
    await _expect_failures(s, file, cases)


@script(nodes=1, controllers=1, starts=False)
async def script_lineage_of_a_controller_is_damaged(s: Stage) -> None:
    """Given damage in the file with the earlier processes of a controller, the start fails, and says which file may be deleted."""
    file = await _start_and_stop(s) / "lineage"
    fields = decode_checked_json(file.read_bytes())
    cases: list[tuple[bytes, type[LiftError], str]] = [
        (content, CorruptionError, "/lineage is damaged (*). If other controllers run, delete *")
        for content in (
            b"",
            file.read_bytes()[:-2],
            encode_checked_json({**fields, "nonce": 0}),
            encode_checked_json({**fields, "earlier": [0]}),
            encode_checked_json({**fields, "known": {"n2": -1}}),
            encode_checked_json({name: value for name, value in fields.items() if name != "missed"}),
        )
    ]
    cases.append((encode_checked_json({**fields, "format": 2}), UnknownFormatError, "/lineage has format version 2, but *"))
    await _expect_failures(s, file, cases)


def _error(work: Callable[[], object], kind: type[LiftError]) -> str:
    """Return the text of the error of this kind that ``work`` raises, '' if it raises none."""
    try:
        work()
    except kind as error:
        return str(error)
    return ""


@script()
async def script_no_rescue_is_possible_from_a_directory(s: Stage) -> None:
    """Given directories without a usable log, a rescue says why, names another way, and changes none of them."""
    await s.create("orders")
    await s.stop(*s.names)
    folder = s["n1"].disk.folder
    raft = folder / "raft"
    saved = s.world.folder / "saved"
    shutil.copytree(raft, saved)

    def read_error(kind: type[LiftError]) -> str:
        before = _files(raft)
        with lock_directories([folder]) as directories:
            text = _error(lambda: read_survivor(directories[0]), kind)
        s.expect(_files(raft) == before, True, "a failed reading changes nothing")
        return text

    with lock_directories([folder]) as directories:
        before = len(os.listdir("/proc/self/fd"))
        survivor = read_survivor(directories[0])
        s.expect(len(os.listdir("/proc/self/fd")), before, "open files after the reading")
        for voters, wanted in (
            (("n1", "n9"), "The cluster has no node n9 (--new-controllers). Its nodes are n1, n2, n3."),
            (("n8", "n9"), "The cluster has no node n8, n9 (--new-controllers)."),
        ):
            text = _error(lambda: rescue(survivor, directories, voters, None, NS_PER_S), ConfigError)  # noqa: B023
            s.expect_in(wanted, text, "error of the rescue")
    same = replace(survivor, data=saved)
    s.expect(newest([survivor, same]).index, survivor.index, "index of two equal logs")
    text = _error(lambda: newest([survivor, replace(same, digest="another image")]), InvariantError)
    s.expect_in("end at the same entry with different images. Keep both directories", text, "error of the choice")
    s.expect(newest([replace(same, index=same.index + 1, digest="other"), survivor]).data, saved, "longer log")
    s.expect(newest([replace(same, index=1, term=same.term + 1), survivor]).data, saved, "log of a later term")
    parts = replace(same, terms={**same.terms, survivor.index: survivor.term + 1})
    s.expect((survivor.parts_from(same), survivor.parts_from(parts)), (0, survivor.index), "first different entry")

    (raft / "snapshot").unlink()
    journal = read_journal((raft / "journal").read_bytes())
    first = min(journal.entries)
    s.expect_in(f"entry {first} follows 0, so a snapshot is missing.", read_error(CorruptionError), "error without a snapshot")
    (raft / "journal").write_bytes((raft / "journal").read_bytes()[:8])
    s.expect_in("The journal in * is empty. Give the directory of another controller (--data).", read_error(ConfigError))
    shutil.rmtree(raft)
    text = read_error(ConfigError)
    s.expect_in("contains no journal of the metadata group. Give the directory of a former controller (--data).", text)
    (folder / "raft-before-rescue").mkdir()
    s.expect_in("contains no journal of the metadata group (a rescue has put one aside there).", read_error(ConfigError))
    (folder / "raft-before-rescue").rmdir()
    shutil.copytree(saved, raft)
    await s.start(*s.names)
    await s.create("more")


@script(starts=False)
async def script_controllers_compare_their_images_and_one_differs(s: Stage) -> None:
    """Given a controller with a wrong image, when the controllers compare images, it stops, and gets the image of the others.

    The others continue. Logs, metrics and the quarantined directory tell operators what has happened.
    """
    s.allow(
        "controllers with another image",
        "entries_known",
        "metadata.controller_failed",
        "metadata.controller_out_of_service",
        "metadata.images_differ",
        "metadata.peer_directory",
        "peer_directory_current",
        "peer_directory_older",
        "snapshots_installed",
    )
    setattr(AppliedDigests.__init__, "__defaults__", (_CHECKPOINT_ENTRIES,))  # noqa: B010
    expects = s.world.scheduler.expects
    s.world.scheduler.expects = lambda process, error: isinstance(error, MetadataDivergedError) or expects(process, error)
    await s.start()
    leader = await s.controller()
    wrong = next(node for node in s.others(leader) if node != "n2")
    await s.stop(wrong)
    raft = s[wrong].disk.folder / "raft"
    snapshot = decode_snapshot_file((raft / "snapshot").read_bytes())
    image = replace(decode_snapshot(snapshot.image), digest=b"d" * DIGEST_SIZE)
    (raft / "snapshot").write_bytes(encode_snapshot_file(replace(snapshot, image=encode_snapshot(image))))
    s.forget_log()
    await s.start(wrong)
    for number in range(_CHECKPOINT_ENTRIES):
        await s.create(f"orders{number}")
    await s.becomes(lambda: s.count_log(wrong, "metadata.directory_quarantined") == 1, what="the directory is quarantined")
    await s.becomes(lambda: s[wrong].is_ready, what=f"{wrong} is ready again")
    s.expect_in(f"The metadata image of {wrong} differs from the majority at index *", "\n".join(s.log(wrong)))
    s.expect((raft.with_name("raft-diverged") / "journal").exists(), True, "the quarantined directory has the journal")
    s.expect((raft / "diverged").exists(), False, "the new directory has a mark")
    s.expect(await s.metric(wrong, "metadata_divergence_total"), 1, f"divergences of {wrong}")
    s.expect([node.exits for node in s.world.nodes if node.name != wrong], [[], []], "exits of the others")
    await s.becomes(lambda: s.count_log(wrong, "metadata.voter_added") == 1, what=f"{wrong} votes again")
    await s.stop(next(node for node in s.others(leader, wrong)))
    await s.create("with-its-vote")


@script(starts=False)
async def script_controller_without_its_data_waits_for_a_majority_of_the_others(s: Stage) -> None:
    """Given a controller with an emptied or older directory, without a majority of the others it waits, and says for whom and why.

    It may have forgotten a vote. As soon as the others are a majority, it catches up and votes.
    """
    await s.start()
    raft = s["n1"].disk.folder / "raft"
    older = s.world.folder / "older"
    await s.stop("n1")
    shutil.copytree(raft, older)
    await s.start("n1")
    await s.create("orders")
    s.allow("metadata.directory_went_back", "metadata.peer_directory", "peer_directory_*", "snapshots_*", "entries_known")
    term = (await s.client.admin.describe_cluster()).controllers[0].term
    for is_older, state, known in (
        (True, "went back in time, as with an older copy put back", "n2"),
        (False, "is new or emptied, the group is not", "n2"),
    ):
        await s.stop(*s.names)
        shutil.rmtree(raft)
        if is_older:
            shutil.copytree(older, raft)
        s.forget_log()
        s["n1"].start()
        s["n2"].start()
        await asyncio.sleep(5)
        s.expect((s["n1"].is_ready, s["n2"].is_ready), (False, False), "nodes that are ready without a majority")
        text = (
            f"without a vote until it has caught up: its raft directory {state} (known: {known}; not connected: n3). A majority"
        )
        s.expect_in(
            f"WARNING metadata.waiting: controller waits node=n1 reason=waits for a leader *, {text}", "\n".join(s.log("n1"))
        )
        s["n3"].start()
        await s.becomes(lambda: all(node.is_ready for node in s.world.nodes), within_s=5, what="all nodes are ready")
        s.expect(s.count_log("n1", "metadata.voter_added"), 1, "log lines of the new voter")
        s.expect(await s.counter("n2", "metadata: messages_of_older_directory"), 0, "votes that n1 has asked for or given")
        before, term = term, (await s.client.admin.describe_cluster()).controllers[0].term
        s.expect(before < term <= before + _FEW_TERMS, True, f"a controller without a vote raises no term, {before} and {term}")
    s.expect([stream.name for stream in await s.client.admin.list_streams()], ["orders"], "streams")
