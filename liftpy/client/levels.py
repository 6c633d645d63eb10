"""What a Client has to do with feature levels."""

from __future__ import annotations

from liftpy.client.admin import Admin
from liftpy.cluster.level_range import FeatureLevels


class Levels:
    """Mixed into Client."""

    _admin: Admin

    async def feature_levels(self, level: int = 0) -> FeatureLevels:
        """The cluster's feature level, and who speaks what; see ``Admin.feature_levels``."""
        return await self._admin.feature_levels(level)

    async def set_feature_level(self, level: int) -> str:
        """Finalize a feature level, or go back to the one before; see ``Admin.set_feature_level``."""
        return await self._admin.set_feature_level(level)
