"""Consumer groups, named cursors and work queues: owners and positions of partitions.

``coordinator`` is a replicated service over an internal stream of commands. ``member`` is the other side. Both are pure.
"""
