"""More is published than a cluster takes: by a quota, or by what the machine can do. Who is refused is told, nobody else suffers.

``python -m tests.system.overload [--minutes 5]`` publishes three times the peak, with replies
(``--ids``: and with message ids). With ``--quota [--seconds 30]`` it holds
a stream to its quota beside another. Both print what they saw as JSON, and end with 1 where it is not as it should be. ``sender.py`` is
the process that publishes: sockets only, so that it costs less than what it asks for.
"""
