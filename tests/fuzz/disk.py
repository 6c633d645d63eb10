"""Decoders of files: of the metadata group, of logs, of nodes and services."""

from __future__ import annotations

import json
import struct
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import crc32c

from liftpy.core.log import compaction_point, epoch_promises, small_files
from liftpy.core.metadata.codec import encode_snapshot
from liftpy.core.metadata.node_identity import DirectoryIdentity
from liftpy.core.publish import state_file
from liftpy.core.services import snapshot as service_snapshot
from liftpy.core.services import versions
from liftpy.core.services.effects import EffectCause, PendingEffects
from liftpy.core.services.replies import Answer, AnswerTable, decode_answers
from liftpy.errors import ConfigError, ProtocolError, StorageError
from sidecar.disk.data_folder import LOG_ENDS_NAME, DataDirectory, NodeIdentity
from sidecar.partition import scrub
from sidecar.quorum.journal import GroupJournal
from sidecar.quorum.probation import DirectoryLineage
from sidecar.quorum.rescue import RESCUED, rescue_event
from sidecar.quorum.snapshot_file import SnapshotFile, decode_snapshot_file, encode_snapshot_file
from sidecar.runtime.settings import SettingsLoader
from tests.fuzz import meanings
from tests.fuzz.decoder import FOLDER, Decoder, damaged_json
from tests.fuzz.metadata import _IMAGE


def _mend_tail(data: bytes) -> bytes:
    """Of small files: the sum is behind."""
    return data[:-4] + struct.pack("<I", crc32c.crc32c(data[:-4]))


def _mend_line(data: bytes) -> bytes:
    """Of files whose first line is the sum of the rest."""
    body = data.partition(b"\n")[2]
    return f"{crc32c.crc32c(body):08x}\n".encode() + body


def _mend_journal(data: bytes) -> bytes:
    """Of the first frame, made as long as the file."""
    body = data[16:]
    sized = struct.pack("<I", len(body)) + body
    return data[:8] + struct.pack("<I", crc32c.crc32c(sized)) + sized


def _mend_service(data: bytes) -> bytes:
    return data[:12] + struct.pack("<I", crc32c.crc32c(data[16:])) + data[16:]


def _rescued(data: bytes) -> Any:
    (FOLDER / RESCUED).write_bytes(data)
    return rescue_event(FOLDER, 7)


def _journal(data: bytes) -> Any:
    path = FOLDER / "journal"
    path.write_bytes(data)
    journal = GroupJournal(path, flush=False)
    journal.close()
    again = GroupJournal(path, flush=False)
    again.close()
    held = [(j[:], j.getCurrentTerm(), j.getVotedForNodeId()) for j in (journal, again)]
    assert held[0] == held[1], "what is opened again is not what was opened"
    assert again.entry_bytes == sum(21 + len(command) for command, _, _ in again[:]), "entries are counted in bytes"
    return held[0]


def _journal_samples() -> list[bytes]:
    path = FOLDER / "sample"
    journal = GroupJournal(path, flush=False)
    for index in range(1, 9):
        journal.add(b"\x00command", index, 1)
        journal.setCurrentTerm(index, "n2")
        if index == 5:
            journal.deleteEntriesFrom(3)
            journal.add(b"x", 4, 2)
            journal.add(b"y", 5, 2)
        journal.sync()
    journal.close()
    return [path.read_bytes()]


def _lineage(data: bytes) -> Any:
    (FOLDER / "lineage").write_bytes(data)
    found = DirectoryLineage(FOLDER, lambda: 6)
    numbers = (*found.earlier, *found.missed, *found.known.values(), *found._known_as.values())
    assert all(0 < number < 1 << 64 for number in numbers), "no nonce"
    return found.tail_for("n2")


def _lineage_samples() -> list[bytes]:
    said = {"format": 1, "nonce": 5, "earlier": [1, 3], "missed": [7], "known": {"n2": 9}, "known_as": {"n2": 3}}
    return [_mend_line(b"\n" + json.dumps(said).encode())]


def _hello(data: bytes) -> Any:
    lineage = _LINEAGE[0]
    lineage.known, lineage._known_as, lineage.missed, lineage._doubts = {}, {}, (), {}
    lineage._changed = False
    meant = meanings.hello_nonces(data)
    trusted = lineage.process_hello("n2", data)
    assert (meant is None) is (data == b""), "what is no tail is refused"
    if meant is not None:
        assert (trusted, lineage.known) == (True, {"n2": meant[0]})
        is_held = bool(meant[1]) and lineage.holds(meant[1])
        assert lineage._known_as == ({"n2": meant[1]} if is_held else {})
        assert lineage._doubts == ({"n2": meant[1]} if meant[1] and not is_held else {})
    return trusted


_LINEAGE = [DirectoryLineage(Path(tempfile.mkdtemp(dir=FOLDER)), lambda: 6)]
_DATA = DataDirectory(FOLDER / "data")
_STOPPED = DataDirectory(FOLDER / "stopped")


def _identity(data: bytes) -> NodeIdentity | None:
    (_DATA.path / "node").write_bytes(data)
    found = _DATA.load_identity()
    assert found is not None
    types = (type(found.node_id), type(found.incarnation), type(found.clean_incarnation), type(found.starts.folder_id))
    assert types == (str, int, int, str), f"{types} are not of a node's identity"
    return found


def _identity_samples() -> list[bytes]:
    _DATA.store_identity(NodeIdentity("n1", 7, 6))
    return [(_DATA.path / "node").read_bytes()]


def _log_ends(data: bytes) -> Any:
    (_STOPPED.path / LOG_ENDS_NAME).write_bytes(data)
    found = _STOPPED.load_log_ends()
    assert all(type(name) is str and type(end) is int for name, end in found.items()), found
    return found


def _log_ends_samples() -> list[bytes]:
    _STOPPED.store_identity(NodeIdentity("n1", 7, 7, DirectoryIdentity("f", 2, 9, 9)))
    _STOPPED.store_log_ends(9, {"orders-u/0": 9, "orders-u/1": 0})
    return [(_STOPPED.path / LOG_ENDS_NAME).read_bytes()]


def _progress(data: bytes) -> Any:
    path = FOLDER / "scrub"
    path.write_bytes(data)
    found = scrub._load(path)
    assert type(found.findings) is int, f"findings {found.findings!r}"
    return found


def _settings(data: bytes) -> Any:
    path = FOLDER / "liftpy.toml"
    path.write_bytes(data)
    return SettingsLoader(path, {}, {}).load()


def _mend_snapshot_file(data: bytes) -> bytes:
    return data[:8] + struct.pack("<I", crc32c.crc32c(data[12:])) + data[12:]


def _mend_promises(data: bytes) -> bytes:
    """One frame as long as the file."""
    sized = struct.pack("<I", len(data) - 16) + data[16:]
    return data[:8] + struct.pack("<I", crc32c.crc32c(sized)) + sized


_PROMISES = (
    epoch_promises.encode_promises({"orders/u1/0": 7, "orders/u1/1": 1 << 40}),
    epoch_promises.encode_promises({"orders/u1/0": 9}),
)
_STATE = state_file.encode_state(state_file.State("s-u1/0", 9, 3, {"ids": (1, b"abc"), "subjects": (1, b"")}))
_INDEX = small_files.SegmentSummary(
    5, 9, 400, 1, 9, 4, ((1, 5), (2, 7)), (small_files.IndexEntry(5, 0, 1), small_files.IndexEntry(7, 200, 4))
)
_IDENTITY = service_snapshot.Identity("bank", "orders", "u1", 0)
_SNAPSHOT = service_snapshot.Snapshot(_IDENTITY, 9, 3, 5, 2, ((1, "t"), (7, "long name")), b"state" * 9)
_WITH_SECTIONS = replace(_SNAPSHOT, sections=((service_snapshot.Section.PARAMETERS, bytes(range(16))),))


def _effects() -> PendingEffects:
    made = PendingEffects("u/0/bank")
    made.add("charge", b"payload", None, EffectCause(0, 1), is_offer=False, output_count=7)
    made.add("", b"offered", b"key", EffectCause(0, 1), is_offer=True, output_count=8)
    return made


_WITH_EFFECTS = replace(
    _SNAPSHOT,
    sections=(
        (service_snapshot.Section.EFFECTS, _effects().encode()),
        (service_snapshot.Section.VERSION, versions.encode_section(2)),
    ),
)


def _loaded(data: bytes) -> PendingEffects:
    made = PendingEffects("u/0/bank")
    made.load(data)
    return made


def decoders() -> list[Decoder]:
    """Every one of them."""
    p, s, c = (ProtocolError,), (StorageError,), (ConfigError,)
    last, before = (b"\x00c", 9, 2), (b"\x00b", 8, 2)
    dump = encode_snapshot_file(SnapshotFile(last, before, ("n1", "n2"), encode_snapshot(_IMAGE)))
    return [
        Decoder(
            "what a rescue has left",
            [b'{"index": 7, "time_ns": 1700000000000000000, "detail": "rescued from one journal"}'],
            _rescued,
            make=damaged_json,
            covers=("sidecar.quorum.rescue:rescue_event",),
        ),
        Decoder(
            "raft hello",
            [_LINEAGE[0].tail_for("n1"), struct.pack("<QQBQ", 5, 6, 1, 9)],
            _hello,
            p,
            covers=("sidecar.quorum.probation:_parse",),
        ),
        Decoder(
            "raft journal",
            _journal_samples(),
            _journal,
            s,
            mend=_mend_journal,
            covers=(
                "liftpy.core.log.small_files:frame_at",
                "sidecar.quorum.journal:_records",
            ),
        ),
        Decoder(
            "raft lineage file",
            _lineage_samples(),
            _lineage,
            s,
            mend=_mend_line,
            make=lambda rng, d: _mend_line(b"\n" + damaged_json(rng, d.partition(b"\n")[2])),
            covers=("sidecar.disk.files:decode_checked_json",),
        ),
        Decoder(
            "raft snapshot file",
            [dump],
            decode_snapshot_file,
            s,
            encode_snapshot_file,
            _mend_snapshot_file,
            covers=("sidecar.quorum.snapshot_file:decode_snapshot_file",),
        ),
        Decoder(
            "high-watermark file",
            [small_files.encode_checkpoint(small_files.Checkpoint(9, 2, 3))],
            small_files.decode_checkpoint,
            s,
            lambda f: small_files.encode_checkpoint(f) if f else b"",
            _mend_tail,
            covers=("liftpy.core.log.small_files:decode_checkpoint", "liftpy.core.log.small_files:open_small_file"),
        ),
        Decoder(
            "leader-epochs file",
            [small_files.encode_epochs([(1, 0), (3, 9)])],
            small_files.decode_epochs,
            s,
            lambda f: small_files.encode_epochs(f) if f is not None else b"",
            _mend_tail,
            covers=("liftpy.core.log.small_files:decode_epochs",),
        ),
        Decoder(
            "index file",
            [small_files.encode_index(_INDEX)],
            small_files.decode_index,
            s,
            lambda f: small_files.encode_index(f) if f else b"",
            _mend_tail,
            covers=("liftpy.core.log.small_files:decode_index",),
        ),
        Decoder(
            "state file",
            [_STATE],
            state_file.decode_state,
            s,
            lambda f: state_file.encode_state(f) if f else b"",
            _mend_tail,
            covers=("liftpy.core.publish.state_file:decode_state", "liftpy.core.publish.state_file:_text_at"),
        ),
        Decoder(
            "horizon file",
            [compaction_point.encode_horizon(compaction_point.Horizon(9, 3))],
            compaction_point.decode_horizon,
            s,
            lambda f: compaction_point.encode_horizon(f) if f else b"",
            _mend_tail,
            covers=("liftpy.core.log.compaction_point:decode_horizon",),
        ),
        Decoder(
            "promises file",
            [b"LFPJ\1\0\0\0" + b"".join(_PROMISES), b"LFPJ\1\0\0\0" + _PROMISES[0]],
            epoch_promises.decode_promises,
            s,
            lambda f: b"LFPJ\1\0\0\0" + epoch_promises.encode_promises(f),
            _mend_promises,
            covers=("liftpy.core.log.epoch_promises:decode_promises", "liftpy.core.log.epoch_promises:_add_promises"),
        ),
        Decoder(
            "service effects",
            [_effects().encode()],
            _loaded,
            s,
            lambda f: f.encode(),
            covers=("liftpy.core.services.effects:PendingEffects.load",),
        ),
        Decoder(
            "service answers",
            [AnswerTable([Answer(7, "c1", b"done"), Answer(9, "ü", b"")]).encode()],
            decode_answers,
            s,
            lambda f: f.encode(),
            covers=("liftpy.core.services.replies:decode_answers",),
        ),
        Decoder(
            "service version",
            [versions.encode_section(n) for n in (2, 3, 70_000)],
            versions.from_section,
            (versions.VersionError,),
            versions.encode_section,
            covers=("liftpy.core.services.versions:from_section",),
        ),
        Decoder(
            "service snapshot's header",
            [_SNAPSHOT.encode(), _WITH_SECTIONS.encode(), _WITH_EFFECTS.encode()],
            lambda d: service_snapshot.replay_point(lambda start, size_bytes: d[start : start + size_bytes]),
            s,
            covers=(
                "liftpy.core.services.snapshot:replay_point",
                "liftpy.core.services.effects:count_in",
            ),
        ),
        Decoder(
            "service snapshot",
            [_SNAPSHOT.encode(), _WITH_SECTIONS.encode()],
            lambda d: service_snapshot.decode(d, _IDENTITY),
            s,
            lambda f: f.encode(),
            _mend_service,
            covers=(
                "liftpy.core.services.snapshot:decode",
                "liftpy.core.services.snapshot:_timers",
                "liftpy.core.services.snapshot:_sections",
            ),
        ),
        Decoder(
            "node file",
            _identity_samples(),
            _identity,
            s,
            mend=_mend_line,
            make=lambda rng, d: _mend_line(b"\n" + damaged_json(rng, d.partition(b"\n")[2])),
            covers=("sidecar.disk.files:decode_checked_json",),
        ),
        Decoder(
            "log ends file",
            _log_ends_samples(),
            _log_ends,
            mend=_mend_line,
            make=lambda rng, d: _mend_line(b"\n" + damaged_json(rng, d.partition(b"\n")[2])),
            covers=("sidecar.disk.data_folder:_decode_log_ends",),
        ),
        Decoder(
            "scrub file",
            [small_files.seal_small_file(scrub._MAGIC, json.dumps(asdict(scrub.ScrubProgress())).encode())],
            _progress,
            mend=_mend_tail,
            make=lambda rng, d: _mend_tail(d[:8] + damaged_json(rng, d[8:-4]) + b"1234"),
            covers=("sidecar.partition.scrub:_load",),
        ),
        Decoder(
            "settings file",
            [b'node_id = "n1"\ndata = "/tmp/x"\ncontrollers = ["n1"]\nstatus_port = 1\n[replication]\nlease_s = 1.5\n'],
            _settings,
            c,
            meanings.settings_text,
            covers=("sidecar.runtime.settings:_read_file",),
            make=damaged_json,
        ),
    ]
