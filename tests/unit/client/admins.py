"""An ``Admin`` over a transport, for tests without a client."""

from __future__ import annotations

from typing import Any

from liftpy.client.admin import Admin
from liftpy.client.metadata_requests import DEADLINE_S, MetadataRequests
from liftpy.client.stream_directory import StreamDirectory
from liftpy.core.wire.subjects import Subjects


def admin_over(transport: Any, subjects: Subjects, deadline_s: float = DEADLINE_S) -> Admin:
    return Admin(StreamDirectory(MetadataRequests(transport, subjects, deadline_s)))
