"""Compares an existing stream with a wanted one. Pure."""

from __future__ import annotations

from dataclasses import fields

from liftpy.config import StreamConfig
from liftpy.core.metadata.image import StreamImage


def differences(stream: StreamImage, subject: str, partitions: int, replicas: int, config: StreamConfig | None) -> list[str]:
    """Return the differences from the wanted stream for people, [] for none.

    ``replicas`` 0 and ``config`` None accept anything.
    """
    pairs: list[tuple[str, object, object]] = [
        ("subject", stream.subject, subject),
        ("partitions", stream.partition_count, partitions),
    ]
    if replicas:
        pairs.append(("replicas", stream.replica_count, replicas))
    if config is not None:
        pairs += [(f.name, getattr(stream.config, f.name), getattr(config, f.name)) for f in fields(config)]
    return [f"its {name} is {_shown(there)}, not {_shown(wanted)}" for name, there, wanted in pairs if there != wanted]


def _shown(value: object) -> str:
    return str(getattr(value, "value", value))
