"""An example of a replicated service: a bank of accounts. Every command is answered once in the output stream, and to who sent it.

Commands (JSON): ``{"id": "c1", "do": "open", "account": "a"}``, ``deposit`` and ``withdraw`` with ``amount``, ``transfer`` with ``to``,
``lock`` with ``for_s`` (no withdrawals until log time has passed; a timer opens the account again), ``audit`` (which percentage of all
money is in the account). Amounts are whole cents.

Version 2 takes a fee for each withdrawal, and mends a bug of version 1: an audit while the bank has no money could not be carried
out. Such a record is passed over by all nodes (``on_error``) and kept in the dead-letter stream.

Run it beside node n1; where version 1 ran before, node by node while commands go on::

    liftpy service tests.examples.bank:Bank --stream bank --output-stream receipts --dead-letter-stream unpaid \\
        --node n1 --data /var/lib/bank
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from liftpy.core.wire.batch import Record
from liftpy.service import Service

NS_PER_S = 1_000_000_000
MAX_NAME = 64
MAX_AMOUNT = 10**15
MAX_LOCK_S = 10**6
FEE = 1
"""Cents for a withdrawal, from version 2 on."""


class Refused(Exception):
    """A command that is not carried out; the text is its answer."""


def _command(value: bytes) -> dict[str, Any]:
    """The command in a record, whole and within bounds, before anything is changed; raise Refused for what is none."""
    try:
        given = json.loads(value)
    except (ValueError, RecursionError):
        raise Refused("not JSON") from None
    if not isinstance(given, dict):
        raise Refused("not a command")
    command = {"to": "", "amount": 0, "for_s": 0, **given}
    names = [command.get(name) for name in ("id", "do", "account", "to")]
    if not all(isinstance(name, str) and len(name) <= MAX_NAME and name.isprintable() for name in names):
        raise Refused(f"id, do, account and to are printable texts of at most {MAX_NAME} characters")
    amount, for_s = command["amount"], command["for_s"]
    if not isinstance(amount, int) or not 0 <= amount <= MAX_AMOUNT:
        raise Refused(f"amount is a number of cents up to {MAX_AMOUNT}")
    if not isinstance(for_s, int | float) or not 0 <= for_s <= MAX_LOCK_S:
        raise Refused(f"for_s is a number of seconds up to {MAX_LOCK_S}")
    return command


class Bank(Service):
    """The accounts. No command makes or loses money but deposits and withdrawals, whose fees are counted."""

    version: ClassVar[int] = 2
    on_error = "skip"

    def on_start(self, snapshot: bytes | None) -> None:
        """Begin with the accounts of the snapshot."""
        state = json.loads(snapshot) if snapshot else {"accounts": {}, "locked": [], "commands": 0}
        self.accounts: dict[str, int] = state["accounts"]
        self.locked: set[str] = set(state["locked"])
        self.commands: int = state["commands"]
        self.fees: int = state.get("fees", 0)

    def take_snapshot(self) -> bytes:
        """Sorted, so that the same accounts are the same bytes."""
        state: dict[str, Any] = {"accounts": self.accounts, "locked": sorted(self.locked), "commands": self.commands}
        if self.active_version >= 2:
            state["fees"] = self.fees
        return json.dumps(state, sort_keys=True).encode()

    def on_query(self, query: bytes) -> bytes:
        """``{"account": "a"}``: its balance."""
        try:
            name = str(json.loads(query)["account"])
            return json.dumps({"account": name, "balance": self._balance(name), "locked": name in self.locked}).encode()
        except (KeyError, TypeError) as error:
            raise Refused(
                f"Cannot decode the group command as query: {type(error).__name__}. Check the version of the client."
            ) from None

    def on_record(self, record: Record) -> None:
        """Carry out one command; whatever is not one is answered too: a record can't be sent back."""
        self.commands += 1
        try:
            command = _command(record.value or b"")
        except Refused as refused:
            answer: dict[str, Any] = {"offset": record.offset, "ok": False, "why": str(refused)}
        else:
            try:
                found = self._carry_out(command)
                answer = {"id": command["id"], "ok": True, "balance": self.accounts[command["account"]], **found}
            except Refused as refused:
                answer = {"id": command["id"], "ok": False, "why": str(refused)}
        receipt = json.dumps(answer, sort_keys=True).encode()
        self.emit(receipt, key=record.key)
        self.reply(record, receipt)

    def on_timer(self, name: str) -> None:
        """The lock of an account ends."""
        self.locked.discard(name)
        self.emit(json.dumps({"unlocked": name}).encode())

    def _carry_out(self, command: dict[str, Any]) -> dict[str, int]:
        """Do it; return what the answer says beside the balance."""
        name, amount = command["account"], command["amount"]
        match command["do"]:
            case "open":
                if name in self.accounts:
                    raise Refused("the account is there already")
                self.accounts[name] = 0
            case "deposit":
                self._balance(name)
                self.accounts[name] += amount
            case "withdraw":
                fee = FEE if self.active_version >= 2 else 0
                self._take(name, amount + fee)
                self.fees += fee
            case "transfer":
                self._balance(command["to"])
                self._take(name, amount)
                self.accounts[command["to"]] += amount
            case "lock":
                self._balance(name)
                self.locked.add(name)
                self.set_timer(name, self.now_ns + int(command["for_s"] * NS_PER_S))
            case "audit":
                return {"percent": self._percent(name)}
            case other:
                raise Refused(f"{other} is not known")
        return {}

    def _percent(self, name: str) -> int:
        total = sum(self.accounts.values())
        if self.active_version >= 2 and total == 0:
            return 0
        return 100 * self._balance(name) // total  # version 1 divides by 0 here: a record that can't be applied

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


class FirstBank(Bank):
    """The code of version 1, which ran before."""

    version: ClassVar[int] = 1
