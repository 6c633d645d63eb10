"""The cluster's default quota of a backup, said again to the empty cluster into which all of it is restored; or why it was not."""

from __future__ import annotations

from collections.abc import Collection

from liftpy.client import Client
from liftpy.config import DefaultQuota
from liftpy.dataclass import dataclass
from liftpy.errors import LiftError
from liftpy.ids import is_internal


@dataclass(frozen=True, slots=True)
class RestoredQuota:
    """``quota``: of the backup. ``why``: it does not hold in this cluster now, '': it does."""

    quota: DefaultQuota
    why: str = ""

    @property
    def command(self) -> str:
        """By which an operator sets it."""
        quota = self.quota
        return f"liftpy settings default-quota --records {quota.records_per_s} --bytes {quota.bytes_per_s} --by-token {quota.by_token}"


async def set_default_quota(client: Client, quota: DefaultQuota, restored: Collection[str]) -> RestoredQuota:
    """Set ``quota``, where the cluster holds nothing but the streams ``restored`` (names) and has no default quota: else it would bound
    streams that it never bounded. Raises nothing of the cluster's: what is restored is restored without it, too."""
    try:
        image = (await client.describe_cluster(linearizable=True)).image
        if image.default_quota == quota:
            return RestoredQuota(quota)
        if image.default_quota.has_rates:
            return RestoredQuota(quota, f"the cluster has another one: {image.default_quota.words}")
        others = sorted(name for name in image.streams if name not in restored and not is_internal(name))
        if others:
            return RestoredQuota(
                quota, f"the cluster has streams of its own: {', '.join(others[:3])}{', ...' * (len(others) > 3)}"
            )
        await client.set_default_quota(
            records_per_s=quota.records_per_s, bytes_per_s=quota.bytes_per_s, by_token=quota.by_token
        )
    except LiftError as error:
        return RestoredQuota(quota, str(error))
    return RestoredQuota(quota)
