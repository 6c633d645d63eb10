"""What members and the coordinator of groups say to each other."""

from __future__ import annotations

from typing import Any

from liftpy.core.groups.commands import (
    GroupCommandError,
    decode_answer,
    decode_command,
    decode_query,
    decode_query_answer,
    encode_command,
)
from liftpy.core.wire._pb import group_pb2 as pb
from tests.fuzz.decoder import Decoder, messages
from tests.unit.groups.test_group_commands import ALL


def _bytes_of(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def decoders() -> list[Decoder]:
    """Every one of them."""
    e = (GroupCommandError,)
    where = "liftpy.core.groups.commands:"
    commands = [encode_command(command) for command in ALL] + [_bytes_of(m) for m in messages(pb.GroupCommand, 20)]
    questions = [pb.GroupQuery(group="bills"), pb.GroupQuery(after="a", limit=5), *messages(pb.GroupQuery)]
    return [
        Decoder(
            "group command", commands, decode_command, e, encode_command, covers=(f"{where}decode_command", f"{where}_parse")
        ),
        Decoder("group question", [*map(_bytes_of, questions)], decode_query, e, _bytes_of, covers=(f"{where}decode_query",)),
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
