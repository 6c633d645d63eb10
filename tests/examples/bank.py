"""An example of a replicated service: a bank of accounts. Every command is answered once in the output stream.

Commands (JSON): ``{"id": "c1", "do": "open", "account": "a"}``, ``deposit`` and ``withdraw`` with ``amount``, ``transfer`` with ``to``,
``lock`` with ``for_s`` (no withdrawals until log time has passed; a timer opens the account again). Amounts are whole cents.

Run it beside node n1::

    liftpy service tests.examples.bank:Bank --stream bank --output receipts --node n1 --data /var/lib/bank
"""

from __future__ import annotations

import json
from typing import Any

from liftpy.service import Service
from liftpy.wire.batch import Record

NS_PER_S = 1_000_000_000


class Refused(Exception):
    """A command that is not carried out; the text is its answer."""


class Bank(Service):
    """The accounts. No command makes or loses money but deposits and withdrawals."""

    def on_start(self, snapshot: bytes | None) -> None:
        """Begin with the accounts of the snapshot."""
        state = json.loads(snapshot) if snapshot else {"accounts": {}, "locked": [], "commands": 0}
        self.accounts: dict[str, int] = state["accounts"]
        self.locked: set[str] = set(state["locked"])
        self.commands: int = state["commands"]

    def take_snapshot(self) -> bytes:
        """Sorted, so that the same accounts are the same bytes."""
        state = {"accounts": self.accounts, "locked": sorted(self.locked), "commands": self.commands}
        return json.dumps(state, sort_keys=True).encode()

    def on_record(self, record: Record) -> None:
        """Carry out one command; whatever is not one is answered too: a record can't be sent back."""
        self.commands += 1
        try:
            command = json.loads(record.value or b"")
            self._carry_out(command)
            answer = {"id": command["id"], "ok": True, "balance": self.accounts[command["account"]]}
        except Refused as refused:
            answer = {"id": command["id"], "ok": False, "why": str(refused)}
        except (ValueError, KeyError, TypeError) as error:
            answer = {"offset": record.offset, "ok": False, "why": f"not a command: {type(error).__name__}"}
        self.emit(json.dumps(answer, sort_keys=True).encode(), key=record.key)

    def on_timer(self, name: str) -> None:
        """The lock of an account ends."""
        self.locked.discard(name)
        self.emit(json.dumps({"unlocked": name}).encode())

    def _carry_out(self, command: dict[str, Any]) -> None:
        name, amount = str(command["account"]), command.get("amount", 0)
        if not isinstance(amount, int) or amount < 0:
            raise Refused("amount is not a number of cents")
        match command["do"]:
            case "open":
                if name in self.accounts:
                    raise Refused("the account is there already")
                self.accounts[name] = 0
            case "deposit":
                self._balance(name)
                self.accounts[name] += amount
            case "withdraw":
                self._take(name, amount)
            case "transfer":
                self._balance(str(command["to"]))
                self._take(name, amount)
                self.accounts[str(command["to"])] += amount
            case "lock":
                self._balance(name)
                self.locked.add(name)
                self.set_timer(name, self.now_ns + int(command["for_s"] * NS_PER_S))
            case other:
                raise Refused(f"{other} is not known")

    def _balance(self, name: str) -> int:
        if name not in self.accounts:
            raise Refused(f"there is no account {name}")
        return self.accounts[name]

    def _take(self, name: str, amount: int) -> None:
        if name in self.locked:
            raise Refused(f"account {name} is locked")
        if self._balance(name) < amount:
            raise Refused("not enough money")
        self.accounts[name] -= amount
