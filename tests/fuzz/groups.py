"""What members and the coordinator of groups say to each other."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

from google.protobuf.message import DecodeError

from liftpy.core.groups.commands import (
    MAX_COMMAND_BYTES,
    GroupCommandError,
    decode_answer,
    decode_command,
    decode_query,
    decode_query_answer,
    encode_command,
)
from liftpy.core.wire._pb import group_pb2 as pb
from tests.fuzz.decoder import NAMES, Decoder, messages
from tests.fuzz.group_rules import is_valid_command, is_valid_query
from tests.fuzz.mutate import spoiled
from tests.unit.groups.test_group_commands import ALL


def _bytes_of(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _command(data: bytes) -> pb.GroupCommand:
    """Decode by the bounds in the .proto, and compare with the rules written by hand."""
    try:
        command = decode_command(data)
    except GroupCommandError:
        with suppress(DecodeError):
            parsed = pb.GroupCommand.FromString(data)
            assert len(data) > MAX_COMMAND_BYTES or not is_valid_command(parsed), "a valid command is rejected"
        raise
    assert is_valid_command(command), "an invalid command is accepted"
    return command


def _query(data: bytes) -> pb.GroupQuery:
    try:
        query = decode_query(data)
    except GroupCommandError:
        with suppress(DecodeError):
            assert not is_valid_query(pb.GroupQuery.FromString(data)), "a valid question is rejected"
        raise
    assert is_valid_query(query), "an invalid question is accepted"
    return query


_LIMITS = (1, 5, 64, 100, 128, 200, 1000, 3000, 4000, 10_000, 100_000, 1_000_000, 3_600_000, 43_200_000, 86_400_000, 2**63 - 1)


def _spoiled_command(rng: random.Random, sample: bytes) -> bytes:
    """Set one field at any depth to a value at one of the limits, or to any value."""
    try:
        command = pb.GroupCommand.FromString(sample)
    except DecodeError:
        return sample
    if rng.random() < 0.3:
        return _bytes_of(spoiled(rng, command, NAMES))
    place: Any = command
    while within := [
        value
        for field, found in place.ListFields()
        if field.message_type is not None and field.message_type.fields
        for value in (found if field.is_repeated else [found])
    ]:
        place = rng.choice(within)
        if rng.random() < 0.4:
            break
    field = rng.choice(place.DESCRIPTOR.fields)
    number = rng.choice(_LIMITS) + rng.choice((-1, 0, 1))
    with suppress(ValueError, TypeError, IndexError, OverflowError):
        found = getattr(place, field.name)
        if field.is_repeated:
            found.extend([number if field.message_type is None else found[0]] * min(number, 10_001))
        elif field.cpp_type == field.CPPTYPE_STRING:
            setattr(place, field.name, rng.choice("aé ") * min(number, 10_001))
        elif field.message_type is not None:
            found.SetInParent()
        else:
            setattr(place, field.name, number)
    return _bytes_of(command)


def decoders() -> list[Decoder]:
    """Every one of them."""
    e = (GroupCommandError,)
    where = "liftpy.core.groups.commands:"
    commands = [encode_command(command) for command in ALL] + [_bytes_of(m) for m in messages(pb.GroupCommand, 20)]
    questions = [pb.GroupQuery(group="bills"), pb.GroupQuery(after="a", limit=5), *messages(pb.GroupQuery)]
    return [
        Decoder(
            "group command",
            commands,
            _command,
            e,
            encode_command,
            make=_spoiled_command,
            covers=(f"{where}decode_command", f"{where}_parse"),
        ),
        Decoder("group question", [*map(_bytes_of, questions)], _query, e, _bytes_of, covers=(f"{where}decode_query",)),
        Decoder(
            "group answer",
            [_bytes_of(m) for m in messages(pb.GroupAnswer)],
            decode_answer,
            e,
            _bytes_of,
            covers=(f"{where}decode_answer",),
        ),
        Decoder(
            "answer to a group question",
            [_bytes_of(m) for m in messages(pb.GroupQueryAnswer)],
            decode_query_answer,
            e,
            _bytes_of,
            covers=(f"{where}decode_query_answer",),
        ),
    ]
