"""Stories of producers at the leaders of one partition, told as scripts: ``*.txt`` in this folder, played by ``script.py``.

    ask P1                 => epoch=0 next=0
    send P1 aab            => append
    send P1 ab seq=1       => duplicate known=2 offset=1 next=3

Process P1 asks for an epoch, and then sends batches. One letter is one record. ``seq`` is the sequence of the first record. ``said``
are the records before it, of which the process sends the digest: as many of its first letter if the line does not name them. ``as``
is the producer id. ``store`` sends without a process: only the log decides. ``replay`` adds a batch without a check. ``at=9/2`` is the
source position 9 of generation 2. The state of a producer lists its batches: sequence+records@offset.

``python -m tests.unit.publish.golden`` writes the results anew. Read the difference before you commit it.
"""
