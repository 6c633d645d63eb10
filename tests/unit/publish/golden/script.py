"""Play stories of producers: send their questions and batches to the leader of a partition, and describe its answers."""

from __future__ import annotations

from itertools import takewhile

from liftpy.core.publish.digest import RollingDigest
from liftpy.core.publish.log_state import _new_batch_of
from liftpy.core.publish.producer_state import (
    BatchCheck,
    Claim,
    Finding,
    ProducerGrant,
    ProducerRegistry,
    ProducerRequest,
    Producers,
)
from liftpy.core.wire.batch import RecordBatch, parse_batch
from liftpy.core.wire.producer_note import ProducerNote, SourcePosition
from tests.batches import build_batch

_HEADERS = {"c": (("n", b"1"),), "d": (("n", b""), ("m", b"22"))}


class ProducerPlayer:
    """The producers of one partition, its log of records with one letter each, and the leader."""

    def __init__(self) -> None:
        self._producers = Producers(0, 10)
        self._registry = ProducerRegistry(self._producers)
        self._log: list[RecordBatch] = []
        self._letters = ""

    def send(self, verb: str, names: list[str], options: dict[str, str]) -> str:
        """Send one request, for example ``send P1 ab seq=3 epoch=1``, and return its result."""
        match verb, names:
            case "begin", []:
                self._producers = Producers(int(options.get("expiry", "0")), int(options.get("max", "10")))
                self._registry = ProducerRegistry(self._producers)
                return "empty"
            case "leader", []:
                self._registry = ProducerRegistry(self._producers)
                return self._state()
            case "leader", ["again"]:
                self._registry.begin()
                return self._state()
            case "commit", [offset]:
                self._producers.committed(int(offset))
                return self._state()
            case "truncate", [end]:
                self._log = list(takewhile(lambda batch: batch.base_offset < int(end), self._log))
                self._letters = self._letters[: int(end)]
                self._producers.truncate(int(end))
                return self._state()
            case "restore", []:
                data = b"".join(self._producers.snapshot()())
                self._producers = Producers(0, 10)
                self._producers.restore(data, len(self._letters))
                self._registry = ProducerRegistry(self._producers)
                return self._state()
            case "forget", []:
                self._producers.begin(None)
                return self._state()
            case "ask", [process]:
                return self._ask(process, options)
            case "send", [process, letters]:
                said = {"said": letters[0] * int(options.get("seq", "0"))}
                return _shown_check(self._publish(process, letters, options, said))
            case "store", [letters]:
                return _shown_check(self._publish("", letters, options, {}))
            case "replay", [letters]:
                self._append(letters, options, int(options.get("seq", "0")))
                return self._state()
        raise ValueError(f"unknown request: {verb} {names} {options}")

    def _ask(self, process: str, options: dict[str, str]) -> str:
        position, name = _position_in(options), options.get("name", "")
        request = ProducerRequest(_producer_in(options), _instance_of(process), int(options.get("seq", "0")), name, position)
        answer = self._registry.ask(request)
        if isinstance(answer, Finding):
            return answer.value
        assert isinstance(answer, ProducerGrant)
        digest = "" if answer.digest == self._digest_of(_producer_in(options), answer.next_sequence) else " no digest"
        last = f" last={answer.last_offset}" if answer.known else ""
        return f"epoch={answer.epoch} next={answer.next_sequence}{last}{_shown_position(answer.position)}{digest}"

    def _publish(self, process: str, letters: str, options: dict[str, str], usual: dict[str, str]) -> BatchCheck:
        """Check a batch, with the epochs that the leader gave if there is a process, and append its new records."""
        given = usual | options
        sequence, position = int(given.get("seq", "0")), _position_in(given)
        claim = Claim(
            _producer_in(given), int(given.get("epoch", "0")), sequence, len(letters), "reset" in given,
            _digest(given["said"]) if "said" in given else None, _instance_of(process), given.get("name", ""), position,
        )  # fmt: skip
        found = (self._registry if process else self._producers).check_batch(claim, _batch(letters).columns)
        if found.finding is Finding.APPEND:
            self._append(letters[found.known :], options, (sequence + found.known) % (1 << 32))
        return found

    def _append(self, letters: str, options: dict[str, str], sequence: int) -> None:
        note = ProducerNote(options.get("name", ""), _position_in(options))
        epoch, time = int(options.get("epoch", "0")), int(options.get("time", "1"))
        batch = _batch(letters, len(self._letters), _producer_in(options), epoch, sequence, time, note)
        self._producers.add_batch(_new_batch_of(batch))
        self._log.append(batch)
        self._letters += letters

    def _digest_of(self, producer: int, next_sequence: int) -> RollingDigest:
        """Return the digest of the last ``next_sequence`` records of the producer in the log."""
        own = "".join(
            self._letters[batch.base_offset : batch.next_offset] for batch in self._log if batch.header.producer_id == producer
        )
        return _digest(own[len(own) - next_sequence :])

    def _state(self) -> str:
        """Return the producers that are known, the one that was heard last at the end."""
        known = " | ".join(map(self._shown_producer, self._producers.producer_ids))
        evicted = f" | evicted={self._producers.evicted_count}" if self._producers.evicted_count else ""
        return (known or "no producer") + evicted

    def _shown_producer(self, producer: int) -> str:
        state = self._producers.state_of(producer)
        assert state is not None
        batches = ",".join(f"{batch.sequence}+{batch.record_count}@{batch.offset}" for batch in state.batches)
        name = f" name={state.name}" if state.name else ""
        digest = "" if state.digest == self._digest_of(producer, state.next_sequence) else " no digest"
        return f"{producer}:epoch={state.epoch} next={state.next_sequence} {batches}{name}{_shown_position(state.position)}{digest}"


def _producer_in(options: dict[str, str]) -> int:
    return int(options.get("as", "7"))


def _instance_of(process: str) -> int:
    return 1000 + int(process.removeprefix("P") or "0")


def _position_in(options: dict[str, str]) -> SourcePosition | None:
    if "at" not in options:
        return None
    offset, generation, uid, partition = (options["at"].split("/") + ["0", "u", "0"][options["at"].count("/") :])[:4]
    return SourcePosition(uid, int(partition), int(offset), int(generation))


def _shown_position(position: SourcePosition | None) -> str:
    return "" if position is None else f" at={position.offset}/{position.generation}"


def _shown_check(check: BatchCheck) -> str:
    found = check.finding.value
    for name, value, default in (("known", check.known, 0), ("offset", check.offset, -1), ("next", check.next_sequence, 0)):
        found += f" {name}={value}" if value != default else ""
    return found


def _batch(
    letters: str,
    base: int = 0,
    producer: int = 7,
    epoch: int = 0,
    sequence: int = 0,
    time: int = 1,
    note: ProducerNote | None = None,
) -> RecordBatch:
    """Return a batch. Letter a has no key, b an empty value, and the others have headers, too."""
    made = build_batch(
        [b"" if letter == "b" else letter.encode() for letter in letters],
        keys=[None if letter == "a" else b"k" for letter in letters],
        headers=[_HEADERS.get(letter) for letter in letters],
        base_offset=base, timestamp_ns=time, producer_id=producer, producer_epoch=epoch, base_sequence=sequence,
        note=note.encode() if note is not None and any(note) else b"",
    )  # fmt: skip
    return parse_batch(made)


def _digest(letters: str) -> RollingDigest:
    return RollingDigest().over(_batch(letters).columns, 0, len(letters)) if letters else RollingDigest()
