"""A cluster on a machine that is loaded many times over: nobody who lives is deposed, and whoever waits for an acknowledgement gets it.

``python -m tests.system.loaded --minutes 10 --times 4`` runs as many busy loops as keep all cores busy that many times, beside three
nodes and publishers that wait for all in-sync replicas, and judges: leaderships, ISRs, terms of the metadata group, the longest time
without an acknowledgement.
"""
