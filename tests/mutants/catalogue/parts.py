"""Bugs of partitions and of connections where something goes wrong half way: a reconnect, a disk, a thread that can't be had."""

from __future__ import annotations

from tests.mutants.mutant import rows

_RECONNECTS = ("tests/unit/bus/test_reconnects.py",)

MUTANTS = [
    *rows(
        "liftpy/client/parser.py",
        (
            "a late PONG makes a second connection",
            "                if asyncio.current_task() is not self._reconnection_task:\n                    raise",
            "                raise",
            "in a flood each publish comes by two connections",
        ),
        (
            "first words end the reconnecting",
            "        except Exception as error:\n            raise ProtocolError(f\"nats: the server's first words",
            "        except MemoryError as error:\n            raise ProtocolError(f\"nats: the server's first words",
            "a proxy that says nonsense once takes a node off NATS for good",
        ),
        (
            "who is left is read on",
            "        made.transport.abort()\n",
            "",
            "a server sends everything to a connection that nobody reads",
        ),
        (
            "half a message of the connection before",
            "        made, self._made = self._made, None\n        if made is None:\n            return\n        self._ps.reset()",
            "        made, self._made = self._made, None\n        if made is None:\n            return",
            "a record holds protocol lines of another connection",
        ),
        tests=_RECONNECTS,
    ),
    *rows(
        "sidecar/bus/connection.py",
        (
            "one who fails keeps the others from hearing",
            '            except Exception as error:\n                unexpected(f"what follows',
            '            except MemoryError as error:\n                unexpected(f"what follows',
            "a leader whose connection is back believes that it is lost",
        ),
        tests=_RECONNECTS,
    ),
]
