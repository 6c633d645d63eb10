"""A producer for one round (``rounds.py``), opened over a connection that somebody else has."""

from __future__ import annotations

from liftpy.client.admin import Admin
from liftpy.client.opening import Opening
from liftpy.client.outgoing import Address
from liftpy.client.producer import Producer
from liftpy.client.producing import ProducerOptions, check_answers, name_for
from liftpy.client.rounds import Round
from liftpy.client.transport import Transport
from liftpy.cluster.image import StreamImage
from liftpy.errors import ConfigError, NotFoundError, UnavailableError
from liftpy.ids import check_published
from liftpy.wire.subjects import data_subject


def open_producer(
    transport: Transport, admin: Admin, stream: str, *, id: str = "", round: Round | None = None, options: ProducerOptions
) -> Opening[Producer]:
    """A producer of ``stream``. ``id`` '': one of its own, whose records nobody else can send again. ``round``: that it sends.

    Raises NotFoundError, ConfigError (nobody answers on the stream), UnavailableError, and PublishRejectedError: PRODUCER_FENCED where
    a later round was begun.
    """
    return Opening(_open(transport, admin, stream, name_for(id, None), round, options))


async def _open(
    transport: Transport, admin: Admin, stream: str, name: str, round: Round | None, options: ProducerOptions
) -> Producer:
    known = await _described(admin, check_published(stream))
    check_answers(known)
    if known.waiting:
        raise UnavailableError(f"stream {stream} waits for more nodes")

    async def find(partition: int) -> Address:
        return _address(await _described(admin, stream), partition)

    addresses = [_address(known, partition.partition) for partition in known.partitions]
    made = Producer(transport, stream, name, addresses, options, "key", find, round)
    await made.open()
    return made


async def _described(admin: Admin, stream: str) -> StreamImage:
    try:
        return await admin.stream(stream)
    except NotFoundError:  # who answered may be behind
        return await admin.stream(stream, linearizable=True)


def _address(stream: StreamImage, partition: int) -> Address:
    if partition >= len(stream.partitions):
        raise NotFoundError(f"{stream.name} has no partition {partition}")
    subject = data_subject(stream.subject, partition)
    if any(token in ("*", ">") for token in subject.split(".")):
        raise ConfigError(f"{stream.name} is on {subject}, which has wildcards: a producer needs one subject")
    return Address(subject, stream.uid, stream.answers)
