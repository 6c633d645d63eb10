"""Pipelines over streams, each a function and a command of ``liftpy spark``."""
