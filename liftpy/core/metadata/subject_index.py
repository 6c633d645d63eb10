"""Finds the stream that answers on a subject. At most one does [A8].

If two streams answered a publish, its publisher could take one ack for the other. So a stream that answers (any ack
policy but ``none``)
may not overlap with another one, with wildcards and the subjects of partitions (``<subject>.N``).

Goal: find an overlapping stream without checking every stream, of which there may be 100,000. Algorithm: a tree of
subject tokens, shared
between images. A search follows the tokens of the new subject, and visits all branches only at a wildcard. A stream
with P partitions is
stored at its subject's last token with the number P. Worked example: ``shop.*`` with 3 partitions stands for
``shop.*``, ``shop.*.1`` and
``shop.*.2``. It overlaps with ``shop.eu`` and ``shop.eu.2``, but not with ``shop.eu.3``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from immutables import Map

from liftpy.core.wire.subjects import token_allows

ANY = "*"
REST = ">"


@dataclass(frozen=True, slots=True)
class _Branch:
    """Subjects that begin with the tokens on the path to this node."""

    streams: tuple[tuple[str, int], ...] = ()
    """(name, number of partitions) of the streams whose subject ends here, by name."""
    below: Map[str, _Branch] = field(default_factory=Map)
    """Branches by the next token."""


@dataclass(frozen=True, slots=True)
class SubjectIndex:
    """The subjects of the streams that answer."""

    root: _Branch = field(default_factory=_Branch)

    def with_stream(self, name: str, subject: str, partitions: int) -> SubjectIndex:
        """Return the index with the stream ``name``, which it does not contain."""
        return SubjectIndex(_put(self.root, subject.split("."), name, partitions))

    def without_stream(self, name: str, subject: str) -> SubjectIndex:
        """Return the index without the stream ``name``."""
        return SubjectIndex(_put(self.root, subject.split("."), name, 0))

    def overlapping(self, subject: str, partitions: int) -> str:
        """Return the name of a stream that overlaps with a stream on ``subject`` with these partitions. '': none.

        The result is the same on every node.
        """
        tokens = subject.split(".")
        return next(_of_subject(self.root, tokens), "") or (next(_of_numbers(self.root, tokens, partitions), ""))


def _put(branch: _Branch, tokens: list[str], name: str, partitions: int) -> _Branch:
    """The branch with ``name`` at the end of ``tokens``; with 0 partitions without it."""
    if not tokens:
        others = tuple(held for held in branch.streams if held[0] != name)
        return replace(branch, streams=tuple(sorted((*others, (name, partitions)))) if partitions else others)
    child = _put(branch.below.get(tokens[0], _Branch()), tokens[1:], name, partitions)
    if child.streams or child.below:
        return replace(branch, below=branch.below.set(tokens[0], child))
    return replace(branch, below=branch.below.delete(tokens[0]))


def _of_subject(branch: _Branch, tokens: list[str]) -> Iterator[str]:
    """Streams at or below ``branch`` of which a subject or a partition's subject overlaps with ``tokens``, wildcards included."""
    if not tokens:
        yield from (name for name, _ in branch.streams)
        return
    token, rest = tokens[0], tokens[1:]
    if token == REST:
        yield from _all(branch)
        return
    if REST in branch.below:
        yield from (name for name, _ in branch.below[REST].streams)
    if not rest:
        yield from (name for name, partitions in branch.streams if _is_number(token, partitions))
    for key in sorted(branch.below) if token == ANY else (token, ANY):
        if key != REST and key in branch.below:
            yield from _of_subject(branch.below[key], rest)


def _of_numbers(branch: _Branch, tokens: list[str], partitions: int) -> Iterator[str]:
    """Streams that overlap with the partitions 1 to ``partitions`` - 1 (inclusive) of a stream on ``tokens``."""
    if partitions < 2:
        return
    if tokens:
        if REST in branch.below:
            yield from (name for name, _ in branch.below[REST].streams)
        for key in sorted(branch.below) if tokens[0] == ANY else (tokens[0], ANY):
            if key != REST and key in branch.below:
                yield from _of_numbers(branch.below[key], tokens[1:], partitions)
        return
    yield from (name for name, others in branch.streams if others > 1)
    if len(branch.below) > partitions:
        found = [str(number) for number in range(1, partitions) if str(number) in branch.below]
    else:
        found = sorted(key for key in branch.below if key not in (ANY, REST) and _is_number(key, partitions))
    for key in (*found, ANY, REST):
        if key in branch.below:
            yield from (name for name, _ in branch.below[key].streams)


def _all(branch: _Branch) -> Iterator[str]:
    """Everything that has at least one token more than ``branch``."""
    yield from (name for name, partitions in branch.streams if partitions > 1)
    for key in sorted(branch.below):
        yield from (name for name, _ in branch.below[key].streams)
        yield from _all(branch.below[key])


def _is_number(token: str, partitions: int) -> bool:
    """Return whether ``token`` can be that of a partition from 1 to ``partitions`` - 1 (inclusive)."""
    if token == ANY:
        return partitions > 1
    plain = token.isascii() and token.isdigit() and len(token) <= len(str(partitions)) and token[0] != "0"
    return plain and int(token) < partitions


def begins_under(subject: str, partitions: int, prefix: str) -> bool:
    """Return whether a stream on ``subject`` would receive a subject under the inbox prefix ``prefix`` (``subjects.py``)."""
    wanted = prefix.removesuffix(".").split(".")
    tokens = subject.split(".") + ([ANY] if partitions > 1 else [])
    for place, token in enumerate(wanted):
        if place >= len(tokens) or not (tokens[place] in (ANY, REST) or token_allows(token, tokens[place])):
            return False
        if tokens[place] == REST:
            return True
    return len(tokens) > len(wanted)
