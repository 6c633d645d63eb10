"""Test checkpoints of derived state: a loaded checkpoint equals a replay of the log, or is removed [A3, S5, S11]."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.config import NS_PER_S, ReplicationConfig, StreamConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.log.log import Log
from liftpy.core.log.small_files import seal_small_file
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.publish import log_state_part, state_file
from liftpy.core.publish.dedup_window import StoredId
from liftpy.core.publish.log_state import LogState
from liftpy.core.publish.producer_state import Producers
from liftpy.core.publish.state_file import (
    State,
    StateCapture,
    decode_state,
    encode_state,
    load_state,
    state_name,
    state_names,
    state_owner,
)
from liftpy.core.publish.state_transfer import StatePieceRequest, StateServer
from liftpy.core.publish.state_writer import StateFileSchedule, StateWriter, restore_state
from liftpy.core.wire.batch import parse_batch
from liftpy.errors import CorruptionError, NoSpaceError, StorageError, UnknownFormatError
from tests.batches import build_batch
from tests.each import each
from tests.long import examples

ROOM = 1 << 20
OF = state_owner(PartitionKey("s", "u1", 3))
ASKS = ("Nats-Expected-Last-Subject-Sequence", b"0")


def a_log(storage: MemoryStorage | None = None, **config: Any) -> Log:
    return Log.open(storage or MemoryStorage(), StreamConfig(segment_bytes=65_536, **config))[0]


def a_state(log: Log, window_ns: int = 120, room: int = ROOM, now_ns: Callable[[], int] = lambda: 10**15) -> LogState:
    return LogState(log, window_ns, room, now_ns, Producers(0, 100), subject="s.>", partition_subject_index_bytes=room)


def append(
    log: Log, state: LogState, ids: list[str], *, at: int = 1000, epoch: int = 1, asks: bool = False, by: int = 0
) -> None:
    headers = [[("Nats-Msg-Id", name.encode())] + ([ASKS] if asks else []) for name in ids]
    sequence = 0
    if by and (known := state.producers.state_of(by)) is not None:
        sequence = known.next_sequence
    batch = build_batch(
        [b"v" * 50] * len(ids), headers=headers, subjects=[f"s.{name}" for name in ids], base_offset=log.log_end_offset,
        leader_epoch=epoch, timestamp_ns=at, producer_id=by, producer_epoch=1 if by else 0, base_sequence=sequence,
    )  # fmt: skip
    log.append(batch)
    state.fetched([parse_batch(batch)])


def commit(log: Log, state: LogState, high_watermark: int) -> None:
    log.flush()
    log.raise_high_watermark(high_watermark)
    state.committed(high_watermark)
    log.checkpoint()


def write(log: Log, state: LogState, owner: str = OF) -> str:
    unwritten = state.snapshot(owner)
    assert unwritten is not None
    assert unwritten.write(log.storage)
    return state_name(unwritten.end_offset)


def known(state: LogState, names: list[str]) -> list[Any]:
    while not state.is_complete:
        state.replay()
    while not state.index_backwards():
        pass
    found = [(state.ids.find(name.encode(), 0), state.subjects.find(f"s.{name}")) for name in names]
    return [*found, state.ids.last_id, state.producers.state_of(7), state.producers.state_of(8)]


NAMES = [f"m{n}" for n in range(12)]


def filled() -> tuple[Log, LogState]:
    log = a_log()
    state = a_state(log)
    append(log, state, NAMES[:3], asks=True, by=7)
    append(log, state, NAMES[2:6], by=8)
    append(log, state, NAMES[6:8], at=1050, by=7)
    commit(log, state, 8)
    append(log, state, NAMES[8:10], at=1060, by=8)
    return log, state


def test_state_file_restores_the_state_and_the_rest_of_the_log_is_replayed() -> None:
    log, state = filled()
    name = write(log, state)
    assert (name, state_names(log.storage)) == ("state-00000000000000000009", [name])
    again = a_state(log)
    assert restore_state(again, log, OF) == {}
    assert (again.end_offset, again.is_complete) == (9, False)
    assert again.subjects.state == "ready"
    assert known(again, NAMES) == known(state, NAMES)
    assert again.replayed_bytes < log.size_bytes / 2
    append(log, again, ["m0"], at=1070)
    log.truncate_to(9)
    again.log_was_truncated()
    assert (again.ids.find(b"m0", 0), again.ids.last_id) == (StoredId(0, 2), b"m7")
    assert again.producers.state_of(8) == again.producers.state_of(8)
    for _ in range(3):
        append(log, again, NAMES[8:10], at=1061, by=8)
    commit(log, again, log.newest_offset)
    later = write(log, again)
    assert state_names(log.storage) == [later], "older ones are removed"
    third = a_state(log)
    assert restore_state(third, log, OF) == {}
    assert third.is_complete
    assert known(third, NAMES) == known(again, NAMES)


def test_state_file_restored_message_ids_expire_by_later_commits() -> None:
    log = a_log()
    state = a_state(log)
    append(log, state, ["old"], at=1000)
    commit(log, state, 0)
    write(log, state)
    append(log, state, ["new"], at=1000 + 120)
    commit(log, state, 1)
    clock = itertools.count(0, 10**18)
    again = a_state(log, now_ns=lambda: next(clock))
    assert restore_state(again, log, OF) == {}
    assert again.replay()
    assert (again.ids.find(b"old", 0), again.ids.find(b"new", 0), len(again.ids)) == (None, StoredId(1, 1), 1)


def test_state_file_of_unflushed_or_incomplete_state_is_not_written() -> None:
    log = a_log()
    state = a_state(log)
    assert state.snapshot(OF) is None, "an empty log"
    append(log, state, ["a"])
    assert state.snapshot(OF) is None, "nothing is committed"
    log.raise_high_watermark(0)
    state.committed(0)
    assert state.snapshot(OF) is None, "it is not flushed"
    log.flush()
    assert state.snapshot(OF) is not None
    assert a_state(log).snapshot(OF) is None, "it knows nothing yet"
    log.drop_prefix(1)
    assert state.snapshot(OF) is not None, "retention has taken all: nothing else knows of it any more"


@each(
    ("what", "why"),
    [
        ("of another stream", "it is of"), ("renamed", "it is of"), ("another epoch", "is of epoch"),
        ("within a batch", "no batch begins there"), ("retained", "the log is"),
        ("torn", "torn or damaged"), ("empty", "torn or damaged"), ("flipped", "torn or damaged"), ("newer", "format version"),
        ("damaged log", "x"),
    ],
)  # fmt: skip
def test_state_file_that_is_damaged_or_of_another_stream_or_log_is_ignored_and_removed(what: str, why: str) -> None:
    log, state = filled()
    name = write(log, state)
    data = log.storage.load(name)
    assert data is not None
    found = decode_state(data)
    assert found is not None
    match what:
        case "of another stream":
            data = encode_state(found._replace(owner="s-u2/3"))
        case "renamed":
            name = state_name(8)
        case "another epoch":
            data = encode_state(found._replace(leader_epoch=2))
        case "within a batch":
            name, data = state_name(5), encode_state(found._replace(end_offset=5))
        case "retained":
            commit(log, state, 10)
            log.drop_prefix(11)
        case "torn":
            data = data[:-1]
        case "empty":
            data = b""
        case "flipped":
            data = data[:40] + bytes([data[40] ^ 1]) + data[41:]
        case "newer":
            body = data[:4] + b"\x02" + data[5:-4]
            import crc32c

            data = body + crc32c.crc32c(body).to_bytes(4, "little")
            with pytest.raises(UnknownFormatError):
                decode_state(data)
        case "damaged log":
            log.read = lambda *_, **__: (_ for _ in ()).throw(CorruptionError("x"))  # type: ignore[method-assign,assignment]
    state_file.remove_states(log.storage)
    log.storage.replace(name, data)
    loaded, unfit = load_state(log, OF)
    assert loaded is None
    assert list(unfit) == [name]
    assert why in unfit[name]
    assert state_names(log.storage) == []


def test_state_file_load_takes_the_newest_valid_file() -> None:
    log, state = filled()
    name = write(log, state)
    log.storage.replace(state_name(3), b"old")
    log.storage.replace(state_name(99), b"torn")
    loaded, unfit = load_state(log, OF)
    assert loaded is not None
    assert (loaded.end_offset, list(unfit), state_names(log.storage)) == (9, [state_name(99)], [name])


def test_state_file_removal_flushes_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, told = MemoryStorage(), list[str]()
    monkeypatch.setattr(storage, "remove", told.append)
    monkeypatch.setattr(storage, "sync_folder", lambda: told.append("synced"))
    for end_offset in (3, 9):
        storage.replace(state_name(end_offset), b"")
    state_file.remove_states(storage, keep=state_name(9))
    assert told == [state_name(3), "synced"]
    told.clear()
    state_file.remove_states(MemoryStorage())
    assert told == [], "nothing was there"


def test_state_file_of_a_log_that_was_truncated_and_rewritten_is_ignored() -> None:
    log, state = filled()
    name = write(log, state)
    log.truncate_to(7)
    state.log_was_truncated()
    append(log, state, ["x", "y"], epoch=5)
    append(log, state, ["z"], epoch=5)
    commit(log, state, 9)
    again = a_state(log)
    assert list(restore_state(again, log, OF)) == [name]
    assert again.end_offset is None


def test_state_file_with_a_part_of_a_later_version_is_loaded() -> None:
    log, state = filled()
    write(log, state)
    loaded, _ = load_state(log, OF)
    assert loaded is not None
    more = {**loaded.parts, "of a later version": (9, b"x")}
    again = a_state(log)
    assert again.restore(loaded._replace(parts=more))
    assert known(again, NAMES) == known(state, NAMES)
    without = {name: part for name, part in loaded.parts.items() if name != "subjects"}
    again = a_state(log)
    assert again.restore(loaded._replace(parts=without))
    assert again.subjects.state == "off"
    for name in ("ids", "producers"):
        version = loaded.parts[name][0]
        for parts in (
            {other: part for other, part in loaded.parts.items() if other != name},
            {**loaded.parts, name: (version - 1, loaded.parts[name][1])},
            {**loaded.parts, name: (version + 1, loaded.parts[name][1])},
            {**loaded.parts, name: (version, loaded.parts[name][1][:-1])},
            {**loaded.parts, name: (version, loaded.parts[name][1] + b"x")},
        ):
            again = a_state(log)
            assert not again.restore(loaded._replace(parts=parts)), name
            assert known(again, NAMES)[: len(NAMES)] == known(state, NAMES)[: len(NAMES)] or again.subjects.state == "off"
            assert again.ids.find(b"m0", 0) == state.ids.find(b"m0", 0), "it replays"
    subjects = loaded.parts["subjects"][1]
    for data in (subjects[:-1], subjects + b"x", subjects[:9]):
        assert not a_state(log).restore(loaded._replace(parts={**loaded.parts, "subjects": (1, data)}))
    longer = a_state(log, window_ns=121)
    assert not longer.restore(loaded), "ids that have gone already may be within it"
    shorter = a_state(log, window_ns=119)
    assert shorter.restore(loaded)
    small = a_state(log, room=4096)
    assert small.restore(loaded)
    assert small.ids.size_bytes <= 4096


def test_state_file_with_an_incomplete_subject_index_continues_the_backward_read() -> None:
    log = a_log()
    state = a_state(log)
    for _ in range(5):
        append(log, state, ["a", "b"])
    append(log, state, ["c"], asks=True)
    commit(log, state, 10)
    assert state.subjects.state == "reading"
    write(log, state)
    again, told = a_state(log), []
    again.on_lacking = lambda: told.append(1)
    assert restore_state(again, log, OF) == {}
    assert (again.subjects.state, told) == ("reading", [1])
    while not again.index_backwards():
        pass
    assert [again.last_of(f"s.{name}") for name in "abcd"] == [8, 9, 10, -1]


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_state_file_with_any_changed_byte_is_rejected(data: st.DataObject) -> None:
    log, state = filled()
    name = write(log, state)
    content = log.storage.load(name)
    assert content is not None
    at = data.draw(st.integers(0, len(content) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "add"]))
    if how == "flip":
        content = content[:at] + bytes([content[at] ^ data.draw(st.integers(1, 255))]) + content[at + 1 :]
    elif how == "cut":
        content = content[:at]
    else:
        content += b"x" * (at + 1)
    log.storage.replace(name, content)
    loaded, unfit = load_state(log, OF)
    assert (loaded, list(unfit)) == (None, [name])


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["ids", "producers", "subjects", "losses"]))
def test_state_file_part_of_random_bytes_is_rejected_or_decoded_within_bounds(data: bytes, name: str) -> None:
    """The CRC is right: a version with a bug may have written the bytes."""
    log, state = filled()
    write(log, state)
    loaded, _ = load_state(log, OF)
    assert loaded is not None
    again = a_state(log)
    written = loaded.parts[name][1] if name in loaded.parts else bytes(20)
    for content in (data, written[: len(data)], written[:20] + data):
        assert again.restore(loaded._replace(parts={**loaded.parts, name: (1, content)})) in (True, False)
    assert decode_state(seal_small_file(b"LFDS", data)) is None or not data
    assert decode_state(data) is None


def test_state_file_with_repeated_part_or_trailing_bytes_is_rejected() -> None:
    state = State("s", 5, 1, {"a": (1, b"x"), "b": (2, b"")})
    assert decode_state(encode_state(state)) == state
    twice = encode_state(state)[8:-4].replace(b"\x01\x00b", b"\x01\x00a")
    assert decode_state(seal_small_file(b"LFDS", twice)) is None
    assert decode_state(seal_small_file(b"LFDS", encode_state(state)[8:-4] + b"x")) is None
    assert decode_state(None) is None


def test_state_file_write_is_due_by_log_growth_elapsed_time_and_last_file_size() -> None:
    pace = StateFileSchedule(60, 1000, 10)
    assert not pace.is_due(999, 0, 59)
    assert pace.is_due(1000, 0, 0)
    assert not pace.is_due(1000, 126, 59), "eight times the last file"
    assert pace.is_due(1008, 126, 0)
    assert not pace.is_due(9, 0, 60)
    assert pace.is_due(10, 0, 60)
    assert not pace.is_due(125, 126, 60)
    assert pace.is_due(126, 126, 60)
    assert StateFileSchedule.from_config(
        ReplicationConfig(state_checkpoint_interval_s=2.5, state_checkpoint_bytes=9999)
    ) == StateFileSchedule(int(2.5 * NS_PER_S), 9999)


def test_state_writer_on_a_full_disk_counts_the_failure_and_writes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log()
    state = a_state(log)
    now = [0]
    writer = StateWriter(state, log, OF, StateFileSchedule(60, 100_000, 1000), lambda: now[0])
    assert writer.begin() is None
    for _ in range(5):
        append(log, state, NAMES)
    assert writer.begin(closing=True) is None, "nothing is committed"
    commit(log, state, log.newest_offset)
    assert writer.begin() is None
    now[0] = 60
    unwritten = writer.begin()
    assert unwritten is not None
    assert writer.begin() is None, "one at a time"
    writer.write(unwritten)
    assert (writer.written, writer.failed) == (1, 0)
    (name,) = state_names(log.storage)
    assert writer.last_bytes == len(log.storage.load(name) or b"")
    append(log, state, NAMES)
    commit(log, state, log.newest_offset)
    now[0], writer.last_bytes = 200, 1 << 20
    assert writer.begin() is None, "the last file is larger"
    again = writer.begin(closing=True)
    assert again is not None

    def full(name: str, data: bytes) -> None:
        raise StorageError("full")

    with monkeypatch.context() as patched:
        patched.setattr(log.storage, "replace", full)
        writer.write(again)
    assert (writer.written, writer.failed) == (1, 1)
    monkeypatch.setattr(state_file, "MAX_STATE_BYTES", 10)
    writer.write(again)
    assert (writer.written, writer.failed, state_names(log.storage)) == (1, 2, [name])


def test_log_recovery_reports_whether_state_files_exist() -> None:
    storage = MemoryStorage()
    log = a_log(storage)
    state = a_state(log)
    append(log, state, ["a"])
    commit(log, state, 0)
    write(log, state)
    log.close()
    from liftpy.core.log.recovery import recover

    assert recover(storage, clean=True).has_states
    assert not recover(MemoryStorage()).has_states


STEPS = st.one_of(
    st.tuples(
        st.just("append"), st.lists(st.sampled_from(NAMES[:5]), min_size=1, max_size=3), st.sampled_from([0, 1, 60, 130])
    ),
    st.tuples(st.just("commit"), st.integers(0, 2)),
    st.tuples(st.just("cut"), st.integers(1, 3)),
    st.tuples(st.just("write")),
    st.tuples(st.just("reopen")),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_state_file_restored_state_equals_a_full_replay_for_random_operations(steps: list[tuple[object, ...]]) -> None:
    log = a_log()
    state, plain = a_state(log), a_state(log)
    now, epoch, ends = 1000, 1, [0]
    for step in steps:
        match step:
            case ("append", list(ids), int(passed)):
                now += passed
                append(log, state, ids, at=now, epoch=epoch, asks=True)
                plain.fetched([parse_batch(log.read(ends[-1], 1 << 20, end_offset=log.log_end_offset).chunks[-1])])
                ends.append(log.log_end_offset)
            case ("commit", int(back)) if len(ends) > 1:
                high_watermark = ends[max(len(ends) - 1 - back, 0)] - 1
                if high_watermark > log.high_watermark:
                    commit(log, state, high_watermark)
                    plain.committed(high_watermark)
            case ("cut", int(back)) if len(ends) > back:
                end = ends[len(ends) - 1 - back]
                if end > log.high_watermark:
                    log.truncate_to(end)
                    state.log_was_truncated()
                    plain.log_was_truncated()
                    del ends[len(ends) - back :]
                    epoch += 1
            case ("write",):
                unwritten = state.snapshot(OF)
                if unwritten is not None:
                    assert unwritten.end_offset <= log.high_watermark + 1
                    unwritten.write(log.storage)
            case ("reopen",):
                state = a_state(log)
                assert set(restore_state(state, log, OF).values()) <= {""}
            case _:
                continue
        if not plain.is_complete:
            while not plain.replay():
                pass
        assert known(state, [])[0] == known(plain, [])[0]
        for name in NAMES[:5]:
            for at in (now, now + 60, now + 119):
                assert state.ids.find(name.encode(), at) == plain.ids.find(name.encode(), at)
            if state.subjects.wanted:
                assert state.subjects.find(f"s.{name}") == plain.subjects.find(f"s.{name}")


def test_state_file_of_a_log_without_message_ids_is_small() -> None:
    log = a_log()
    state = a_state(log)
    batch = build_batch([b"v"], subjects=["s.a"], base_offset=0, leader_epoch=1, timestamp_ns=1)
    log.append(batch)
    state.fetched([parse_batch(batch)])
    commit(log, state, 0)
    assert state.last_of("s.b") == -1
    write(log, state)
    again = a_state(log)
    assert restore_state(again, log, OF) == {}
    assert (again.is_complete, again.last_of("s.a"), len(again.ids), len(again.producers)) == (True, 0, 0, 0)
    log.reset(5)
    again.log_was_truncated()
    assert again.last_of("s.a") == -1


class _Careless(MemoryStorage):
    """Loses the end of a file, and says nothing."""

    def replace(self, name: str, data: bytes | Sequence[bytes]) -> None:
        whole = data if isinstance(data, bytes) else b"".join(data)
        super().replace(name, whole[:-1])


def test_state_file_that_cannot_be_read_back_raises_without_deleting_the_older_file() -> None:
    older = encode_state(State(OF, 5, 1, {"ids": (1, b"older")}))
    for storage, stays in ((MemoryStorage(), 9), (_Careless(), 5)):
        MemoryStorage.replace(storage, state_name(5), older)
        newer = StateCapture(OF, 9, 1, {"ids": (1, lambda: [b"new", b"er"])})
        if stays == 5:
            with pytest.raises(StorageError, match=f"{state_name(9)} differs after the write"):
                newer.write(storage)
        else:
            newer.write(storage)
        assert state_names(storage) == [state_name(stays)]


def test_state_file_with_any_subset_of_parts_can_be_decoded() -> None:
    parts = {"ids": (1, b"i"), "producers": (2, b""), "subjects": (3, b"s" * 70_000), "é": (0, b"\0")}
    for count in range(len(parts) + 1):
        for names in itertools.permutations(parts, count):
            state = State(OF, 7, 3, {name: parts[name] for name in names})
            assert decode_state(encode_state(state)) == state


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_state_transfer_to_two_alternating_readers_gives_each_a_complete_state(seconds: float) -> None:
    """A follower and a backup ask in turns. Neither makes the other one start again."""
    log = a_log()
    state = a_state(log)
    append(log, state, [f"m{n}" for n in range(200)], by=7)
    commit(log, state, 199)
    now_ns = 0
    state_server = StateServer(state, OF, lambda: now_ns)
    held = {"follower": (StatePieceRequest(), bytearray()), "backup": (StatePieceRequest(), bytearray())}
    whole: dict[str, bytes] = {}
    for _ in range(100):
        for asker, (question, data) in held.items():
            now_ns += round(seconds * NS_PER_S)
            append(log, state, [f"late{log.log_end_offset}"])
            commit(log, state, log.log_end_offset - 1)
            piece = state_server.read_piece(question, 700)
            if asker in whole or piece is None:
                continue
            if not piece.position:
                data.clear()
            assert piece.position == len(data)
            data += piece.data
            held[asker] = StatePieceRequest(piece.end_offset, len(data)), data
            if len(data) == piece.total_bytes:
                whole[asker] = bytes(data)
        if len(whole) == 2:
            break
    decoded = {asker: decode_state(data) for asker, data in whole.items()}
    assert [found is not None and found.owner == OF for found in decoded.values()] == [True, True]


def _lossy(everything: bool) -> tuple[Log, LogState]:
    """Return a log and a state that had no memory for its first message ids and producers, or for any of them."""
    log = a_log()
    state = LogState(log, 120, 1 if everything else 700, lambda: 10**15, Producers(0, 0 if everything else 1), subject="s.>")
    for number, name in enumerate(NAMES):
        append(log, state, [name], by=number + 1)
    commit(log, state, 11)
    assert (state.ids.is_whole, state.producers.is_whole) == (False, False)
    assert bool(len(state.ids)) is bool(len(state.producers)) is not everything
    return log, state


@pytest.mark.parametrize("everything", [False, True], ids=["some", "all"])
@pytest.mark.parametrize("way", ["transfer", "retention"])
def test_state_of_a_replica_that_dropped_ids_and_producers_lets_its_copy_reject_unknown_ones(
    way: str, everything: bool
) -> None:
    """The copy would store a repeated message twice, if it took an id that its leader has dropped for a new one [A3, A16]."""
    log, state = _lossy(everything)
    copy = a_state(log)
    if way == "transfer":
        piece = StateServer(state, OF, lambda: 0).read_piece(StatePieceRequest())
        assert piece is not None
        found = decode_state(piece.data)
        assert found is not None
        assert copy.use_stored_state(found)
    else:
        writer = StateWriter(state, log, OF, StateFileSchedule(10**18, 10**18), lambda: 0)
        assert not writer.may_drop(5)
        unwritten = writer.begin()
        assert unwritten is not None
        writer.write(unwritten)
        assert writer.may_drop(5)
        assert (writer.failed, writer.uncovered) == (0, 0)
        restore_state(copy, log, OF)
    now_ns = 1000
    assert copy.ids.lacks([b"m0"], now_ns), "it may be stored"
    assert copy.producers.is_full
    assert copy.producers.losses == state.producers.losses
    kept = [name.encode() for name in NAMES if state.ids.find(name.encode(), now_ns)]
    assert [name for name in kept if copy.ids.find(name, now_ns)] == kept
    assert copy.producers.producer_ids == state.producers.producer_ids


@pytest.mark.parametrize("expired", ["ids", "producers"])
def test_state_with_expired_losses_does_not_restore_them(expired: str) -> None:
    """The copy would reject each new id for a whole window although no id in the window is missing."""
    log, now_ns = a_log(), [10**15]

    def empty_state() -> LogState:
        return LogState(log, 120, 700, lambda: now_ns[0], Producers(120, 1, 0, None, lambda: now_ns[0]), subject="s.>")

    state = empty_state()

    def lose(part: str, at: int) -> None:
        for number, name in enumerate(NAMES):
            append(log, state, [name if part == "ids" else ""], at=at, by=0 if part == "ids" else number + 1)

    lose(expired, 1000)
    commit(log, state, log.newest_offset)
    now_ns[0] += 150
    lose("producers" if expired == "ids" else "ids", 1150)
    commit(log, state, log.newest_offset)
    assert (state.ids.is_whole, state.producers.is_whole) == ((True, False) if expired == "ids" else (False, True))
    copy = empty_state()
    assert copy.use_stored_state(_sent(state))
    assert (copy.ids.is_whole, copy.producers.is_whole) == (state.ids.is_whole, state.producers.is_whole)
    now_ns[0] += 119
    assert not copy.is_whole
    now_ns[0] += 1
    assert not copy.ids.lacks([b"new"], 1270)
    assert copy.producers.is_whole, "the losses expire for the copy when they expire for the leader"


def test_state_of_an_idle_log_with_expired_losses_lets_its_copy_accept_new_ids() -> None:
    """The log time stands still without batches. The age of the loss must reach the copy."""
    log, now_ns = a_log(), [10**15]
    state = LogState(log, 120, 700, lambda: now_ns[0], subject="s.>")
    for name in NAMES:
        append(log, state, [name])
    commit(log, state, 11)
    assert state.ids.lacks([b"new"], 1050)
    now_ns[0] += 150
    copy = a_state(log, now_ns=lambda: now_ns[0])
    assert copy.use_stored_state(_sent(state))
    assert [one.ids.lacks([b"new"], 1150) for one in (state, copy)] == ["", ""]


def _sent(state: LogState) -> State:
    """Return the state that a leader with ``state`` sends to a new replica."""
    piece = StateServer(state, OF, lambda: 0).read_piece(StatePieceRequest())
    assert piece is not None
    sent = decode_state(piece.data)
    assert sent is not None
    return sent


def test_state_transfer_from_an_incomplete_copy_that_an_unclean_election_made_leader_succeeds() -> None:
    """A new replica asks before its first fetch. It must not wait until publishes reach the end of a state that never fits."""
    log, state = filled()
    write(log, state)
    late = load_state(log, OF)[0]
    assert late is not None
    copy_log = a_log()
    copy = a_state(copy_log)
    assert copy.use_stored_state(late)
    append(copy_log, copy, NAMES[:3], by=7)
    commit(copy_log, copy, 2)
    piece = StateServer(copy, OF, lambda: 0).read_piece(StatePieceRequest())
    assert piece is not None
    found = decode_state(piece.data)
    assert found is not None
    assert found.end_offset == 3
    assert copy.covered == -1


# ---- in slices -------------------------------------------------------------------------------------------------------------
def test_state_column_packed_in_chunks_equals_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_state_part, "SLICE", 4)
    numbers, texts = list(range(11)), [b"%d" % n for n in range(11)]
    packed = log_state_part.pack_numbers(numbers, np.uint32)
    assert (b"".join(packed), [len(piece) // 4 for piece in packed]) == (np.array(numbers, np.uint32).tobytes(), [4, 4, 3])
    assert log_state_part.pack_numbers([], np.int64) == log_state_part.join_texts([]) == []
    assert log_state_part.join_texts(texts) == [b"0123", b"4567", b"8910"]
    assert list(log_state_part.numbers(np.array(numbers))) == numbers
    assert list(log_state_part.cut_up(b"xx012345678910", 2, np.array([len(text) for text in texts]))) == texts
    assert list(log_state_part.cut_up(b"", 0, np.array([], np.uint32))) == []


def test_state_file_is_written_in_chunks_without_a_joined_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    storage: Any = SimpleNamespace(
        replace=lambda name, data: given.append((name, data)), names=list, load=lambda name: b"".join(given[-1][1])
    )
    pieces = [b"x" * 5, b"y" * 7]
    unwritten = StateCapture("s-u1/0", 9, 3, {"ids": (1, lambda: pieces), "subjects": (2, list)})
    size_bytes = unwritten.write(storage)
    [(name, data)] = given
    assert (name, size_bytes) == (state_name(9), sum(map(len, data)))
    assert all(any(piece is one for one in data) for piece in pieces), "not copied into one"
    assert decode_state(b"".join(data)) == State("s-u1/0", 9, 3, {"ids": (1, b"x" * 5 + b"y" * 7), "subjects": (2, b"")})
    monkeypatch.setattr(state_file, "MAX_STATE_BYTES", size_bytes - 1)
    assert (unwritten.write(storage), len(given)) == (0, 1)


def test_state_writer_of_a_log_that_a_full_disk_has_closed_requests_no_replay() -> None:
    """The log rejects reads, and the replica would report another storage error."""
    log = a_log()
    append(log, a_state(log), NAMES)
    state, requests = a_state(log), []
    state.on_lacking = lambda: requests.append("replay")
    writer = StateWriter(state, log, OF, StateFileSchedule(60, 100_000, 1000), lambda: 0)
    assert isinstance(log.storage, MemoryStorage)
    log.storage.capacity_bytes = log.storage.used_bytes()
    with pytest.raises(NoSpaceError):
        append(log, state, NAMES)
    assert not writer.may_drop(1)
    assert (requests, state.lacks) == ([], False)
