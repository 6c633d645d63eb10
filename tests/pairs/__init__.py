"""A matrix of features: what holds of one feature must hold where two or three of them meet.

    python -m tests.pairs --count 200 --seed 1            200 random pairs on the cluster in memory, one after the other
    python -m tests.pairs --every                         every possible pair once (about 25 minutes of one core)
    python -m tests.pairs --count 50 --triples            random triples
    python -m tests.pairs --pair compaction,cursor        one pair (or triple) by name; with --seed N --count 1 it repeats a violation
    python -m tests.pairs --list                          the table: features, and the pairs that cannot be combined

Each violation is printed with the command that repeats it. The last line says how many pairs are possible, how many were run, and how
many violations they had.

``table.py`` names the features. A feature is a class (``feature.py``) with settings for the stream, a ``start``, an ``act`` that is
called several times, and a ``check``. ``scenario.py`` composes a scenario from two or three features and a seed: a stream with the
settings of all of them, some steps in which one or two of them act while records are published. Then faults are healed, every reader
catches up, and everything is checked. ``model.py`` knows what was sent and answered, and what must hold:

- An acknowledged record is in the log once, at the offset of its acknowledgement, unless a feature may remove it: retention,
  truncation, a purge, a newer record of its key or subject. A rejected record is not there. No record is there twice.
- Records of one writer are in the order in which it sent them, in each partition.
- A reader gets each record of its range once and in order. A committed position never passes a record that was not handed on.
- Outputs, copies and dead letters are there exactly once.
- A message id, or the sequence of a producer, that is sent again is answered with the offset of the first time.
- All replicas hold the same bytes. Under compaction they hold the same newest record of each key. A deleted key does not come back.

The order of all actions follows from the seed. The cluster in memory runs in real time, so a race between two actions may end
differently in the next run: repeat a violation several times (``--count 20`` with ``--pair`` tries 20 seeds from ``--seed`` on).

A new feature is a class with a name and a kind, and an entry in ``FEATURES`` of its module. A pair that makes no sense is named in
``INCOMPATIBLE`` (``table.py``) with its reason.
"""
