"""More is published than a cluster can take: ``python -m tests.system.overload [--minutes 5]``.

The command publishes three times the peak, with replies. With ``--ids`` each message has a message id. It prints JSON, and
ends with 1 if something is wrong. ``sender.py`` is the process that publishes: sockets only, so that it costs less than the cluster.
"""
