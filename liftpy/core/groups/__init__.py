"""Consumer groups, named cursors and work queues: which member owns a partition, and at which position. Pure.

``coordinator`` is a replicated service over an internal stream of commands. ``member`` is the state machine of one consumer.
"""
