"""Garbage on every subject that a cluster listens to: ``python -m tests.system.garbage [--frames 100000]``.

A cluster of real processes without NATS authorization, under load: three controllers and a node that follows the feed, publishers
that wait for acks, a reader. Everything that is said on the bus is overheard, spoiled, and said again, on every subject of the table
of subjects (``liftpy.core.wire.permissions``) and on what nats-server says the nodes listen to. Nothing of it may end a node,
move a leadership
or an ISR, begin a term, fill the memory or the log, or keep a publish from being acknowledged; and what was acknowledged is on all
replicas, which are equal.

What is no garbage: an order that is whole and names real things (``deleteStream`` of a stream that exists, the start of a node), and
an answer, or a request in somebody's name, that is whole and goes to an inbox where somebody waits. Without rights in NATS whoever
can connect may say those; ``docs/security.md`` says so.
"""
