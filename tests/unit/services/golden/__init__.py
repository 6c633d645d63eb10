"""Stories of services at the node of one replica, told as scripts: ``*.txt`` in this folder, played by ``script.py``.

    begin bank                   => bank FOLLOWER #1 epoch=1
    promote epoch=2              => bank FOLLOWER #2 epoch=2 stop=10 | replayed 10 | until=2000
    ack bank position=10         => bank FOLLOWER #2 ... | replayed 10, promotion continues

``begin`` names services that have caught up. ``#2`` is the id of an order, which an ack repeats: ``ackId`` names an earlier one.
``at`` is the time. A session ends after 3000, and a promotion waits for 2000, which ends at ``until``. ``suspend``: the leader has no
lease. ``see`` changes what the replica knows without an event. ``retain``: the offset from which services need the log.

``python -m tests.unit.services.golden`` writes the results anew. Read the difference before you commit it.
"""
