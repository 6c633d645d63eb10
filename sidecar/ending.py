"""Ending tasks that use nats-py: as the client does."""

from liftpy.client.ending import end_tasks

__all__ = ["end_tasks"]
