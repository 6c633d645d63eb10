"""Consumer groups, named cursors and work queues: who reads which partition, and how far it has come.

``coordinator`` is a replicated service over an internal stream of commands; ``member`` is the other side. Both are pure.
"""
