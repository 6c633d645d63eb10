"""Mutants of a Python module, made from its syntax tree.

Each mutant replaces one piece of the source text and leaves the rest as it is. Its id names the file, the place and the mistake.
A later run finds the same mutant in the same text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Mod: "//", ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>",
    ast.RShift: "<<",
}  # fmt: skip
_LOGGERS = {"log", "logger", "_log", "LOG"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake.

    Attributes:
        file: Path of the module, relative to the root of the repository.
        line: First line of the replaced text, counted from 1.
        start: Offset of the replaced text in the file, in characters.
        end: Offset behind the replaced text, in characters.
        new: The text that stands there instead.
        mistake: What was done, in a few words.
    """

    file: str
    line: int
    start: int
    end: int
    new: str
    mistake: str

    def apply(self, text: str) -> str:
        """Return ``text`` with the mistake in it."""
        return text[: self.start] + self.new + text[self.end :]

    @property
    def id(self) -> str:
        """The name of the mutant, unique within one text of the file."""
        return f"{self.file}:{self.line} {self.mistake}"


def make_mutants(file: str, text: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of the text.

    Annotations, docstrings, imports, log calls and ``TYPE_CHECKING`` blocks have no mutants: no user meets them.
    """
    maker = _Maker(file, text)
    maker.visit(ast.parse(text))
    unique: dict[str, Mutant] = {}
    for mutant in sorted(maker.found, key=lambda m: (m.start, m.end, m.mistake)):
        if mutant.new != text[mutant.start : mutant.end]:
            unique.setdefault(mutant.id, mutant)
    return list(unique.values())


class _Maker:
    def __init__(self, file: str, text: str) -> None:
        self.found: list[Mutant] = []
        self._file = file
        self._text = text
        self._lines: list[int] = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def visit(self, node: ast.AST) -> None:
        if self._is_uninteresting(node):
            return
        make = getattr(self, f"_make_{type(node).__name__.lower()}", None)
        if make is not None:
            make(node)
        for child in self._children(node):
            self.visit(child)

    def _children(self, node: ast.AST) -> Iterator[ast.AST]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            yield from (item for item in (value if isinstance(value, list) else [value]) if isinstance(item, ast.AST))

    def _is_uninteresting(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr | ast.Assert):
            return True
        if isinstance(node, ast.If):
            return ast.unparse(node.test).endswith("TYPE_CHECKING")
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Constant) or self._is_log_call(node.value)
        return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("__all__", "__slots__")

    @staticmethod
    def _is_log_call(node: ast.AST) -> bool:
        call = node.value if isinstance(node, ast.Await) else node
        return (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and ast.unparse(call.func.value).split(".")[-1] in _LOGGERS
        )

    # places

    def _offset(self, line: int, column: int) -> int:
        start = self._lines[line - 1]
        text = self._text[start : self._lines[line]]
        return start + (column if text.isascii() else len(text.encode()[:column].decode()))

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _add(self, node: ast.expr | ast.stmt, new: str, mistake: str) -> None:
        start, end = self._span(node)
        self.found.append(Mutant(self._file, node.lineno, start, end, new, mistake))

    def _source(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._text[start:end]

    def _between(self, left: ast.expr, right: ast.expr, new: str, mistake: str) -> None:
        """Replace the operator that stands between two operands."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = self._text[start:end]
        word = gap.strip().strip("()").strip()
        if not word or "\n" in word or "#" in gap:
            return
        at = start + gap.index(word)
        self.found.append(Mutant(self._file, left.lineno, at, at + len(word), new, f"{word} -> {new} {mistake}".strip()))

    # operators

    def _make_compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            self._between(left, right, _COMPARISONS[type(operator)], f"in '{self._short(node)}'")

    def _make_boolop(self, node: ast.BoolOp) -> None:
        new = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, new, f"in '{self._short(node)}'")

    def _make_binop(self, node: ast.BinOp) -> None:
        if type(node.op) in _ARITHMETIC and not any(self._is_text(side) for side in (node.left, node.right)):
            self._between(node.left, node.right, _ARITHMETIC[type(node.op)], f"in '{self._short(node)}'")

    def _make_augassign(self, node: ast.AugAssign) -> None:
        self._delete(node)

    def _make_unaryop(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, f"({self._source(node.operand)})", f"drop 'not' of '{self._short(node.operand)}'")

    def _make_constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add(node, str(not value), f"{value} -> {not value}")
        elif isinstance(value, int):
            self._add(node, str(value + 1), f"{self._source(node)} -> {value + 1}")
        elif isinstance(value, float):
            self._add(node, repr(value * 2 + 1.0), f"{value!r} -> {value * 2 + 1.0!r}")

    def _make_if(self, node: ast.If) -> None:
        self._add(node.test, f"not ({self._source(node.test)})", f"negate 'if {self._short(node.test)}'")

    def _make_while(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._add(node.test, "False", f"never enter 'while {self._short(node.test)}'")

    def _make_ifexp(self, node: ast.IfExp) -> None:
        self._add(node.test, f"not ({self._source(node.test)})", f"negate '... if {self._short(node.test)}'")

    def _make_return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self._add(node, "return None", f"return None for '{self._short(node.value)}'")

    def _make_continue(self, node: ast.Continue) -> None:
        self._add(node, "break", "continue -> break")

    def _make_break(self, node: ast.Break) -> None:
        self._add(node, "continue", "break -> continue")

    def _make_raise(self, node: ast.Raise) -> None:
        self._delete(node)

    def _make_expr(self, node: ast.Expr) -> None:
        value = node.value
        if isinstance(value, ast.Yield | ast.YieldFrom):
            return
        self._delete(node)
        if isinstance(value, ast.Await):
            self._add(value, self._source(value.value), f"drop 'await' of '{self._short(value.value)}'")

    def _make_assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._delete(node)

    def _make_delete(self, node: ast.Delete) -> None:
        self._delete(node)

    def _make_try(self, node: ast.Try) -> None:
        if node.finalbody:
            first, last = node.finalbody[0], node.finalbody[-1]
            start, end = self._span(first)[0], self._span(last)[1]
            self.found.append(Mutant(self._file, first.lineno, start, end, "pass", f"drop 'finally: {self._short(first)}'"))

    def _delete(self, node: ast.stmt) -> None:
        self._add(node, "pass", f"delete '{self._short(node)}'")

    @staticmethod
    def _is_text(node: ast.expr) -> bool:
        return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))

    @staticmethod
    def _short(node: ast.AST) -> str:
        text = " ".join(ast.unparse(node).split())
        return text if len(text) <= 48 else text[:45] + "..."
