"""What a Client has to do with what holds for the whole cluster: its feature level, its default quota, its session times."""

from __future__ import annotations

from liftpy.client.admin import Admin
from liftpy.cluster.level_range import FeatureLevels
from liftpy.config import DefaultQuota, SessionTimes


class Levels:
    """Mixed into Client."""

    _admin: Admin

    async def feature_levels(self, level: int = 0) -> FeatureLevels:
        """The cluster's feature level, and who speaks what; see ``Admin.feature_levels``."""
        return await self._admin.feature_levels(level)

    async def set_feature_level(self, level: int) -> str:
        """Finalize a feature level, or go back to the one before; see ``Admin.set_feature_level``."""
        return await self._admin.set_feature_level(level)

    async def default_quota(self) -> DefaultQuota:
        """Of streams without a quota of their own; see ``Admin.default_quota``."""
        return await self._admin.default_quota()

    async def set_default_quota(
        self, *, records_per_s: int | None = None, bytes_per_s: int | None = None, by_token: int | None = None
    ) -> DefaultQuota:
        """Change it, while leaders run; see ``Admin.set_default_quota``."""
        return await self._admin.set_default_quota(records_per_s=records_per_s, bytes_per_s=bytes_per_s, by_token=by_token)

    async def session_times(self) -> SessionTimes | None:
        """Of the whole cluster; see ``Admin.session_times``."""
        return await self._admin.session_times()

    async def set_session_times(self, *, session_s: float | None = None, lease_s: float | None = None) -> SessionTimes:
        """Change them, while nodes run; see ``Admin.set_session_times``."""
        return await self._admin.set_session_times(session_s=session_s, lease_s=lease_s)
