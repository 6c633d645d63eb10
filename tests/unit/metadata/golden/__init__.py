"""Stories of one partition in the metadata, told as scripts: ``*.txt`` in this folder, played by ``script.py``.

A story begins with a line ``# what it shows``. Each line below is a request and its result:

    report c 1/93 => leader=- candidate=c deposed=a status=candidate_found leader_epoch+

The result has the fields of the partition that the request changed, ``leader_epoch+`` for a higher LeaderEpoch, and changed lists of
nodes. ``=`` means that nothing changed. An error comes with its detail.

``python -m tests.unit.metadata.golden`` writes the results anew. Read the difference before you commit it.
"""
