"""Sends commands to the coordinator of groups, queues and cursors."""

from __future__ import annotations

from liftpy.client.services import Services
from liftpy.core.groups.commands import decode_answer, encode_command
from liftpy.core.wire._pb import group_pb2 as pb
from liftpy.core.wire.subjects import GROUPS_SERVICE, GROUPS_STREAM
from liftpy.errors import LiftError


class GroupRejectedError(LiftError):
    """The group coordinator rejected the request. The text says why.

    Another member owns the partition or the instance id, or a limit is reached.
    """

    code = "GROUP_REJECTED"


async def ask_coordinator(services: Services, partition: int, command: pb.GroupCommand, timeout_s: float) -> pb.GroupAnswer:
    """Send a command to the coordinator of groups, and return its answer after the command is committed.

    ``partition``: partition of the groups stream that holds the group. ``timeout_s``: time limit in seconds. Raises UnavailableError,
    OutcomeUnknownError or GroupCommandError.
    """
    answer = await services.call(
        GROUPS_SERVICE, GROUPS_STREAM, encode_command(command), partition=partition, timeout_s=timeout_s
    )
    return decode_answer(answer.value)


def name_of(code: int) -> str:
    """Return the name of an error code of the coordinator. For an unknown code, return the number as text."""
    return pb.GroupCode.Name(code) if code in pb.GroupCode.values() else str(code)
