"""What of a backup is the whole cluster's, said again to the empty cluster into which all of it is restored; or why it was not: its
default quota, and its session times where somebody had set them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from liftpy.client import Client
from liftpy.cluster.image import ClusterImage
from liftpy.config import NO_QUOTA, NS_PER_MS, NS_PER_S, DefaultQuota, SessionTimes
from liftpy.dataclass import dataclass
from liftpy.errors import LiftError
from liftpy.ids import is_internal


@dataclass(frozen=True, slots=True)
class ClusterWide:
    """``quota``: the default, NO_QUOTA: none. ``times``: as somebody has set them; None: as nodes' settings had them."""

    quota: DefaultQuota = NO_QUOTA
    times: SessionTimes | None = None


NOTHING_WIDE = ClusterWide()


@dataclass(frozen=True, slots=True)
class RestoredSetting:
    """``value``: of the backup. ``why``: it does not hold in this cluster now, '': it does."""

    value: DefaultQuota | SessionTimes
    why: str = ""

    @property
    def name(self) -> str:
        """For people, and as JSON names it with underscores."""
        return "default quota" if isinstance(self.value, DefaultQuota) else "session times"

    @property
    def words(self) -> str:
        """The value, for people."""
        return self.value.words

    @property
    def command(self) -> str:
        """By which an operator sets it."""
        value = self.value
        if isinstance(value, DefaultQuota):
            rates = f"--records {value.records_per_s} --bytes {value.bytes_per_s} --by-token {value.by_token}"
            return f"liftpy settings default-quota {rates}"
        return f"liftpy settings session --session-s {_seconds(value.session_ms):g} --lease-s {_seconds(value.lease_ms):g}"

    @property
    def shown(self) -> dict[str, object]:
        """As JSON."""
        value = self.value
        if isinstance(value, DefaultQuota):
            return {**asdict(value), "why_not": self.why}
        return {"session_ms": value.session_ms, "lease_ms": value.lease_ms, "why_not": self.why}


def cluster_wide_of(image: ClusterImage) -> ClusterWide:
    """What is to be restored of ``image``."""
    times = image.session_times
    return ClusterWide(image.default_quota, times if times is not None and times.change else None)


async def set_cluster_wide(client: Client, wanted: ClusterWide, restored: Collection[str]) -> list[RestoredSetting]:
    """Set ``wanted``, where the cluster holds nothing but the streams ``restored`` (names) and nobody has set its own: else it would
    bound streams that it never bounded, or fence nodes as nobody wants here. Raises nothing of the cluster's: what is restored is
    restored without it, too."""
    values = [value for value in (wanted.quota if wanted.quota != NO_QUOTA else None, wanted.times) if value is not None]
    return [RestoredSetting(value, await _set(client, value, restored)) for value in values]


async def _set(client: Client, value: DefaultQuota | SessionTimes, restored: Collection[str]) -> str:
    """Why not; '': it holds."""
    try:
        image = (await client.describe_cluster(linearizable=True)).image
        is_quota = isinstance(value, DefaultQuota)
        held = image.default_quota if is_quota else image.session_times
        if held is not None and _alike(held) == _alike(value):
            return ""
        if held is not None and (held.has_rates if isinstance(held, DefaultQuota) else held.change):
            return f"the cluster has {'another one' if is_quota else 'others'}: {held.words}"
        others = sorted(name for name in image.streams if name not in restored and not is_internal(name))
        if others:
            return f"the cluster has streams of its own: {', '.join(others[:3])}{', ...' * (len(others) > 3)}"
        if isinstance(value, DefaultQuota):
            await client.set_default_quota(
                records_per_s=value.records_per_s, bytes_per_s=value.bytes_per_s, by_token=value.by_token
            )
        else:
            await client.set_session_times(session_s=_seconds(value.session_ms), lease_s=_seconds(value.lease_ms))
    except LiftError as error:
        return str(error)
    return ""


def _alike(value: DefaultQuota | SessionTimes) -> object:
    return value if isinstance(value, DefaultQuota) else (value.session_ms, value.lease_ms)


def _seconds(ms: int) -> float:
    return ms * NS_PER_MS / NS_PER_S
