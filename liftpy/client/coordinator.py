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
    """Send a command to the coordinator of a partition of the groups stream. Return its answer after the commit.

    Raises UnavailableError, OutcomeUnknownError or GroupCommandError.
    """
    answer = await services.call(
        GROUPS_SERVICE, GROUPS_STREAM, encode_command(command), partition=partition, timeout_s=timeout_s
    )
    return decode_answer(answer.value)


def name_of(code: int) -> str:
    """Return the name of a coordinator's error code. Return the number if this client version does not know it."""
    return pb.GroupCode.Name(code) if code in pb.GroupCode.values() else str(code)
